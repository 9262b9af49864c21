"""The registry of queues and the options in force: a pass of a reaper puts both right, and finds due work."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from redis.exceptions import RedisError

from rqttl import flows
from rqttl.errors import QueueNotFound
from rqttl.flows.steps import Flow
from rqttl.protocol.commands import QueueConfig
from rqttl.protocol.keys import Keyspace, queue_name, queue_names
from rqttl.reaper.report import Refusals, log_event
from rqttl.store.refusals import is_away
from rqttl.text import format_value

EFFECT = "options in force do not follow the policies"


class Reconciler:
    """Brings options in force up to date. Damaged policies, and refusals of Redis, are logged and stop no reaper."""

    def __init__(self, keyspace: Keyspace, refusals: Refusals) -> None:
        self._keyspace = keyspace
        self._refusals = refusals

    def check(self, versions: Mapping[str, bytes | None]) -> Flow[None]:
        """Reconcile the queues that name another version of the policies than the stored one."""
        if versions:
            with self._refusals.noted(EFFECT):
                stored = yield from flows.policies.current(self._keyspace)
                version = b"%d" % stored.version
                yield from self._reconcile([name for name, known in versions.items() if known != version])
                for error in stored.errors:
                    raise error

    def reconcile(self, queues: Sequence[str]) -> Flow[None]:
        """Reconcile these queues. A damaged queue is left out: its sweep reports it."""
        with self._refusals.noted(EFFECT):
            yield from self._reconcile(queues)

    def _reconcile(self, queues: Sequence[str]) -> Flow[None]:
        if not queues:
            return
        result = yield from flows.policies.reconcile(self._keyspace, queues)
        for queue, options in result.changed.items():
            names = ", ".join(options)
            log_event(
                logging.INFO,
                "queue_reconciled",
                f"queue {queue}: its policies give it other options: {names}",
                queue=queue,
                options=list(options),
            )


#: A name without a queue is removed after so many seconds: no declaration takes that long.
STALE = 600.0


@dataclass(frozen=True, slots=True)
class Record:
    """The fields of a queue that reapers read: its due time, and fields that change with its messages."""

    due: int | None
    fields: tuple[bytes | None, ...]

    @property
    def policies(self) -> bytes | None:
        """The version of the policies that its options in force come from: the last of `FIELDS`."""
        return self.fields[-1]


#: `version` comes first: a queue is there while it is. Where messages leave from the middle, `ready_bytes` and `acked`
#: change.
FIELDS = ("version", "due_at", "last_id", "cursor", "ready_bytes", "acked", "policies")


class Registry:
    """The names of all queues, and their upkeep. Its flows are performed one after the other."""

    def __init__(self, keyspace: Keyspace, clock: Callable[[], float] = time.monotonic) -> None:
        self._keyspace = keyspace
        self._clock = clock
        self._refusals = Refusals(clock)
        self._reconciler = Reconciler(keyspace, self._refusals)
        self._missing: dict[str, float] = {}  # names without a queue, and since when
        self._removed: set[str] = set()  # names that left since the last pass began: looked at once more
        self._listed: set[str] = set()
        self._without: list[str] = []
        self._returned: set[str] = set()

    def names(self) -> Flow[list[str]]:
        """Begin a pass. Return its names, sorted: the registry's, and the ones that left since the last pass began."""
        members = yield from flows.registry.members(self._keyspace)
        before, self._listed = self._listed, set(queue_names(members))
        self._removed |= before - self._listed
        if len(self._listed) < len(members):
            yield from self._remove_strays([member for member in members if queue_name(member) is None])
        self._without, self._returned = [], set()
        return sorted(self._listed | self._removed)

    def look(self, names: Sequence[str]) -> Flow[dict[str, Record]]:
        """Return the records of existing queues, and reconcile those of other policies. `tidy` removes other names."""
        records = yield from self.records(names)
        yield from self._reconciler.check({name: record.policies for name, record in records.items()})
        self._without += [name for name in names if name not in records and name in self._listed]
        self._returned |= self._removed & records.keys() - self._listed
        return records

    def records(self, names: Sequence[str]) -> Flow[dict[str, Record]]:
        """Return the records of the queues that exist."""
        records: dict[str, Record] = {}
        for name, fields in (yield from self._look(names, FIELDS)).items():
            if fields[0] is not None:
                due = fields[1]
                records[name] = Record(int(due) if due and due.isdigit() else None, tuple(fields))
        return records

    def tidy(self) -> Flow[None]:
        """Correct the registry at the end of a pass, after its last `look`."""
        yield from self._register(self._returned)
        yield from self._unregister(self._without)

    def register_targets(self, queues: Iterable[str]) -> Flow[list[str]]:
        """Register dead-letter targets of these queues that exist and are missing. Returns their names."""
        listed = set(queues)
        targets: set[str] = set()
        for queue in sorted(listed):
            targets |= yield from self.targets(queue)
        looks = yield from self._look(sorted(targets - listed), ("version",))
        entered = yield from self._register({name for name, fields in looks.items() if fields[0] is not None})
        yield from self._reconciler.reconcile(entered)
        return entered

    def targets(self, queue: str) -> Flow[set[str]]:
        """Return the dead-letter targets of a queue."""
        with suppress(QueueNotFound), self._refusals.noted("options of queues cannot be read"):
            config: QueueConfig = yield flows.steps.GetConfig(queue)
            return config.options.targets()
        return set()

    def _look(self, names: Sequence[str], fields: Sequence[str]) -> Flow[dict[str, list[bytes | None]]]:
        """Return the fields of each record. Raises the errors of a Redis that is away."""
        looks: dict[str, Any] = dict((yield from flows.registry.records(self._keyspace, names, fields)))
        for name, answer in looks.items():
            if isinstance(answer, RedisError) and is_away(answer):
                raise answer
            if isinstance(answer, Exception):  # a key of another type: the sweep of the queue fails and says so
                looks[name] = [b"?"] * len(fields)
        return looks

    def _register(self, names: set[str]) -> Flow[list[str]]:
        entered: list[str] = []
        for name in sorted(names):
            with self._refusals.noted("queues stay out of the registry"):
                if (yield flows.steps.Register(name)):
                    entered.append(name)
                    log_event(
                        logging.WARNING,
                        "queue_registered",
                        f"queue {name}: was missing in the registry, registered",
                        queue=name,
                    )
        return entered

    def _remove_strays(self, strangers: list[bytes]) -> Flow[None]:
        """Remove members that are no valid names. If Redis refuses, the next pass tries again."""
        removed = yield from flows.registry.remove_members(self._keyspace, strangers)
        for member, answer in zip(strangers, removed, strict=True):
            if answer == 1:
                text = format_value(member, bytes)
                log_event(
                    logging.WARNING,
                    "invalid_name_removed",
                    f"registry: {text} is no name of a queue, removed",
                    member=text,
                )

    def _unregister(self, missing: list[str]) -> Flow[None]:
        now = self._clock()
        self._missing = {name: self._missing.get(name, now) for name in missing}
        stale = [name for name, since in self._missing.items() if now - since >= STALE]
        # a pass may take minutes, and in the meantime somebody may have made the queue
        looks = yield from self._look(stale, ("version",))
        self._removed = {name for name, fields in looks.items() if fields[0] is None}
        removed = sorted(self._removed)
        if removed:
            with self._refusals.noted("names without a queue stay in the registry"):
                yield from flows.registry.remove(self._keyspace, removed)
        for name in removed:
            del self._missing[name]
            log_event(
                logging.INFO, "queue_unregistered", f"queue {name}: is not there, removed from the registry", queue=name
            )


