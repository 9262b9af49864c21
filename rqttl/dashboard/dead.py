"""The pages of dead letters: which queues hold them, and what died there and why."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from shlex import quote
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from rqttl import text
from rqttl.dashboard import charts
from rqttl.dashboard.access import Trouble
from rqttl.dashboard.sampler import paged
from rqttl.dashboard.visit import looking_at_messages, quoted
from rqttl.inspector.dead_letters import WORDS, count_times, count_within, read_filter
from rqttl.inspector.queues import deaths, outgoing
from rqttl.options import REASONS

if TYPE_CHECKING:
    from starlette.responses import Response

    from rqttl.dashboard.sampler import QueueRow, Sample
    from rqttl.dashboard.visit import Visit

#: The messages that a page reads at most, for how many seconds, and the groups that it shows.
MOST, SECONDS, GROUPS = 20_000, 2.0, 100
#: The queues with the most deaths, whose dead letters are listed; the sources of each that are shown.
DYING, SOURCES = 1_000, 5
Word = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Holder:
    """A queue that holds dead letters. `sources` have the deaths by reason of the queues where they died."""

    name: str
    messages: int
    oldest: timedelta | None
    sources: Sequence[tuple[str, Mapping[str, int]]]


def dead(visit: Visit) -> Response:
    """`/dead`: the queues that hold dead letters, with where and why those died."""
    sample = visit.dashboard.sampler.sample
    holders, empty = holders_of(sample)
    further = sample.orders.get("dead", ())[DYING:][:1]
    return visit.page(
        "dead.html",
        title="Dead letters",
        command="rqttl dead report QUEUE",
        live=True,
        listed=paged(holders, visit.number("page")),
        empty=empty,
        shown=SOURCES,
        cut=any(deaths(sample.queues[name].stats) for name in further),
        most=DYING,
        dropped=sum(sample.total.stats.dropped.values()),
        outgoing=outgoing(sample.total.stats),
    )


def targets_of(row: QueueRow | None) -> dict[str, str]:
    """The queues to which the dead letters of a queue go, by reason, as far as is known."""
    return {reason: target for reason, target in zip(REASONS, row.targets, strict=False) if target} if row else {}


def holders_of(sample: Sample) -> tuple[list[Holder], int]:
    """The queues that hold dead letters, the fullest first, and the number of those that hold none now."""
    sources: dict[str, list[tuple[str, dict[str, int]]]] = defaultdict(list)
    for name in sample.orders.get("dead", ())[:DYING]:
        row, died = sample.queues.get(name), defaultdict[str, dict[str, int]](dict)
        for reason, target in targets_of(row).items():
            if row and row.stats.deaths.get(reason):
                died[target][reason] = row.stats.deaths[reason]
        for target, reasons in died.items():
            sources[target].append((name, reasons))
    holders = []
    for name, found in sources.items():
        if (row := sample.queues.get(name)) and (messages := row.stats.depth - row.stats.scheduled):
            found.sort(key=lambda one: (-sum(one[1].values()), one[0]))
            holders.append(Holder(name, messages, row.stats.oldest_ready_age, found))
    holders.sort(key=lambda one: (-one.messages, one.name))
    return holders, len(sources) - len(holders)


def queue(visit: Visit) -> Response:
    """`/dead/queue`: dead letters of a queue by source, reason and error, and by hours; all, or those of a filter."""
    handle, bodies, sample = visit.queue(), visit.dashboard.bodies, visit.dashboard.sampler.sample
    words = words_of(visit)
    if not bodies and (hidden := sorted({word for word, _ in words if word in ("error", "header")})):
        raise Trouble(403, f"this dashboard hides headers and descriptions: it has no filter by {hidden[0]}")
    wanted, broker = read_filter(words), visit.dashboard.sampler.broker
    stats, now = handle.stats(sweep=False), broker.server_time()
    with looking_at_messages():
        found = count_within(handle, wanted, now, errors=bodies, most=MOST, seconds=SECONDS)
    groups = found.counts.ordered()
    unit, hours = count_times(found.counts.hours)
    return visit.page(
        "dead_queue.html",
        title=f"Dead letters in {handle.name}",
        command=command_of(handle.name, words),
        name=handle.name,
        now=now,
        depth=stats.depth - stats.scheduled,
        found=found,
        groups=groups[:GROUPS],
        others=groups[GROUPS:],
        others_count=sum(group.count for group in groups[GROUPS:]),
        unit=unit,
        bars=charts.bars(dict(hours)),
        words=words,
        # for a field of a form: all words of the filter in one value, as `parse_qsl` and `read_filter` read it
        filter=urlencode(words),
        values={word: [_typed(value) for name, value in words if name == word and value] for word in WORDS},
        reasons=REASONS,
        bodies=bodies,
        address=lambda *more: _address(visit, handle.name, words, more),
        targets=sorted({*targets_of(sample.row(handle.name)).values()} - {handle.name}),
    )


def words_of(visit: Visit) -> list[Word]:
    """The words of the filter in a query. A field of the form that was left empty is none; `no-error` is its own."""
    values = visit.request.query_params
    words = [(word, value) for word in WORDS for value in values.getlist(word) if value]
    return [*words, ("error", "")] if values.get("no-error") else words


def _typed(value: str) -> str:
    """A value for a field of a form, where `*` stands for what cannot be typed."""
    return "".join(one if text.escape(one) == one else "*" for one in value)


def _address(visit: Visit, name: str, words: Sequence[Word], more: Sequence[Word]) -> str:
    """The address of this page with further words, which take the place of those of the same name."""
    kept = [one for one in words if one[0] not in dict(more)]
    query = [("no-error", "1") if one == ("error", "") else one for one in [*kept, *more]]
    return f"{visit.link('/dead/queue')}?{urlencode([('name', name), *query])}"


def command_of(name: str, words: Sequence[Word]) -> str:
    """The command that shows the same."""
    flags = "".join(f" --{word} {quote(value)}" for word, value in words if word != "id")
    if ids := [value for word, value in words if word == "id"]:
        return f"rqttl dead show {name}{flags} {quoted(*ids)}"
    return f"rqttl dead report {name} --by error{flags}"
