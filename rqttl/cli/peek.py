"""`rqttl peek`: look at the messages of a queue without touching them."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import zip_longest

import click

from rqttl.cli.common import messages, output, text
from rqttl.cli.common.settings import Settings, connecting, json_flag, queue_argument, utc_flag
from rqttl.types import Peeked

COLUMNS = ("state", "age", "expires", ">deliv.", ">size", "id")
#: Cells that a column takes at most on a terminal; there longer values are folded.
_WIDEST = (20, 13, 13, 6, 7)
_WIDEST_UTC = (13, *_WIDEST[1:])
_GAP = 2
#: Cells of a body where nobody reads it on a terminal.
_BODY = 200


@click.command(epilog="\b\nExample: rqttl peek orders --limit 50")
@queue_argument
@click.option("--after", metavar="SEQUENCE", help="Begin after this message; for the next page.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=20, show_default=True, metavar="N", help="How many at most."
)
@utc_flag
@json_flag
@connecting
def peek(queue: str, after: str | None, limit: int, utc: bool, as_json: bool, settings: Settings) -> None:
    """Look at messages in order, without touching them.

    Ready, leased and delayed ones, each with the beginning of its body and why
    its last delivery failed; how often it was delivered, and what it was stored
    under (`sequence`) where its id is another. Expired ones that no sweep has
    met yet are left out.
    """
    with settings.using() as broker:
        # one more, to know whether there are more
        found = broker.queue(queue).peek(limit + 1, after)
        now = broker.time()
    shown = found[:limit]
    if as_json:
        output.answer_json([messages.facts(one) for one in shown])
    elif shown:
        for line in _lines(shown, now, utc=utc):
            output.answer(line)
    if not shown:
        output.note(f"no more messages in {queue}" if after else f"{queue} is empty")
    if len(found) > limit:
        output.note(f"there are more: --after {shown[-1].sequence}")


def _lines(shown: Sequence[Peeked], now: datetime, *, utc: bool) -> Iterator[str]:
    """A table in which each message has its body on a line of its own, and so the description of its last failure."""
    columns = ("state", "enqueued" if utc else "age", *COLUMNS[2:])
    rows = [_cells(one, now, utc=utc) for one in shown]
    head = [column.removeprefix(">") for column in columns]
    total = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    widths = [max(map(len, cells)) for cells in zip(head, *rows, strict=True)]
    if total is not None:
        widths = [min(pair) for pair in zip(widths, _WIDEST_UTC if utc else _WIDEST, strict=False)]
        widths.append(max(total - sum(widths) - _GAP * len(widths), 8))
    right = [column[0] == ">" for column in columns]
    yield from _folded(head, widths, right)
    yield "─" * min(sum(widths) + _GAP * (len(widths) - 1), total or 80)
    for one, cells in zip(shown, rows, strict=True):
        yield from _folded(cells, widths, right)
        below = [messages.body(one, 4 * (total or _BODY))]
        if one.description:
            below.append(f"last failure: {text.visible(one.description, 4 * (total or _BODY))}")
        for line in below:
            yield "  " + text.fitted(line, (total or _BODY) - 2)


def _cells(one: Peeked, now: datetime, *, utc: bool) -> list[str]:
    return [
        messages.state(one, now, utc=utc),
        text.moment(one.enqueued_at, now, utc=True) if utc else text.age(now - one.enqueued_at),
        text.moment(one.expires_at, now, utc=utc),
        text.count(one.delivery_count),
        text.size(len(one.body)),
        text.visible(one.id) if one.id == one.sequence else f"{text.visible(one.id)} ({one.sequence})",
    ]


def _folded(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> Iterator[str]:
    """The lines of one row."""
    folded = [text.folded(cell, width) for cell, width in zip(cells, widths, strict=True)]
    for parts in zip_longest(*folded, fillvalue=""):
        padded = [
            part.rjust(width) if to_right else part.ljust(width)
            for part, width, to_right in zip(parts, widths, right, strict=True)
        ]
        yield (" " * _GAP).join(padded).rstrip()
