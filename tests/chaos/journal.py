"""The journal of one process of a campaign: lines of JSON that survive the death of the process.

Each line is one event: `t` (microseconds since 1970), `p` (the process), `k` (the kind) and its facts. One `os.write`
brings a line to the kernel, so a process that is killed has written a line completely or not at all. `t` is comparable
with the clock of Redis, which runs on the same machine, and is some whole hours ahead after `clock`.

| kind | facts | meaning |
| --- | --- | --- |
| `queue` | `q`, `options`, `dead`, `far` | a judged queue, its options in ms, its dead-letter queue: in another slot? |
| | `passed` | whether its messages are copies, from a topic or by a forward: each id has the name of the queue |
| `send` | `n`, `q`, `ids` | a call of `enqueue` or `enqueue_many` begins |
| `sent` | `n`, `told` or `outcome` | its answer for each id, or `unknown`, or `none` (certainly nothing was stored) |
| `move` | `id`, `to` | a message is about to be moved to another queue |
| `claim` | `q`, `token`, `lease`, `got` | messages were handed out: sequence, id, deadline, count, newest death |
| | `tickets` | the tokens of messages that were handed to this consumer, or to one that looks for the last time |
| | `looked` | of a last look: since when tickets could come unseen, and the sequence of its first message |
| `taking`, `took` | `n`, `q`, `count` | a receive with `auto_ack` begins, and has its reply |
| `settle` | `n`, `q`, `how`, `got` | a settle of (sequence, token) pairs begins |
| `settled` | `n`, `done`, `lost`, `unknown`, `tokens` | its answer for each sequence, and new tokens |
| `acks` | `q`, `done`, `lost` | acks that a consumer had collected were sent: (sequence, token) pairs |
| `letter` | `q`, `id`, `reason`, `died`, `deadline`, `count`, `origin` | the newest death of a drained letter |
| `depth` | `q`, `ready`, `bytes` | a depth of a queue that must keep its limits |
| `stats` | `q`, `numbers` | the numbers of one `stats()` |
| `forget` | `how`, `since`, `until`, `queues` | what happened in between may be forgotten by a failover |
| `policy`, `policy set` | `value` | a change of the policy begins, and was answered |
| `rate` | `set` | a change of the rate begins, or was answered: then with the rate |
| `clock` | `was`, `ahead` | the clock of Redis is about to step: before and after, the microseconds that it is ahead |
| `policies` | `stored`, `queues` | at the end: the value of the policy, and of its option in each queue |
| `error` | `type`, `text` | a call failed as it may |
| `wrong` | `text` | a call told a thing that is not true |
| `unexplained` | `text` | an error, an end or a silence that no nemesis explains |
| `count` | `what`, `times` | something to count: kills, refusals, faults |
"""

import itertools
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Event = dict[str, Any]
SUFFIX = ".journal"
#: Microseconds of one second, and of one hour.
SECOND, HOUR = 1_000_000, 3_600_000_000


def now() -> int:
    """Return the time in microseconds since 1970."""
    return time.time_ns() // 1000


class Journal:
    """A file that events are appended to. Safe to share between threads."""

    def __init__(self, folder: Path, process: str) -> None:
        self.process = process
        self._file = os.open(folder / f"{process}{SUFFIX}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._numbers = itertools.count()

    def number(self) -> str:
        """Return a name for a call, unique in the campaign."""
        return f"{self.process}:{next(self._numbers)}"

    def write(self, kind: str, **facts: object) -> None:
        """Append an event."""
        event = {"t": now(), "p": self.process, "k": kind, **facts}
        os.write(self._file, json.dumps(event, separators=(",", ":")).encode() + b"\n")

    def count(self, what: str, times: int = 1) -> None:
        """Append an event that only counts."""
        if times:
            self.write("count", what=what, times=times)


def read(folder: Path) -> list[Event]:
    """Return all events of a folder in the order of time."""
    lines = itertools.chain.from_iterable(_lines(path) for path in sorted(folder.glob(f"*{SUFFIX}")))
    return sorted(lines, key=lambda event: event["t"])


def _lines(path: Path) -> Iterable[Event]:
    lines = path.read_bytes().split(b"\n")
    # the last line is empty, cut by a full disk, or still being written: a reader may see the beginning of a write
    return map(json.loads, lines[:-1])


def timeline(events: Iterable[Event], id: str) -> str:
    """Return the events that name a message, its sequences or its calls, and the strikes of nemeses around them."""
    lines: list[str] = []
    calls: set[str] = set()
    sequences: set[str] = set()
    start: int | None = None
    for event in events:
        for sequence, claimed, *_ in event["got"] if event["k"] == "claim" else ():
            if claimed == id:
                sequences.add(sequence)
        if _is_of(event, id, sequences, calls):
            calls.add(event.get("n", ""))
        elif event["p"] != "director" or event["k"] == "count" or start is None:
            continue
        start = event["t"] if start is None else start
        facts = {name: value for name, value in event.items() if name not in ("t", "p", "k")}
        if len(event.get("got", ())) > 1:
            facts["got"] = [one for one in event["got"] if one[0] in sequences]
        lines.append(
            f"{(event['t'] - start) / 1e6:10.6f} s  {event['p']:<24} {event['k']:<12} {json.dumps(facts)[:600]}"
        )
    return "\n".join(lines) + "\n"


def _is_of(event: Event, id: str, sequences: set[str], calls: set[str]) -> bool:
    if (
        event.get("id") == id
        or id in event.get("ids", ())
        or (event["k"] in ("sent", "settled") and event["n"] in calls)
    ):
        return True
    if event["k"] == "acks":
        return any(one[0] in sequences for name in ("done", "lost") for one in event[name])
    return event["k"] in ("claim", "settle") and any(one[0] in sequences for one in event["got"])
