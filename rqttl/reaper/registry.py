"""The registry of queues against what is there: what a crash between two steps left out is put in again.

A queue is entered before it is made, so one that is made is in the registry. Two things can go wrong. A script made a
dead-letter target and the client died before it entered it: the options of the queues that are known lead to it. And
a client died after it had entered a queue, or before it had taken out a deleted one: the name stays without a queue.
A member that no queue can be called, which somebody else has added, is taken out at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from rqttl import flows
from rqttl.errors import QueueNotFound
from rqttl.options import REASONS
from rqttl.protocol.keys import queue_name, queue_names
from rqttl.reaper.report import Refusals, note
from rqttl.store.refusals import is_away
from rqttl.text import shown

if TYPE_CHECKING:
    from rqttl.flows import Driver

PAGE = 1000
#: A name without a queue is taken out after so many seconds: no declaration takes that long.
STALE = 600.0


@dataclass(frozen=True, slots=True)
class Record:
    """A queue's record as far as reapers look: when something is due, and fields that change with what is in it."""

    due: int | None
    fields: tuple[bytes | None, ...]


#: `version` comes first: a queue is there while it is. Where messages leave from the middle, `ready_bytes` and `acked`
#: change.
FIELDS = ("version", "due_at", "last_id", "cursor", "ready_bytes", "acked")


class Registry:
    """The names of all queues, and their upkeep."""

    def __init__(self, driver: Driver, clock: Callable[[], float] = time.monotonic) -> None:
        self._driver = driver
        self._clock = clock
        self._refusals = Refusals(clock)
        self._missing: dict[str, float] = {}  # names without a queue, and since when
        self._removed: set[str] = set()  # names taken out in the last pass: looked at once more
        self._listed: set[str] = set()
        self._without: list[str] = []
        self._returned: set[str] = set()

    def read(self) -> dict[str, Record]:
        """Each queue that is there, all at once."""
        names = self.names()
        found = self.look(names)
        self.tidy()
        return found

    def names(self) -> list[str]:
        """The names to look at, sorted: those in the registry, and those taken out the last time. Begins a pass."""
        members = self._driver.perform(flows.members(self._driver.keyspace))
        self._listed = set(queue_names(members))
        if len(self._listed) < len(members):
            self._strike([member for member in members if queue_name(member) is None])
        self._without, self._returned = [], set()
        return sorted(self._listed | self._removed)

    def look(self, names: list[str]) -> dict[str, Record]:
        """Those of the queues that are there. The others are remembered for `tidy`."""
        found = self.records(names)
        self._without += [name for name in names if name not in found and name in self._listed]
        self._returned |= self._removed & found.keys() - self._listed
        return found

    def records(self, names: list[str]) -> dict[str, Record]:
        """The records of those of these queues that are there."""
        found: dict[str, Record] = {}
        for name, fields in self._look(names, *FIELDS):
            if fields[0] is not None:
                due = fields[1]
                found[name] = Record(int(due) if due and due.isdigit() else None, tuple(fields))
        return found

    def tidy(self) -> None:
        """Put right what a pass has found, after its last `look`."""
        self._enter(self._returned)
        self._take_out(self._without)

    def enter_targets(self, queues: Iterable[str]) -> list[str]:
        """Enter dead-letter targets of these queues that are there but not in the registry. Returns their names."""
        listed = set(queues)
        targets = {target for queue in listed for target in self.targets(queue)} - listed
        there = {name for name, fields in self._look(sorted(targets), "version") if fields[0] is not None}
        return self._enter(there)

    def targets(self, queue: str) -> set[str]:
        """Where dead letters of a queue go."""
        with suppress(QueueNotFound), self._refusals.noted("options of queues cannot be read"):
            options = self._driver.step(flows.GetConfig(queue)).options
            return {options.target(reason) for reason in REASONS} - {""}
        return set()

    def _look(self, names: list[str], *fields: str) -> Iterator[tuple[str, list[bytes | None]]]:
        """The fields of each record. Raises the errors of a Redis that is away."""
        for name, answer in self._driver.perform(flows.records(self._driver.keyspace, names, fields)).items():
            if isinstance(answer, RedisError) and is_away(answer):
                raise answer
            # a key of another type is a queue that cannot be swept: the sweep will say so
            yield name, [b"?"] * len(fields) if isinstance(answer, Exception) else answer

    def _enter(self, names: set[str]) -> list[str]:
        entered: list[str] = []
        for name in sorted(names):
            with self._refusals.noted("queues stay out of the registry"):
                if self._driver.step(flows.Register(name)):
                    entered.append(name)
                    note(logging.WARNING, "entered", f"queue {name}: was missing in the registry, entered", queue=name)
        return entered

    def _strike(self, strangers: list[bytes]) -> None:
        """Take members out that no queue can be called. Where Redis refuses it, the next pass tries again."""
        struck = self._driver.perform(flows.strike(self._driver.keyspace, strangers))
        for member, answer in zip(strangers, struck, strict=True):
            if answer == 1:
                told = shown(member, bytes)
                note(logging.WARNING, "struck", f"registry: {told} is no name of a queue, taken out", member=told)

    def _take_out(self, missing: list[str]) -> None:
        now = self._clock()
        self._missing = {name: self._missing.get(name, now) for name in missing}
        stale = [name for name, since in self._missing.items() if now - since >= STALE]
        # a pass may take minutes, and in the meantime somebody may have made the queue
        self._removed = {name for name, fields in self._look(stale, "version") if fields[0] is None}
        removed = sorted(self._removed)
        if removed:
            with self._refusals.noted("names without a queue stay in the registry"):
                self._driver.perform(flows.remove(self._driver.keyspace, removed))
        for name in removed:
            del self._missing[name]
            note(logging.INFO, "removed", f"queue {name}: is not there, taken out of the registry", queue=name)
