"""The upkeep of the registry of queues, as flows. A crash can leave it with too few or too many names.

A client registers a queue before it makes it, so an existing queue is in the registry. Three things can go wrong.

* A script made a dead-letter target, and the client died before it registered the target. The options of known queues
  lead to it.
* One client unregistered a deleted queue while another created it again, and the latter died before it registered the
  name once more. Each pass looks at the names that have left since the pass before.
* A client died after it had registered a queue, or before it unregistered a deleted one. The name stays without a
  queue.

A member that is no valid name was added by somebody else, and is removed at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from redis.exceptions import RedisError

from rqttl import flows
from rqttl.errors import QueueNotFound
from rqttl.flows.steps import Flow
from rqttl.protocol.commands import QueueConfig
from rqttl.protocol.keys import Keyspace, queue_name, queue_names
from rqttl.reaper.reconciling import Reconciler
from rqttl.reaper.report import Refusals, log_event
from rqttl.store.refusals import is_away
from rqttl.text import format_value

PAGE = 1000
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
