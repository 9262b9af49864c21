"""The queues of a namespace, and the order in which they are swept.

Scans find due work, and put right the registry and the options in force.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from zlib import crc32

from redis.exceptions import RedisError, ResponseError

from rqttl.checks import queue_name, queue_names
from rqttl.errors import DataDamaged, QueueNotFound
from rqttl.flows import policies, registry, topics
from rqttl.flows.steps import Flow, GetConfig, Register
from rqttl.outages import is_away
from rqttl.protocol.commands import QueueConfig
from rqttl.protocol.keys import Keyspace
from rqttl.reaper.report import log_event
from rqttl.text import format_value

#: Seconds in which a warning about refused upkeep is not repeated.
QUIET = 60.0
#: A name without a queue is removed after so many seconds: no declaration takes that long.
STALE = 600.0
#: The number of queues in one part of a scan, for a scan at once and for a scan over a period. One round trip reads a
#: part.
PAGE, PART = 1_000, 100
#: The number of scans in which an unchanged queue is swept once. Old ids of duplicates and dead consumers have no due
#: time; only sweeps remove them.
UNCHANGED_EVERY = 16

#: The fields of a queue that change with its messages. `version` comes first: a queue is there while it is. Where
#: messages leave from the middle, `ready_bytes` and `acked` change. The last is the version of the policies.
FIELDS = ("version", "due_at", "last_id", "cursor", "ready_bytes", "acked", "policies")
Record = list[bytes | None]


def due_of(record: Record) -> int | None:
    """Return the due time in a record; `None` if nothing is ever due."""
    due = record[1]
    return int(due) if due and due.isdigit() else None


class Registry:
    """The names of all queues and their records, read in scans. `queues` are the existing ones of the present scan.

    Its flows are performed one after the other. Refusals of Redis and damaged policies are logged: a later scan tries
    again. Errors of a Redis that is away are raised. A queue whose node `rests`, or is away by its answer and
    `note_outage`, is `unread`: neither there nor missing.
    """

    def __init__(
        self,
        keyspace: Keyspace,
        clock: Callable[[], float] = time.monotonic,
        rests: Callable[[str], bool] = lambda _: False,
        note_outage: Callable[[str, Exception], None] = lambda *_: None,
    ) -> None:
        self.queues: set[str] = set()
        self.unread: set[str] = set()
        self._rests, self._note_outage = rests, note_outage
        self.running = False
        self._keyspace, self._clock = keyspace, clock
        self._logged: dict[tuple[str, str], float] = {}  # the times of warnings
        self._missing: dict[str, float] = {}  # names without a queue, and since when
        self._listed: set[str] = set()
        self._left: set[str] = set()  # names that left since the last scan: looked at once more
        self._records: dict[str, Record] = {}
        self._parts: deque[list[str]] = deque()
        self._size = self._number = 0
        self._thorough = True

    def begin(self, *, thorough: bool) -> Flow[None]:
        """Begin a scan. A `thorough` scan sweeps all queues, another the changed ones and some others in turn."""
        members = yield from registry.members(self._keyspace)
        before, self._listed = self._listed, set(queue_names(members))
        self._left |= before - self._listed
        if len(self._listed) < len(members):
            yield from self._remove_strays([member for member in members if queue_name(member) is None])
        names, size = sorted(self._listed | self._left), PAGE if thorough else PART
        self._parts = deque(names[start : start + size] for start in range(0, len(names), size))
        self._size = len(self._parts)
        self._records = {queue: record for queue, record in self._records.items() if queue in self.queues}
        self._number += 1
        self._thorough, self.running, self.queues, self.unread = thorough, True, set(), set()

    def gap(self, period: float) -> float:
        """Return the seconds between two parts, so that a scan takes `period` seconds."""
        return period / max(1, self._size)

    def look(self) -> Flow[tuple[dict[str, int | None], list[str]]]:
        """Read the next part: the due times of its queues, and those to sweep even if nothing is due.

        The last part ends the scan.
        """
        records = yield from self._read(self._parts[0] if self._parts else [])
        if records:
            with self._refusals_logged("options in force do not follow the policies"):
                stored = yield from policies.current(self._keyspace)
                version = b"%d" % stored.version
                yield from self._reconcile([name for name, record in records.items() if record[-1] != version])
        sweep = [queue for queue, record in records.items() if self._is_to_sweep(queue, record)]
        self._records |= records
        self.queues |= records.keys()
        if self._parts:
            self._parts.popleft()
        if not self._parts:
            yield from self._register(self._left & self.queues)
            self._left &= self.unread
            yield from self._unregister()
            self.running = False
        return {queue: due_of(record) for queue, record in records.items()}, sweep

    def register_targets(self, queues: Iterable[str]) -> Flow[list[str]]:
        """Register dead-letter targets of these queues that exist and are missing. Returns their names.

        Bindings of queues that are gone go, too: a topic whose last one was deleted has a lifetime again.
        """
        listed, targets = set(queues), set[str]()
        for queue in sorted(listed):
            with suppress(QueueNotFound), self._refusals_logged("options of queues cannot be read"):
                config: QueueConfig = yield GetConfig(queue)
                targets |= config.options.targets()
                gone = [name for name in config.options.bindings or () if name not in self.queues]
                yield from topics.unbind_gone(self._keyspace, queue, gone)
        entered = yield from self._register((yield from self._read(sorted(targets - listed), ("version",))))
        with self._refusals_logged("options in force do not follow the policies"):
            yield from self._reconcile(entered)
        return entered

    def _is_to_sweep(self, queue: str, record: Record) -> bool:
        changed = self._records.get(queue) != record
        return self._thorough or changed or (crc32(queue.encode()) + self._number) % UNCHANGED_EVERY == 0

    def _read(self, names: Sequence[str], fields: Sequence[str] = FIELDS) -> Flow[dict[str, Record]]:
        """Return these fields of the queues that exist."""
        self.unread |= {name for name in names if self._rests(name)}
        asked = [name for name in names if name not in self.unread]
        records: dict[str, Any] = dict((yield from registry.records(self._keyspace, asked, fields)))
        for name, answer in records.items():
            if isinstance(answer, RedisError) and is_away(answer):
                self._note_outage(name, answer)
                self.unread.add(name)
                records[name] = [None]
            elif isinstance(answer, Exception):  # a key of another type: the sweep of the queue fails and says so
                records[name] = [b"?"] * len(fields)
        return {name: record for name, record in records.items() if record[0] is not None}

    def _reconcile(self, queues: Sequence[str]) -> Flow[None]:
        """Put the policies in force. A queue that cannot be read keeps no other from it; its sweep reports it."""
        if not queues:
            return
        result = yield from policies.reconcile(self._keyspace, queues, damaged=[])
        for queue, options in result.changed.items():
            text = f"queue {queue}: its policies changed its options: {', '.join(options)}"
            log_event(logging.INFO, "queue_reconciled", text, queue=queue, options=list(options))

    def _register(self, names: Iterable[str]) -> Flow[list[str]]:
        entered: list[str] = []
        for name in sorted(names):
            with self._refusals_logged("queues stay out of the registry"):
                if (yield Register(name)):
                    entered.append(name)
                    text = f"queue {name}: was missing in the registry; added it"
                    log_event(logging.WARNING, "queue_registered", text, queue=name)
        return entered

    def _remove_strays(self, strays: list[bytes]) -> Flow[None]:
        """Remove members that are no valid names. If Redis refuses, the next scan tries again."""
        with self._refusals_logged("invalid names stay in the registry"):
            yield from registry.remove(self._keyspace, strays)
            for name in [format_value(member, bytes) for member in strays]:
                text = f"registry: removed {name}, which is not a queue name"
                log_event(logging.WARNING, "invalid_name_removed", text, member=name)

    def _unregister(self) -> Flow[None]:
        """Remove names that have had no queue for long. Dead letters in the outboxes of deleted queues go on before."""
        now = self._clock()
        self._missing = {name: self._missing.get(name, now) for name in sorted(self._listed - self.queues)}
        with self._refusals_logged("dead letters of deleted queues stay on their way"):
            yield from registry.emptied(self._keyspace, [name for name in self._missing if name not in self.unread])
        stale = [name for name, since in self._missing.items() if now - since >= STALE]
        # a scan may take minutes, and in the meantime somebody may have made the queue
        made = yield from self._read(stale, ("version",))
        gone = [name for name in stale if name not in made and name not in self.unread]
        if gone:
            with self._refusals_logged("names without a queue stay in the registry"):
                gone = yield from registry.emptied(self._keyspace, gone)
                if gone:
                    yield from registry.remove(self._keyspace, gone)
                for name in gone:
                    del self._missing[name]
                    text = f"queue {name}: does not exist; removed it from the registry"
                    log_event(logging.INFO, "queue_unregistered", text, queue=name)

    @contextmanager
    def _refusals_logged(self, effect: str) -> Iterator[None]:
        """Log a refusal of Redis, or damaged policies, once in `QUIET` for each effect and kind of error."""
        try:
            yield
        except (ResponseError, DataDamaged) as error:
            if is_away(error):
                raise
            kind, now = (effect, type(error).__name__), self._clock()
            if now - self._logged.get(kind, -QUIET) >= QUIET:
                self._logged[kind] = now
                cause = "Redis refuses upkeep, " if isinstance(error, ResponseError) else ""
                text = f"{cause}{effect}: {error}; a later pass tries again"
                log_event(logging.WARNING, "refused", text, error=kind[1], message=str(error))


class Timetable:
    """Queues by their next due time, and two lines of queues to sweep now. Times are the server's, in ms.

    One line holds queues in which something is due, the other holds the queues of a full pass. They are served
    alternately, each first come, first served. So neither a queue with endless work nor a pass over very many queues
    keeps the others waiting.
    """

    def __init__(self) -> None:
        self._due: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []
        self._line: OrderedDict[str, int] = OrderedDict()  # with the due times
        self._pass: OrderedDict[str, None] = OrderedDict()
        self._favour_pass = False

    def __len__(self) -> int:
        return len(self._due)

    def schedule(self, queue: str, due: int | None) -> None:
        """Sweep the queue at `due` and not before; without `due`, after a hint or in a pass."""
        if due is None:
            self._due.pop(queue, None)
        elif self._due.get(queue) != due:
            self._due[queue] = due
            heapq.heappush(self._heap, (due, queue))
            if len(self._heap) > 2 * len(self._due) + 64:  # most of its entries are outdated
                self.keep(self._due)

    def hint(self, queue: str, due: int) -> None:
        """Sweep the queue at `due`, unless it is scheduled before."""
        if queue not in self._line and due < self._due.get(queue, due + 1):
            self.schedule(queue, due)

    def enqueue(self, queue: str, due: int) -> None:
        """Append a queue to the line. Its oldest due work is from `due`."""
        self._due.pop(queue, None)
        self._line.setdefault(queue, due)

    def keep(self, queues: Container[str]) -> None:
        """Remove the due times of all other queues."""
        self._due = {queue: due for queue, due in self._due.items() if queue in queues}
        self._heap = [(due, queue) for queue, due in self._due.items()]
        heapq.heapify(self._heap)

    def begin_pass(self, queues: Iterable[str]) -> None:
        """Sweep all these queues, due or not."""
        self._pass |= dict.fromkeys(queues)

    @property
    def passing(self) -> bool:
        """True until the full pass has come to its end."""
        return bool(self._pass)

    @property
    def busy(self) -> bool:
        """True if a queue is to be swept now."""
        return bool(self._line or self._pass)

    def earliest(self) -> int | None:
        """Return the next due time of a queue that is not in a line."""
        while self._heap:
            due, queue = self._heap[0]
            if self._due.get(queue) == due:
                return due
            heapq.heappop(self._heap)
        return None

    def next(self, now: int) -> tuple[str, int | None] | None:
        """Return the next queue to sweep, and its due time if that is known."""
        while (due := self.earliest()) is not None and due <= now:
            self.enqueue(heapq.heappop(self._heap)[1], due)
        if not self.busy:
            return None
        self._favour_pass = not self._favour_pass
        queue = next(iter(self._pass if self._pass and (self._favour_pass or not self._line) else self._line))
        self._pass.pop(queue, None)
        return queue, self._line.pop(queue, None)
