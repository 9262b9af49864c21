"""Waits for lists in several slots of a cluster: each slot needs a blocking call, on a connection of its own."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from typing import Any

from redis.exceptions import ConnectionError, ResponseError, TimeoutError

from rqttl.errors import PoolExhausted
from rqttl.flows.steps import ENDED, Read
from rqttl.outages import refuses_for_now
from rqttl.protocol.contract import pack_command
from rqttl.runtime.interrupt import Interrupt, Timing
from rqttl.store.blocking import PAUSE, SLACK, Listener, asked, patiently, shut_down
from rqttl.store.connections import Held, RedisNode
from rqttl.store.exchanges import NotSent
from rqttl.store.topology import Topology

#: The number of slots with a pending call, those that had elements last. The lists of the others are looked at.
MOST = 64
#: Seconds between two looks at the lists of slots without a call.
LOOK = 0.5
#: Seconds for which one call blocks.
PERIOD = 240.0
#: Seconds between two looks whether the slots still are at the nodes of their calls.
CHECK = 5.0
#: Seconds in which a server answers calls that are ended. One that hangs does not answer.
LAST = 1.0

#: A list with its element; with `None` if a call for it ended, perhaps with an element.
Pair = tuple[str, bytes | None]


def by_slot(topology: Topology[Any], keys: Iterable[str]) -> dict[Hashable, list[str]]:
    """The keys of each slot."""
    slots: dict[Hashable, list[str]] = {}
    for key in keys:
        slots.setdefault(topology.slot_of(key), []).append(key)
    return slots


class BlockingCall:
    """A blocking call for the lists `keys` of one slot. It holds a connection until its reply."""

    def __init__(self, listener: Listener, node: object, keys: Sequence[str]) -> None:
        self.node, self.keys = node, keys
        #: The time at which Redis must have answered.
        self.ends = Timing.seconds() + PERIOD + SLACK
        self._is_ended = False
        with ExitStack() as stack:
            place = listener.places.take(0, lambda: True)
            if not place:
                raise PoolExhausted(listener.places.limit, listener.places.held)
            stack.callback(listener.places.give_back, place)
            self._held = stack.enter_context(Held(listener.connections))
            connection: Any = self._held.connection
            stack.enter_context(patiently(connection, 0))
            connection.send_packed_command([pack_command(("BLPOP", *keys, f"{PERIOD:.3f}"))])
            #: It can be read when the reply comes. redis-py shows no other way to it.
            self.sock: socket.socket = connection._sock  # noqa: SLF001
            self._holding = stack.pop_all()

    def end(self) -> None:
        """Break the call off. A reply that Redis has sent or is about to send still arrives."""
        self._is_ended = True
        shut_down(self.sock)

    def answer(self, seconds: float | None = None) -> list[Pair] | None:
        """Read the reply, for so long. Returns its element; `None` if the call was lost, perhaps with an element."""
        with self._holding:
            if seconds is not None:
                self.sock.settimeout(seconds)
            try:
                reply: Any = self._held.connection.read_response()
            except (ConnectionError, TimeoutError):
                return None
            except ResponseError as error:
                if "UNBLOCKED" in str(error) or refuses_for_now(error):
                    return None
                raise
            self._held.clean = not self._is_ended
        return [] if reply is None else [(reply[0].decode(), reply[1])]


class SlotWaits:
    """Waits of one thread for lists in several slots. Their calls stay pending between two waits, until `end`."""

    def __init__(
        self,
        topology: Topology[RedisNode],
        listener_of: Callable[[RedisNode], Listener],
        read: Callable[[Read], Sequence[Any]],
    ) -> None:
        self._topology, self._listener_of, self._read = topology, listener_of, read
        self._most = MOST
        self._pending: dict[Hashable, BlockingCall] = {}
        self._numbers, self._last_found = count(1), dict[Hashable, int]()
        self._look_at = 0.0
        self._lost: list[str] = []  # the lists of lost calls

    def __len__(self) -> int:
        return len(self._pending)

    def wait(self, keys: Sequence[str], ms: int, interrupts: Sequence[Interrupt]) -> list[Pair] | bytes | None:
        """Wait up to `ms` for elements of the lists. Returns all that are there; see `Listener.listen` for the rest.

        It may return elements of lists for which an earlier wait has asked.
        """
        ends, slots = Timing.seconds() + ms / 1000, by_slot(self._topology, keys)
        with _alarm(interrupts) as alarm:
            while not asked(interrupts):
                looks = len(slots) > self._most
                if looks and Timing.seconds() >= self._look_at:
                    self._look({slot: keys for slot, keys in slots.items() if slot not in self._pending})
                found, now = self._follow(slots), Timing.seconds()
                left = min(ends, self._look_at if looks else now + CHECK) - now
                found += self._ready(0.0 if found or self._lost else max(0.0, left), alarm)
                if self._lost:  # perhaps with hints. The caller's next calls show more, also of slots that have moved
                    time.sleep(PAUSE)
                    found += [(key, None) for key in self._lost]
                    self._lost = []
                if found or Timing.seconds() >= ends:
                    return found or None
        return self.collect() or ENDED

    def collect(self) -> list[Pair]:
        """Return the elements that have come since the last wait, without a wait and without a call."""
        return self._ready(0.0) if self._pending else []

    def end(self, slots: Iterable[Hashable] | None = None) -> list[Pair]:
        """End the calls, or those of some slots. Returns the elements that had come, and all other lists.

        Redis loses an element that it takes for a call at the moment at which it learns of its end.
        """
        ended = [self._pending.pop(slot) for slot in (list(self._pending) if slots is None else slots)]
        for call in ended:
            call.end()
        until = Timing.seconds() + LAST
        found: list[Pair] = []
        for call in ended:
            pairs = call.answer(max(0.001, until - Timing.seconds()))
            found += [(key, None) for key in call.keys] if pairs is None else pairs
        return found

    def _follow(self, slots: dict[Hashable, list[str]]) -> list[Pair]:
        """End the calls that are no longer right, and begin those that are missing. Returns what has come."""
        now, node_of = Timing.seconds(), self._topology.node_of
        last = self._last_found
        chosen = sorted(slots, key=lambda slot: last.get(slot, 0), reverse=True)[: self._most]
        wanted = {slot: slots[slot] for slot in chosen}
        found = self.end(
            [
                slot
                for slot, call in self._pending.items()
                if call.keys != wanted.get(slot) or call.node is not node_of(call.keys[0]) or now >= call.ends
            ]
        )
        for slot, keys in wanted.items():
            if slot in self._pending:
                continue
            node = node_of(keys[0])
            try:
                self._pending[slot] = BlockingCall(self._listener_of(node), node, keys)
            except PoolExhausted:
                if not self._pending:
                    raise
                self._most = len(self._pending)
                break
            except (NotSent, ConnectionError, TimeoutError):
                self._lost += keys
        return found

    def _ready(self, seconds: float, alarm: socket.socket | None = None) -> list[Pair]:
        """Wait for replies, or for the alarm. Returns the elements that have come."""
        with selectors.DefaultSelector() as selector:
            for slot, call in self._pending.items():
                selector.register(call.sock, selectors.EVENT_READ, slot)
            if alarm is not None:
                selector.register(alarm, selectors.EVENT_READ, alarm)
            ready = [key.data for key, _ in selector.select(seconds) if key.data is not alarm]
        found: list[Pair] = []
        for slot in ready:
            call = self._pending.pop(slot)
            pairs = call.answer()
            if pairs is None:
                self._lost += call.keys
            elif pairs:
                found += pairs
                self._last_found[slot] = next(self._numbers)
        return found

    def _look(self, slots: dict[Hashable, list[str]]) -> None:
        """Let slots with elements have a call, which takes them."""
        self._look_at = Timing.seconds() + LOOK
        keys = [(slot, key) for slot, keys in slots.items() for key in keys]
        lengths = self._read(Read([("LLEN", key) for _, key in keys], partial=True))
        for (slot, _), length in zip(keys, lengths, strict=True):
            if isinstance(length, int) and length:
                self._last_found[slot] = next(self._numbers)


@contextmanager
def _alarm(interrupts: Sequence[Interrupt]) -> Iterator[socket.socket]:
    """A socket that is ready to be read after an interrupt."""
    alarm, ring = socket.socketpair()

    def end() -> None:
        with suppress(OSError):  # an interrupt may call this for a short time after the wait
            ring.send(b"!")

    with alarm, ring, ExitStack() as stack:
        for interrupt in interrupts:
            stack.enter_context(interrupt.ending(end))
        yield alarm
