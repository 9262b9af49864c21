"""The nodes that hold the keys of a namespace, and exchanges with them. No I/O.

An exchange yields a `Trip`, the calls of one round trip to one node, and receives their replies; a refusal of Redis is
among them as a value. The error of a lost round trip is thrown into the exchange. A list of trips is made at once: the
answer has the replies of each, or its error. A number that an exchange yields is a pause in seconds.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from redis.exceptions import AskError

from rqttl.errors import InvalidInput
from rqttl.types import NodeInfo

T = TypeVar("T")
N = TypeVar("N")
N_co = TypeVar("N_co", covariant=True)
Calls = Sequence[tuple[Any, ...]]


class Node(Protocol):
    """One server, as exchanges know it."""

    #: The hashes of the scripts that this client has loaded there.
    loaded: set[str]

    def leave(self) -> object:
        """Make no further call on the present connections: the server is a replica, or out of step."""


class Topology(Protocol[N_co]):
    """Which node has which keys."""

    @property
    def nodes(self) -> Sequence[N_co]:
        """All nodes that have keys."""

    @property
    def made(self) -> Sequence[N_co]:
        """All nodes that may have connections."""

    @property
    def is_known(self) -> bool:
        """False while `nodes` and `node_of` only guess: see `learn`."""

    def node_of(self, key: Any) -> N_co:
        """The node that has a key."""

    def slot_of(self, key: Any) -> Hashable:
        """What the keys of one transaction have in common."""

    def is_replicated(self, node: Any, /) -> bool:
        """Return True for a node of a cluster that has a replica."""

    def name_of(self, node: Any, /) -> str:
        """The address of a node of a cluster; `Redis` where it is the only one."""

    def learn(self, doubted: Any = None, /) -> Exchange[None]:
        """Ask which node has which key, a `doubted` node last. Raises the error of the last one if none answers."""

    def redirect(self, node: Any, error: AskError, /) -> N_co:
        """The node to which another one sends a call. Raises `InvalidInput` where that is the wrong topology."""


class OneServer(Generic[N]):
    """The `Topology` of one server."""

    def __init__(self, node: N) -> None:
        self.node = node
        self.nodes: tuple[N, ...] = (node,)
        self.made: tuple[N, ...] = (node,)
        self.is_known = True

    def node_of(self, _: Any) -> N:
        """See `Topology`."""
        return self.node

    def slot_of(self, _: Any) -> Hashable:
        """See `Topology`."""
        return None

    def is_replicated(self, _: object) -> bool:
        """See `Topology`: nothing moves between slots."""
        return False

    def name_of(self, _: object) -> str:
        """See `Topology`."""
        return "Redis"

    def learn(self, _: object = None) -> Exchange[None]:
        """See `Topology`: there is nothing to learn."""
        yield from ()

    def redirect(self, _: object, error: AskError) -> N:
        """See `Topology`."""
        raise InvalidInput(
            "url: this server is a node of a Redis Cluster, and sends calls to other nodes: use redis+cluster://"
        ) from error


def node_info(topology: Topology[Any], key: str) -> NodeInfo | None:
    """The node of a cluster that has a key; `None` for one server, and until a node of the cluster has answered."""
    slot = topology.slot_of(key)
    if not isinstance(slot, int) or not topology.is_known:
        return None
    node = topology.node_of(key)
    return NodeInfo(topology.name_of(node), slot, topology.is_replicated(node))


class Trip(NamedTuple):
    """The calls of one round trip, and their node. A `fails_fast` trip to a node that does not answer at once is over.

    A `brief` one is over after a time-out, also if the node may still answer: another one can answer as well.
    """

    node: Any
    calls: Calls
    fails_fast: bool = False
    brief: bool = False


Exchange = Generator[Trip | list[Trip] | float, Any, T]


def side_by_side(exchanges: Sequence[Exchange[T]]) -> Exchange[list[T | Exception]]:
    """Carry out exchanges with different nodes: their round trips are made together, so a slow node delays no other.

    Returns the result of each; an error takes its place.
    """
    results: list[Any] = [None] * len(exchanges)
    steps: dict[int, Any] = {}

    def resume(place: int, answer: Any) -> None:
        exchange = exchanges[place]
        try:
            steps[place] = exchange.throw(answer) if isinstance(answer, Exception) else exchange.send(answer)
        except StopIteration as done:
            results[place] = done.value
        except Exception as error:  # noqa: BLE001  # the caller has it
            results[place] = error

    for place in range(len(exchanges)):
        resume(place, None)
    while steps:
        trips = {place: step for place, step in steps.items() if isinstance(step, Trip)}
        if trips:
            answers = yield list(trips.values())
        else:
            trips = dict(steps)
            yield min(steps.values())
            answers = [None] * len(trips)
        for place, answer in zip(trips, answers, strict=True):
            del steps[place]
            resume(place, answer)
    return results
