"""What a job reads, decided on the driver: which queues, from where to where, and who reads what.

All that can be known beforehand is found out here, before any task starts: queues that do not exist, places that are
gone already, a user who may not read.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace

from rqttl.keys import Keyspace, queue_names
from spark_connectors.errors import DataLoss, NoSuchQueue
from spark_connectors.options import patterns
from spark_connectors.options.options import Options
from spark_connectors.ranges import FIRST, LAST, Range, before
from spark_connectors.read.probe import Log
from spark_connectors.redis.bulk_reader import Wire

_log = logging.getLogger("spark_connectors")

_CHUNK = 250
#: Queues of up to so many messages are not looked into: that they are read by one task matters to nobody.
_SMALL = 10_000


@dataclass(frozen=True, slots=True)
class Facts:
    """A queue at one moment. `loose` is how many messages are there; with `settled`, none will be moved there."""

    queue: str
    born: int
    last: str
    trimmed: str
    length: int
    loose: int
    settled: bool


@dataclass(frozen=True, slots=True)
class Window:
    """What a job asks for beside its options, as filters of Spark say it: some queues, a stretch of sequences."""

    queues: frozenset[str] | None = None
    after: str = FIRST
    upto: str = LAST

    def meet(self, other: Window) -> Window:
        """What both ask for."""
        queues = other.queues if self.queues is None else self.queues
        if self.queues is not None and other.queues is not None:
            queues = self.queues & other.queues
        return Window(queues, max(self.after, other.after), min(self.upto, other.upto))


def facts(wire: Wire, keys: Keyspace, queues: Sequence[str]) -> dict[str, Facts]:
    """The facts of those queues that exist, in few round trips."""
    found: dict[str, Facts] = {}
    for start in range(0, len(queues), _CHUNK):
        some = queues[start : start + _CHUNK]
        replies = wire.ask_all([
            words
            for queue in some
            for words in (
                ("HMGET", keys.key(queue, "meta"), "version", "born", "last", "trimmed", "letters"),
                ("XLEN", keys.key(queue, "log")),
                ("HLEN", keys.key(queue, "loose")),
            )
        ])  # fmt: skip
        for i, queue in enumerate(some):
            (version, born, last, trimmed, letters), length, loose = replies[3 * i : 3 * i + 3]
            if version is not None:
                settled = letters == b"1"
                found[queue] = Facts(queue, int(born or 0), _place(last), _place(trimmed), length, loose, settled)
    return found


def _place(text: bytes | None) -> str:
    """A sequence of a queue's record, which is `0-0` while there was none."""
    return FIRST if text is None or len(text) < len(FIRST) else text.decode()


def selected(options: Options, wire: Wire, keys: Keyspace, window: Window) -> dict[str, Facts]:
    """The queues that the options and the window ask for. Raises `NoSuchQueue` for one that is named and not there."""
    pattern = options.maybe_text("queuePattern")
    if pattern is None:
        found = facts(wire, keys, options.queues)
        if missing := [queue for queue in options.queues if queue not in found]:
            raise _not_found(wire, keys, missing)
    else:
        names = queue_names(wire.ask("SMEMBERS", keys.registry))
        found = facts(wire, keys, patterns.select(pattern, names))
    return {name: one for name, one in found.items() if window.queues is None or name in window.queues}


