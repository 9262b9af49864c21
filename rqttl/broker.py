"""The broker: it connects, declares queues, and reads all of them. Its driver performs the work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from datetime import datetime
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING

import redis

from rqttl import events as hook
from rqttl import units
from rqttl.checks import check_queue_name
from rqttl.consuming import several
from rqttl.consuming.consumer import Consumer
from rqttl.delivery import Delivery
from rqttl.deployments import Deployment, Plan
from rqttl.embedded.folder import url_in_use
from rqttl.events import Events, Observer
from rqttl.flows import deployment, policies, queues, reading, registry, roster, steps
from rqttl.flows.receive import lease_ms
from rqttl.options import QueueOptions, UpdateResult
from rqttl.policies import Explanation, Policy
from rqttl.policies.patterns import Syntax
from rqttl.protocol.keys import META
from rqttl.queue import Queue
from rqttl.store.addresses import Address, read_url
from rqttl.store.cluster import Seeds, open_client
from rqttl.store.driver import RedisDriver, driver_of
from rqttl.store.topology import node_info
from rqttl.topic import Topic
from rqttl.types import Duration, Effect, NodeInfo, PolicyResult, QueueStats, WorkerInfo

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from rqttl.embedded.server import EmbeddedServer
    from rqttl.options import OptionArguments


def connect(
    url: str | None = None, *, namespace: str = "rqttl", patience: Duration | None = None, slotted: bool = False
) -> Broker:
    """Connect to Redis: the given URL, else `$RQTTL_URL`, else an embedded server that all processes of the user share.

    URLs: `redis://`, `rediss://`, `unix://`, `redis+sentinel://host:port,host:port/service/0` with the addresses of
    Sentinels (`rediss+sentinel://` with TLS; `?sentinel_username=…&sentinel_password=…` for the Sentinels),
    `redis+cluster://host:port,host:port` with some nodes of a cluster (`rediss+cluster://` with TLS), and
    `embedded:///folder` for an embedded server with data of its own: an absolute path, %-encoded, of a folder that is
    new, empty or marked by rqttl. The next `connect` starts it again if it was killed. A warning (`rqttl`) names, once,
    an embedded server that nobody has asked for; `embedded://` asks for it. Connections are opened when needed.

    `patience`: for how long a call that Redis has certainly not carried out is made again before it raises; `30s` with
    Sentinel and on a cluster, else five attempts within 1.5 s. `slotted`, or `?slotted=true` in the URL, is for a proxy
    that refuses scripts with keys of several slots: then dead letters for a target in another slot are handed over in
    several steps, as on a cluster. Raises `InvalidInput`, and `EmbeddedUnavailable` if no redis-server can be started.
    """
    address, server = read_url(url_in_use(url)), None
    if address.is_embedded:
        from rqttl.embedded import server as embedded

        server = embedded.acquire(address.path)
    try:
        client = open_client(address if server is None else read_url(server.url))
        return Broker(client, namespace, server=server, patience=patience, slotted=address.slotted or slotted)
    except BaseException:
        if server is not None:
            server.close()
        raise


def fail_fast(
    broker: Broker, patience: Duration = "300ms", *, looks: bool = True, reply: float | None = None
) -> Broker:
    """The same broker, for a caller that does not wait for a node of a cluster that is away.

    Calls are made again for `patience`. For one that `looks`, and changes nothing, a reply may take 0.3 s. On one
    server nothing changes, unless such a caller says how many seconds a `reply` may take there. Closing one of both
    closes the other.
    """
    fast, seconds = copy(broker), units.duration(patience, "patience") / 1000
    fast._driver = driver_of(broker).failing_fast(seconds, rushes=True, looks=looks, reply=reply)  # noqa: SLF001  # of this module
    return fast


def registered_names(broker: Broker) -> list[str]:
    """The names of all queues, sorted, and of some that exist no longer, which `Broker.stats` leaves out.

    It is for a caller that asks for the statistics next: `Broker.queues` takes ten times as long for many queues.
    """
    driver = driver_of(broker)
    return driver.perform(registry.registered(driver.keyspace))


def wipe(broker: Broker) -> None:
    """Delete all keys of the namespace. No other client may use it meanwhile."""
    driver = driver_of(broker)
    driver.perform(registry.wipe(driver.keyspace))


class Broker:
    """All queues of one namespace of one Redis server or cluster. Safe to share between threads.

    `client` is an existing `redis.Redis` (with `decode_responses=False`). rqttl borrows its settings and its
    `max_connections`, not its connections and retries; from a client of `sentinel.master_for` its Sentinels and service
    as well, from a `redis.RedisCluster` its nodes. `patience`, `slotted`: see `connect`.
    `server` and `driver` are for `connect` and `rqttl.testing`: an embedded server to leave at the end, and the
    function that makes the driver.
    """

    def __init__(
        self,
        client: redis.Redis | redis.RedisCluster | Seeds,
        namespace: str = "rqttl",
        *,
        server: EmbeddedServer | None = None,
        driver: Callable[..., RedisDriver] = RedisDriver,
        patience: Duration | None = None,
        slotted: bool = False,
    ) -> None:
        self._driver = driver(client, namespace, patience=patience, slotted=slotted)
        self._fast = self._driver.failing_fast()
        self._server = server
        self.observer = hook.observer_of_new(self)

    @property
    def address(self) -> Address:
        """Where the server is, the first Sentinel of a service, or the first node of a cluster; as text a URL."""
        return self._driver.store.address

    @property
    def namespace(self) -> str:
        """The prefix of all keys."""
        return self._driver.keyspace.namespace

    @property
    def events(self) -> Events:
        """The listeners of this broker. `events.subscribe(function)` reports commands, waits, renewals and sweeps."""
        return self._driver.events

    @property
    def observer(self) -> Observer | None:
        """The observer of the calls about messages; `None` without one. Its exceptions are logged. See `Observer`."""
        return self._driver.events.observer

    @observer.setter
    def observer(self, observer: Observer | None) -> None:
        self._driver.events.observer = observer

    def __repr__(self) -> str:
        return f"<Broker {self.address} namespace {self.namespace!r}>"

    def declare_queue(self, name: str, **options: Unpack[OptionArguments]) -> Queue:
        """Create a queue, or find it with the same options.

        `rqttl.OptionArguments` and a table in the README explain the options. An option with the value `None` is left
        out. Names may have hyphens (`**{"max-length": 5}`). A second declaration with equal options changes nothing. A
        queue that a dead letter has created is adopted. `Queue.declared` has the outcome.
        Raises `QueueMismatch`, `InvalidName`, `InvalidOption`, `InvalidDuration`.
        """
        read = QueueOptions.read(name, options)
        return Queue(self._driver, read.queue, self._driver.perform(queues.declare(self._driver.keyspace, read)))

    def preview_declaration(self, name: str, **options: Unpack[OptionArguments]) -> UpdateResult | None:
        """`Queue.preview_update` for a `declare_queue` that would adopt the queue; `None` if it would not."""
        return self._driver.perform(queues.preview_declaration(self._driver.keyspace, QueueOptions.read(name, options)))

    def queue(self, name: str) -> Queue:
        """A handle on a queue. The queue need not exist: there is no call to Redis. Raises `InvalidName`."""
        self._driver.check_open()
        return Queue(self._driver, check_queue_name(name))

    def declare_topic(self, name: str, **options: Unpack[OptionArguments]) -> Topic:
        """Create a topic, or find it with the same options. See `Topic`, and `declare_queue` for options and errors.

        A second declaration leaves the bindings as they are. A queue of this name is not a topic: `QueueMismatch`.
        """
        read = QueueOptions.read(name, options).as_topic()
        return Topic(self._driver, read.queue, self._driver.perform(queues.declare(self._driver.keyspace, read)))

    def topic(self, name: str) -> Topic:
        """A handle on a topic. The topic need not exist: there is no call to Redis. Raises `InvalidName`."""
        self._driver.check_open()
        return Topic(self._driver, check_queue_name(name))

    def queues(self) -> list[str]:
        """The names of all queues, sorted. The call only reads."""
        return self._driver.perform(reading.names(self._driver.keyspace))

    def stats(self, names: Iterable[str] | None = None, *, sweep: bool = True) -> dict[str, QueueStats]:
        """`Queue.stats` of many queues (without names: of all), in few round trips.

        Missing queues are left out. With `sweep=False` the call only reads: it needs no right to write, and it costs
        Redis a tenth as much. Then `next_lease_end`, `next_delay_end` and `next_scheduled` are `None`. Raises
        `InvalidName`, and `QueuesAway`, with the statistics of all others, for queues that cannot be read.
        """
        return self._driver.perform(reading.stats_of(self._driver.keyspace, names, sweep=sweep))

    def options(self, names: Iterable[str] | None = None) -> dict[str, QueueOptions]:
        """`Queue.options` of many queues (without names: of all), in few round trips; see `stats`. It only reads."""
        return self._driver.perform(reading.options_of(self._driver.keyspace, names))

    def held_back(self, names: Sequence[str]) -> list[str]:
        """Say of each queue that holds ready messages back why it does, and when the next one may go."""
        return self._fast.perform(reading.held_back(self._driver.keyspace, names))

    # Several queues

    def receive(
        self,
        queues: Iterable[str],
        max: int = 1,  # noqa: A002  # as `--max` of the command line
        wait: Duration | None = None,
        lease: Duration | None = None,
        *,
        auto_ack: bool = False,
    ) -> list[Delivery]:
        """Take up to `max` messages of several queues: all of the first queue before any of the second one.

        Wait up to `wait` for the first message of any queue. `Delivery.queue` tells where a message is from. See
        `Queue.receive` for `lease` and `auto_ack`. Raises `QueueNotFound` if one of the queues does not exist,
        and `QueueForwards` for a topic or a queue that forwards, before a message is taken.
        """
        names, ms, since = list(several.read_weights(queues)), lease_ms(lease), perf_counter()
        batches = self._fast.perform(several.receive(self._fast, names, max, wait, ms, auto_ack=auto_ack))
        received: list[Delivery] = []
        for claimed in batches:
            queue = Queue(self._driver, claimed.config.name)
            received += queue.hand_out([claimed], ms, since)
        return received

    def consume(
        self,
        queues: Iterable[str],
        *,
        weights: Mapping[str, int] | None = None,
        prefetch: int = 100,
        lease: Duration | None = None,
        wait: Duration | None = None,
    ) -> Consumer:
        """Iterate over deliveries of several queues; see `Consumer`. `Delivery.queue` tells where a message is from.

        Without `weights` the first queue that has messages comes first: each fetch looks at the queues in their order,
        so with `prefetch=1` each message does. With `weights`, such as `{"high": 3, "low": 1}`, queues that have
        messages share the fetched messages in that proportion. `prefetch` is for all queues together.

        While nothing is ready, one wait is for all queues. A queue that does not exist, or whose messages go on to
        others, is told in the log (`rqttl.consumer`) and looked for every 5 s, also when it is deleted meanwhile.
        Raises `InvalidInput`, `InvalidName`.
        """
        return Consumer(self._driver, several.read_weights(queues, weights), prefetch, lease=lease, wait=wait)

    # Policies

    def set_policy(
        self,
        name: str,
        pattern: str,
        definition: Mapping[str, object],
        *,
        priority: int = 0,
        apply_to: str = "queues",
        syntax: Syntax = "wildcard",
        operator: bool = False,
    ) -> PolicyResult:
        """Set options for all queues whose names match a pattern; in the place of an older policy of this name.

        They act at once on the queues that exist and on the messages in them, and on every queue that is declared or
        created by a dead letter later. The result has the options that changed, and counts the messages that died.

        `pattern`: with the syntax `wildcard`, words with dots between them; `*` is exactly one word, and `#` at the end
        any number of words. With `regex`, a regular expression that is searched in the name. `definition` has options
        as `declare_queue` takes them; `None` or `"none"` stops an option from being inherited from a later policy.

        Several policies may match a queue. Each option comes from the first policy that has it: by higher `priority`,
        then by the more specific pattern, then by name. A duration or limit that is declared, too, is the smaller of
        both; for the other options the declared value wins. With `operator` it is an operator policy: those act the
        same way and win over both, and durations and limits are the smallest of the three. `explain` shows the outcome.
        Raises `InvalidPolicy`, and stores nothing then.
        """
        arguments = {"priority": priority, "apply_to": apply_to, "syntax": syntax}
        policy = Policy.read(name, pattern, definition, **arguments, operator=operator)
        return self._driver.perform(policies.change(self._driver.keyspace, [policy]))

    def delete_policy(self, name: str, *, operator: bool = False) -> PolicyResult:
        """Remove a policy. The queues that it matched get the options that are left. Raises `PolicyNotFound`."""
        return self._driver.perform(policies.delete(self._driver.keyspace, name, operator=operator))

    def policies(self, *, operator: bool = False) -> list[Policy]:
        """All policies, or all operator policies, sorted by name. The call only reads."""
        stored = self._driver.perform(policies.current(self._driver.keyspace)).policies
        return [policy for policy in stored if policy.operator is operator]

    def preview_policy(self, policy: Policy, *, delete: bool = False) -> PolicyResult:
        """The effect that setting a policy, or deleting it, would have now. No option changes.

        Messages whose time is over under the options in force die as in every look, and are not counted.
        """
        stored, removed = ([], [policy]) if delete else ([policy], [])
        return self._driver.perform(policies.preview(self._driver.keyspace, stored, removed))

    def check_policy(self, policy: Policy) -> list[str]:
        """Warnings about a policy, set or not, each as a sentence. The call only reads.

        No queue matches it; it matches its own target; it lets dead letters disappear; an equal policy exists.
        """
        return self._driver.perform(policies.check(self._driver.keyspace, policy))

    def reconcile(self) -> PolicyResult:
        """Bring the options in force of all queues up to date with the policies now. Reapers do it in each pass.

        There is nothing to do unless a process ended in the midst of a change.
        """
        return self._driver.perform(policies.reconcile_all(self._driver.keyspace))

    def explain(self, name: str, ttl: Duration | None = None) -> Explanation:
        """Explain the options that a queue of this name gets from policies alone, whether it exists or not.

        `Queue.explain` explains an existing queue with its declared options. Raises `InvalidName`.
        """
        return self._driver.perform(policies.explain(self._driver.keyspace, name, ttl, name_only=True))

    # Deployments

    def deployment(self) -> Deployment:
        """The declared queues (not those that only dead letters created), and all policies.

        Raises `DataDamaged`, and `QueuesAway`, with the deployment of all others, for queues that cannot be read.
        """
        return self._driver.perform(deployment.present(self._driver.keyspace))

    def preview_plan(self, plan: Plan) -> Effect:
        """Count the messages that a plan would end now, each once. Sweeps the queues, and changes no option."""
        return self._driver.perform(deployment.preview(self._driver.keyspace, plan))

    def apply_plan(self, plan: Plan) -> Effect:
        """Store the policies of a plan (`deployments.make_plan`) in one call, then change its queues.

        No message dies by options between two steps. After an error a new plan has the steps that are left.
        """
        return self._driver.perform(deployment.carry_out(self._driver.keyspace, plan))

    def node_of(self, queue: str) -> NodeInfo | None:
        """The node of a cluster that has a queue, as far as this client knows; `None` for one server. No call."""
        return node_info(self._driver.store.topology, self._driver.keyspace.key(queue, META))

    def reaper_count(self) -> int:
        """Number of reapers of this namespace seen in the last 30 s. `run_once` does not count.

        Raises redis-py's `NoPermissionError` if the user may not read the roster.
        """
        return self._driver.perform(roster.reaper_count(self._driver.keyspace))

    def workers(self, *, consumers: bool = False) -> list[WorkerInfo]:
        """The workers and reapers seen in the last 30 s, sorted by role and name.

        With `consumers` those of `consume`, `run` and `rqttl receive` are among them. The call only reads.
        """
        return self._driver.perform(roster.workers(self._driver.keyspace, consumers=consumers))

    def server_time(self) -> datetime:
        """The time by the clock of Redis. All deadlines follow this clock."""
        return units.as_datetime(self._driver.perform(steps.server_time()))

    def interrupt(self) -> None:
        """End every wait of this broker, from now on, as if its time were over.

        It is for the end of a process. Any thread and any signal handler may call it, and no message that was handed
        out gets lost.
        """
        self._driver.interrupt()

    def close(self) -> None:
        """Close the connections, and leave the embedded server if this broker uses one.

        Every later call of the broker, its queues, consumers and deliveries raises `BrokerClosed`. So does a call that
        waits in another thread. A second `close` has no effect.
        """
        self._driver.close()
        if self._server is not None:
            self._server.close()

    def __enter__(self) -> Self:
        self._driver.check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
