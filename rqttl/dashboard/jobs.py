"""Actions that take long, as threads that work in steps; what forms have done; and the log of all actions."""

from __future__ import annotations

import atexit
import logging
from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime, timezone
from threading import Event, Lock, Thread
from typing import Any

from rqttl import errors, outages, text

logger = logging.getLogger("rqttl.dashboard")

#: Jobs that run at a time; those that have ended, and outcomes of forms, that are remembered.
AT_A_TIME, ENDED, OUTCOMES = 4, 100, 1_000


def record(entry: Mapping[str, str], count: int | None, outcome: str) -> None:
    """Log an action. `entry` has its user, address, action, queue and filter."""
    line = "{user} at {address}: {action} {queue} {filter}".format_map(entry).rstrip()
    extra = {"event": "action", "fields": {**entry, "count": count, "outcome": outcome}}
    logger.info("%s", text.escape(f"{line}: {outcome}"), extra=extra)


@dataclass(eq=False)
class Job:
    """A long action. `work` yields after each step, and keeps `done`, `left` and `notes` (what stayed, and why).

    `noun` and `participle` say what is `done`. A job of a `single` step cannot be stopped. `entry` is for the log.
    """

    noun: str
    participle: str
    work: Callable[[Job], Generator[object, None, None]]
    single: bool = False
    entry: dict[str, str] = field(default_factory=dict)
    number: int = 0
    done: int = 0
    left: int | None = None
    notes: list[str] = field(default_factory=list)
    began: datetime = field(default_factory=lambda: datetime.now(timezone.utc))
    ended: datetime | None = None
    outcome: str = ""
    stopping: Event = field(default_factory=Event)
    thread: Thread = field(init=False)

    @property
    def progress(self) -> str:
        """`250 dead letters put back, 750 left`; what is said is certain."""
        left = "" if self.left is None else f", {self.left:,} left"
        return f"{text.plural(self.done, self.noun)} {self.participle}{left}"

    def run(self) -> None:
        """Work until the end, or until it is to stop. It raises nothing: the outcome tells all."""
        self.outcome, steps = "done", self.work(self)
        try:
            for _ in steps:
                if self.stopping.is_set() and self.left != 0 and not self.single:
                    self.outcome = "stopped"
                    steps.close()
                    break
        except (errors.RqttlError, *outages.TEMPORARY) as error:
            self.outcome = f"ended early, by an error: {text.without_secrets(str(error))}; certain is"
        except Exception:
            logger.exception("job %s failed", self.number)
            self.outcome = "failed, and the log has the reason; certain is"
        self.ended = datetime.now(timezone.utc)
        record(self.entry, self.done, f"job {self.number} {self.outcome}: {'; '.join([self.progress, *self.notes])}")


class Jobs:
    """The jobs of this process. Any thread may call it."""

    def __init__(self) -> None:
        self._lock, self._jobs, self._count = Lock(), dict[int, Job](), 0

    def start(self, job: Job, entry: dict[str, str]) -> bool:
        """Let a job run, with this entry of the log. Returns False, and does nothing, if four run already."""
        with self._lock:
            ended = [number for number, one in self._jobs.items() if one.ended]
            if len(self._jobs) - len(ended) >= AT_A_TIME:
                return False
            for number in ended[: -ENDED + 1]:
                del self._jobs[number]
            if not self._count:
                atexit.register(self.close)  # the threads do not keep the process alive
            self._count = job.number = self._count + 1
            self._jobs[job.number], job.entry = job, entry
            job.thread = Thread(target=job.run, name=f"rqttl job {job.number}", daemon=True)
            job.thread.start()
        return True

    def all(self) -> list[Job]:
        """All jobs that run or are remembered, the latest first."""
        with self._lock:
            return list(reversed(self._jobs.values()))

    def close(self) -> None:
        """Stop all jobs, and wait for the steps at hand."""
        for job in self.all():
            job.stopping.set()
        for job in self.all():
            job.thread.join(60)


class Outcomes:
    """What forms have done, by their ids: of two clicks, also at the same time, the first acts and both are told."""

    def __init__(self) -> None:
        self._lock, self._known = Lock(), OrderedDict[str, Future[Any]]()

    def once(self, id: str, act: Callable[[], Any]) -> Any:
        """The result of `act`, which is called once. A form that certainly did nothing may be sent again."""
        with self._lock:
            is_first, future = id not in self._known, self._known.setdefault(id, Future())
            if len(self._known) > OUTCOMES:
                self._known.popitem(last=False)
        if is_first:
            try:
                future.set_result(act())
            except BaseException as error:  # noqa: BLE001  # raised below, in both threads
                future.set_exception(error)
                if not isinstance(error, errors.OutcomeUnknown):
                    self._known.pop(id, None)
        return future.result()