#: The number of queues in one part of a scan, for a scan at once and for a scan over a period. One round trip reads a
#: part.
PAGE, PART = 1_000, 100
#: The number of scans in which an unchanged queue is swept once. Old ids of duplicates and dead consumers have no due
#: time; only sweeps remove them.
UNCHANGED_EVERY = 16


@dataclass(frozen=True, slots=True)
class ScanPart:
    """A part of all queues: their due times, and the queues to sweep even if nothing is due."""

    dues: dict[str, int | None]
    sweep: list[str]


class Scan:
    """Scans over the queues of a registry, one after the other. `queues` are the existing ones of the present scan."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._parts: deque[list[str]] = deque()
        self._records: dict[str, Record] = {}
        self._number = 0
        self._thorough = True
        self._size = 0
        self.queues: set[str] = set()
        self.running = False

    def begin(self, *, thorough: bool) -> Flow[None]:
        """Begin a scan. A `thorough` scan sweeps all queues, another the changed ones and some others in turn."""
        names = yield from self._registry.names()
        size = PAGE if thorough else PART
        self._parts = deque(names[start : start + size] for start in range(0, len(names), size))
        self._size = len(self._parts)
        self._records = {queue: record for queue, record in self._records.items() if queue in self.queues}
        self._number += 1
        self._thorough, self.running, self.queues = thorough, True, set()

    def gap(self, period: float) -> float:
        """Return the seconds between two parts, so that a scan takes `period` seconds."""
        return period / max(1, self._size)

    def __contains__(self, queue: str) -> bool:
        return queue in self._records

    def ask(self, names: list[str]) -> Flow[Mapping[str, Record]]:
        """Add queues that a hint names and no scan has seen. Returns the records of the existing ones."""
        records = yield from self._registry.records(names)
        self._records |= records
        self.queues |= records.keys()
        return records

    def look(self) -> Flow[ScanPart]:
        """Read the records of the next part. The last part ends the scan."""
        names = self._parts[0] if self._parts else []
        records = yield from self._registry.look(names)
        part = ScanPart(
            {queue: record.due for queue, record in records.items()},
            [queue for queue, record in records.items() if self._is_to_sweep(queue, record)],
        )
        self._records |= records
        self.queues |= records.keys()
        if self._parts:
            self._parts.popleft()
        if not self._parts:
            yield from self._registry.tidy()
            self.running = False
        return part

    def _is_to_sweep(self, queue: str, record: Record) -> bool:
        changed = self._records.get(queue) != record
        return self._thorough or changed or (crc32(queue.encode()) + self._number) % UNCHANGED_EVERY == 0