def _not_found(wire: Wire, keys: Keyspace, missing: Sequence[str]) -> NoSuchQueue:
    names = queue_names(wire.ask("SMEMBERS", keys.registry))
    near = difflib.get_close_matches(missing[0], names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "; a queue for dead letters is made by its first letter"
    others = f" (nor {len(missing) - 1} others of those named)" if len(missing) > 1 else ""
    return NoSuchQueue(f"queues: there is no queue {missing[0]!r} in namespace {keys.namespace!r}{others}{hint}")


def snapshot(options: Options, wire: Wire, keys: Keyspace, queues: Iterable[Facts], window: Window) -> list[Range]:
    """What a batch reads of each queue: up to the last message that it has now. Raises `DataLoss`."""
    ranges = []
    for one in queues:
        whole = Range(one.queue, FIRST, one.last, one.length + one.loose, bool(one.loose) or not one.settled)
        after, upto = _start(options, one), _end(options, one)
        clipped = whole.clip(max(after, window.after), min(upto, window.upto))
        if clipped.empty or not whole.rows:
            continue
        if clipped != whole and whole.rows > _SMALL:
            clipped = replace(clipped, rows=Log(wire, keys, whole).estimate(clipped))
        ranges.append(clipped)
    return ranges


def _start(options: Options, one: Facts) -> str:
    since, offsets = options.maybe_number("startingTimestamp"), options.offsets("startingOffsets")
    if since is not None:
        return before(since)
    place = offsets if isinstance(offsets, str) else offsets.get(one.queue, "earliest")
    if place == "earliest":
        return FIRST
    if one.trimmed > place:
        text = (
            f"startingOffsets: queue {one.queue!r}: messages after {place}, the highest of them {one.trimmed}, were "
            "removed by retention, a limit or a purge"
        )
        if options.flag("failOnDataLoss"):
            raise DataLoss(f"{text}. With failOnDataLoss=false the rest is read")
        _log.warning("%s", text)
    return place


def _end(options: Options, one: Facts) -> str:
    until, offsets = options.maybe_number("endingTimestamp"), options.offsets("endingOffsets")
    if until is not None:
        return before(until)
    place = offsets if isinstance(offsets, str) else offsets.get(one.queue, "latest")
    return one.last if place == "latest" else place


def may_read(wire: Wire, keys: Keyspace, ranges: Sequence[Range]) -> None:
    """Do what tasks will do, for nothing: a user who may not is told so before any of them starts."""
    for found in ranges[:1]:
        log = keys.key(found.queue, "log")
        wire.ask_all([
            ("XRANGE", log, "+", "+", "COUNT", 1), ("XREVRANGE", log, "+", "+", "COUNT", 1),
            ("HSCAN", keys.key(found.queue, "loose"), 0, "COUNT", 1),
        ])  # fmt: skip


def partitions(
    options: Options, wire: Wire, keys: Keyspace, ranges: Sequence[Range], *, in_order: bool = False
) -> list[list[Range]]:
    """Who reads what: large ranges are split, small ones are put together, so that each part has about as much.

    With `in_order`, one part after the other has what the ranges have one after the other.
    """
    method, total = options.text("splitMethod"), sum(found.rows for found in ranges)
    parts = options.maybe_number("numPartitions")
    if parts is None:
        parts = min(options.number("maxPartitions"), -(-total // options.number("rowsPerPartition")))
    pieces: list[Range] = []
    for found in ranges:
        into = round(found.rows * parts / max(1, total))
        pieces += Log(wire, keys, found).cut(into, method) if into > 1 else [found]
    return (pack_in_order if in_order else pack)(pieces, max(1, parts))


def pack_in_order(pieces: Sequence[Range], parts: int) -> list[list[Range]]:
    """Put neighbours together into so many parts or fewer, none empty."""
    share = (sum(piece.rows for piece in pieces) + len(pieces)) / parts
    packed: dict[int, list[Range]] = {}
    load = 0.0
    for piece in pieces:
        # a piece belongs where its middle lies; it costs something even if nothing is in it
        packed.setdefault(min(parts - 1, int((load + (piece.rows + 1) / 2) / share)), []).append(piece)
        load += piece.rows + 1
    return list(packed.values())


def pack(pieces: Sequence[Range], parts: int) -> list[list[Range]]:
    """Put pieces together into so many parts or fewer, none empty: the largest first, each where least is so far."""
    loads = [(0, i) for i in range(min(parts, len(pieces)))]
    packed: list[list[Range]] = [[] for _ in loads]
    heapify(loads)
    for piece in sorted(pieces, key=lambda piece: (-piece.rows, piece.queue, piece.after)):
        load, i = loads[0]
        packed[i].append(piece)
        # a piece costs something even if nothing is in it
        heapreplace(loads, (load + piece.rows + 1, i))
    return packed
