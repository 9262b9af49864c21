"""Medians, statistics of Redis, the table, and the figures with a goal: all without a server."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from tests.bench.compare.candidates import WORKLOADS, Candidate
from tests.bench.measure import meets

_OWN = ("cmdstat_config", "cmdstat_info", "cmdstat_client")


@dataclass(frozen=True)
class Run:
    """One run; times are per message, in microseconds. An unknown figure is `None`."""

    rate: float | None = None
    client_us: float | None = None
    redis_us: float | None = None
    command_us: float | None = None
    commands: float | None = None
    trips: float | None = None
    p50: float | None = None
    p99: float | None = None
    megabytes: float | None = None
    stored: float | None = None


Runs = Mapping[tuple[str, str], Sequence[Run]]


def median_run(runs: Sequence[Run]) -> Run:
    """The median of each figure over the runs that have it."""
    found: dict[str, float] = {}
    for field in fields(Run):
        values = [value for run in runs if (value := getattr(run, field.name)) is not None]
        if values:
            found[field.name] = statistics.median(values)
    return Run(**found)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least the share of all values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1)]


def command_us(stats: Mapping[str, Mapping[str, Any]]) -> float:
    """Microseconds in commands by `INFO commandstats`. The time of a script holds the commands in it."""
    scripts = [one for name, one in stats.items() if name.startswith(("cmdstat_evalsha", "cmdstat_eval"))]
    every = [one for name, one in stats.items() if not name.startswith(_OWN)]
    return float(sum(one["usec"] for one in scripts or every))


_COLUMNS = (
    ("messages/s", "rate", ",.0f"),
    ("client us", "client_us", ".1f"),
    ("Redis us", "redis_us", ".1f"),
    ("in calls", "command_us", ".1f"),
    ("commands", "commands", ".2f"),
    ("trips", "trips", ".3f"),
    ("p50 us", "p50", ",.0f"),
    ("p99 us", "p99", ",.0f"),
    ("RSS MB", "megabytes", ".0f"),
    ("bytes", "stored", ",.0f"),
)


def cell(value: float | None, form: str) -> str:
    """A figure, or a dash without one."""
    return "–" if value is None else format(value, form)


def table(runs: Runs, candidates: Iterable[Candidate], absent: Mapping[tuple[str, str], str]) -> list[str]:
    """The lines of the table: a block for each workload."""
    candidates = list(candidates)
    lines = []
    for workload, title in WORKLOADS.items():
        rows = [c for c in candidates if (c.name, workload) in runs or (c.name, workload) in absent]
        if not rows:
            continue
        lines += ["", f"{title:<40}" + "".join(f"{name:>11}" for name, *_ in _COLUMNS)]
        for c in rows:
            lines.append(_row(c.name, runs.get((c.name, workload), ()), absent.get((c.name, workload), "")))
    return lines


def _row(name: str, runs: Sequence[Run], reason: str) -> str:
    if not runs:
        return f"    {name:<36} {reason}"
    found = median_run(runs)
    return f"    {name:<36}" + "".join(f"{cell(getattr(found, field), form):>11}" for _, field, form in _COLUMNS)


def ratio(own: Sequence[Run], others: Sequence[Run], field: str) -> float | None:
    """The median of the ratios of a figure within a round."""
    pairs: list[tuple[float | None, float | None]] = [
        (getattr(a, field), getattr(b, field)) for a, b in zip(own, others, strict=False)
    ]
    found = [ours / theirs for ours, theirs in pairs if ours is not None and theirs]
    return statistics.median(found) if found else None


@dataclass(frozen=True)
class Goal:
    """One line of the table of goals: a ratio of a figure of rqttl to that of other candidates, the best of them."""

    title: str
    workload: str
    limit: str
    others: tuple[str, ...] = ()
    against: str = ""
    field: str = "rate"

    def reached(self, runs: Runs) -> float | None:
        """The median over the rounds, against the candidate that is best in the median. `None` without a run."""
        own = runs.get(("rqttl", self.workload))
        workloads = (self.against or self.workload).split()
        found = [runs[name, workload] for name in self.others for workload in workloads if runs.get((name, workload))]
        values = [rounds for rounds in found if getattr(median_run(rounds), self.field) is not None]
        if not own or not values:
            return None
        best = max(values, key=lambda rounds: getattr(median_run(rounds), self.field))
        return ratio(own, best, self.field)


_RAW, _OWN_NAME = ("raw redis-py",), ("rqttl",)
_ASYNC = ("SAQ", "taskiq-redis", "arq", "BullMQ Python")
_PEERS = ("RQ", "Dramatiq", "Celery", *_ASYNC)
GOALS = (
    Goal("enqueue, against the fastest at-least-once peer", "single", ">= 1.3", _PEERS),
    Goal("batches of 100, against the fastest peer, any enqueue", "batch", ">= 10", _PEERS, "single batch"),
    Goal("consume, against the fastest peer", "one", ">= 8", _PEERS, "one async"),
    Goal("worker of 2 processes, against the fastest peer", "workers", ">= 1.5", _PEERS),
    Goal("async enqueue, 100 tasks, against redis.asyncio", "tasks", ">= 4", _RAW),
    Goal("async enqueue, 100 tasks, against asyncio peers", "tasks", ">= 2", _ASYNC),
    Goal("async consume, against sync", "async", ">= 0.7", _OWN_NAME, "one"),
    Goal("async consume, against asyncio peers", "async", ">= 5", _ASYNC),
    Goal("wake-up p50, against BLPOP", "wake", "<= 2", _RAW, field="p50"),
    Goal("wake-up p99, against BLPOP", "wake", "<= 2", _RAW, field="p99"),
    Goal("server us, receive + ack by 100, against raw", "by100", "<= 2.2", _RAW, "one", "command_us"),
    Goal("server us, consume, against raw", "one", "<= 2.2", _RAW, field="command_us"),
    Goal("receive + ack by 100, against raw", "by100", ">= 0.65", _RAW, "one"),
    Goal("consume, against raw", "one", ">= 0.65", _RAW),
    Goal("one at a time: receive + ack, against raw", "receive", ">= 0.85", _RAW, "limited"),
    Goal("one at a time: consume, against raw", "limited", ">= 1.5", _RAW),
    Goal("one at a time: consume, against BullMQ Node", "limited", ">= 1.2", ("BullMQ Node",)),
    Goal("enqueue, against raw XADD", "single", ">= 0.88", _RAW),
)


def goals(runs: Runs) -> list[str]:
    """The lines of the table of goals; a `!` marks a missed one."""
    idle = median_run(runs.get(("rqttl", "idle"), ()))
    rows = [(goal.title, goal.reached(runs), ".2f", goal.limit) for goal in GOALS]
    rows += [
        ("idle worker of 20 queues: commands a minute", idle.commands, ".0f", "<= 30"),
        ("idle worker of 20 queues: connections", idle.trips, ".0f", "<= 2"),
    ]
    lines = ["", f"{'figure':<56} {'reached':>9} {'to reach':>9}"]
    for title, value, form, limit in rows:
        mark = "" if value is None else "yes" if meets(value, limit) else "no !"
        lines.append(f"{title:<56} {cell(value, form):>9} {limit:>9}  {mark}")
    return lines
