"""Checks of topics and of queues that forward: queues that are gone, circles, and messages that are not passed on."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta

from rqttl.doctor import queues
from rqttl.doctor.findings import Finding, ok, problem, warning
from rqttl.doctor.queues import Queues
from rqttl.filters import Bindings, Rule
from rqttl.flows import reading, registry, steps
from rqttl.flows.reading import StatsAndRecord
from rqttl.flows.steps import Flow
from rqttl.options import QueueOptions
from rqttl.protocol import codec
from rqttl.protocol.keys import Keyspace
from rqttl.text import first_few, plural
from rqttl.types import QueueStats
from rqttl.units import as_text

#: The age from which a message that waits to be passed on gives a finding.
WAITS = timedelta(seconds=10)
_ROOM = "consume or purge its messages, raise its limit, or choose another overflow"

#: The options in force of queues; `None` for one that does not exist.
_Options = Mapping[str, QueueOptions | None]


def check(keyspace: Keyspace, seen: Queues) -> Flow[list[Finding]]:
    """Check where messages go on to, and that they do."""
    names = sorted(seen.passing & seen.looks.keys())
    if not names:
        return []
    options = yield from _on_the_ways(keyspace, names)
    ways = {name: way for name in names if (way := _way_back(name, options))}
    findings = [finding for name in names for finding in _of_ways(name, options, ways.get(name, []))]
    held = yield from _held(keyspace, [name for name in names if name not in ways], seen.looks)
    for look in held.values():
        findings += [(yield from _of_held(keyspace, look, options))]
    unrouted = {name: seen.looks[name].unrouted for name in names if seen.looks[name].unrouted}
    text = f"; no bound queue wanted {plural(sum(unrouted.values()), 'message')} of {first_few(sorted(unrouted))}"
    findings.append(ok("topics", f"{plural(len(names), 'queue')} with messages that go on{text if unrouted else ''}"))
    return findings


def _on_the_ways(keyspace: Keyspace, names: Sequence[str]) -> Flow[_Options]:
    """The options in force of these queues, and of all to which their messages go on."""
    found: dict[str, QueueOptions | None] = {}
    left = list(names)
    while left:
        for name, reply in (yield from registry.records(keyspace, left, ("options",))).items():
            if isinstance(reply, Exception):
                raise reply
            found[name] = None if reply[0] is None else QueueOptions.from_json(name, reply[0])
        left = sorted({to for options in found.values() for to in _after(options)} - found.keys())
    return found


def _after(options: QueueOptions | None) -> Mapping[str, list[Rule]]:
    return (options and options.passes_to) or {}


def _way_back(name: str, options: _Options) -> list[str]:
    """The way on which messages come back to a queue; empty if there is none."""
    ways, seen = [[name]], {name}
    while ways:
        way = ways.pop()
        for after in _after(options[way[-1]]):
            if after == name:
                return [*way, name]
            if after not in seen:
                seen.add(after)
                ways.append([*way, after])
    return []


def _of_ways(name: str, found: _Options, way: Sequence[str]) -> Iterator[Finding]:
    options = found[name]
    if way:
        text = f"its messages wait, as they would come back: {' > '.join(way)}"
        yield problem("queue", text, "unbind one of these queues, or change its forward_to", queue=name)
    gone = first_few([after for after in _after(options) if found[after] is None])
    if gone and options and options.forward_to:
        advice = "the first message makes it, without options; declare it to give it some"
        yield warning("queue", f"it forwards to {gone}, which is not there", advice, queue=name)
    elif gone:
        advice = "declare the queue again, or unbind it; the next message does that"
        yield warning("queue", f"bound to it, but not there: {gone}", advice, queue=name)


def _held(
    keyspace: Keyspace, names: Sequence[str], looks: Mapping[str, QueueStats]
) -> Flow[Mapping[str, StatsAndRecord]]:
    """The queues whose oldest message waits for long, while none goes on."""
    suspects = [name for name in names if _waits(looks[name])]
    held: dict[str, StatsAndRecord] = {}
    for look in range(queues.LOOKS if suspects else 0):
        if look:
            yield steps.Sleep(queues.PAUSE)
        now = yield from reading.look_closely(keyspace, suspects, (), {})
        held = {
            name: one
            for name, one in now.items()
            if _waits(one.stats) and (not look or _passed(one.stats) == _passed(held[name].stats))
        }
        suspects = list(held)
    return held


def _waits(stats: QueueStats) -> bool:
    return not stats.paused and (stats.oldest_ready_age or timedelta(0)) >= WAITS


def _passed(stats: QueueStats) -> tuple[int, int]:
    return stats.copies, stats.unrouted


def _of_held(keyspace: Keyspace, look: StatsAndRecord, options: _Options) -> Flow[Finding]:
    """Say what holds the messages of a queue."""
    name, stats = look.record.queue, look.stats
    waits = f"{plural(stats.ready, 'message')} wait{'s' * (stats.ready == 1)} to be passed on"
    age = as_text((stats.oldest_ready_age or timedelta(0)) // timedelta(seconds=1) * 1000)
    place = f"({look.record.text('cursor')}"
    (page,) = yield steps.Read([("XRANGE", keyspace.key(name, "log"), place, "+", "COUNT", 1)])
    after = _after(options[name])
    wanted, size = list(after), 0
    if page:
        header, body = page[0][1]
        read, size = codec.unpack_header(header), len(body)
        wanted = list(Bindings(after).find(read.headers, read.deaths[0] if read.deaths else None))
    looks = yield from reading.look(keyspace, wanted)
    full = [to for to, stats in looks.items() if _refuses(options[to], stats, size)]
    if full:
        text = f"{waits}, the oldest for {age}: {first_few(full)} {'is' if len(full) == 1 else 'are'} full"
        return warning("queue", text, _ROOM, queue=name)
    advice = "a reaper passes them on: start one, or see in its log what is wrong"
    return warning("queue", f"{waits}, the oldest for {age}, and nobody does it", advice, queue=name)


def _refuses(options: QueueOptions | None, stats: QueueStats, size: int) -> bool:
    """Tell whether a queue has no room for a body of this size, and keeps what it has."""
    if options is None or options.overflow == "drop-head":
        return False
    length, most = options.number("max_length"), options.number("max_length_bytes")
    is_full = (length is not None and stats.ready >= length) or (most is not None and stats.ready_bytes + size > most)
    return is_full and not (options.overflow == "reject-publish-dlx" and options.target("maxlen"))
