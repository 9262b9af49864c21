"""`rqttl peek`: the messages of a queue, left as they are."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import zip_longest

import click

from rqttl import text
from rqttl.cli.common import messages, output, terminal
from rqttl.cli.common.params import json_flag, limit_option, queue_argument, utc_flag
from rqttl.cli.common.settings import Settings, connecting
from rqttl.inspector import message_view
from rqttl.types import MessageView
from rqttl.units import as_size

COLUMNS = ("state", "age", "expires", ">deliv.", ">size", "id")
#: Cells of a column at most, on a terminal. A longer value is folded.
_WIDEST = (20, 13, 13, 6, 7)
_WIDEST_UTC = (13, *_WIDEST[1:])
_GAP = 2
#: Cells of a body without a terminal.
_BODY = 200


@click.command(epilog="\b\nExample: rqttl peek orders --limit 50")
@queue_argument
@click.option("--after", metavar="SEQUENCE", help="Begin after this message, for the next page.")
@limit_option(20, "Number of messages at most.")
@utc_flag
@json_flag
@connecting
def peek(queue: str, after: str | None, limit: int, utc: bool, as_json: bool, settings: Settings) -> None:
    """Look at messages in order, and leave them as they are.

    The list has the messages of all states, each with the beginning of
    its body, its number of deliveries, and the reason of its last failure. The
    sequence follows the id in brackets if it is another. Expired messages are
    left out, also before a sweep has removed them.
    """
    with settings.using() as broker:
        page = broker.queue(queue).peek(limit + 1, after)  # one more shows that the list goes on
        now = broker.server_time()
    listed = page[:limit]
    if as_json:
        output.answer_json([message_view.to_json(message) for message in listed])
    elif listed:
        for line in _lines(listed, now, utc=utc):
            output.answer(line)
    if not listed:
        output.note(f"no more messages in {queue}" if after else f"{queue} is empty")
    if len(page) > limit:
        output.note(f"there are more: --after {listed[-1].sequence}")


def _lines(listed: Sequence[MessageView], now: datetime, *, utc: bool) -> Iterator[str]:
    """The lines of a table. A body, and the description of a failure, has a line of its own below its message."""
    columns = ("state", "enqueued" if utc else "age", *COLUMNS[2:])
    rows = [_cells(message, now, utc=utc) for message in listed]
    head = [column.removeprefix(">") for column in columns]
    total = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    widths = [max(map(len, cells)) for cells in zip(head, *rows, strict=True)]
    if total is not None:
        widths = [min(pair) for pair in zip(widths, _WIDEST_UTC if utc else _WIDEST, strict=False)]
        widths.append(max(total - sum(widths) - _GAP * len(widths), 8))
    right = [column[0] == ">" for column in columns]
    yield from _row_lines(head, widths, right)
    yield "─" * min(sum(widths) + _GAP * (len(widths) - 1), total or 80)
    for message, cells in zip(listed, rows, strict=True):
        yield from _row_lines(cells, widths, right)
        below = [message_view.body_text(message, 4 * (total or _BODY))]
        if message.description:
            below.append(f"last failure: {text.escape(message.description, 4 * (total or _BODY))}")
        for line in below:
            yield "  " + terminal.truncate(line, (total or _BODY) - 2)


def _cells(message: MessageView, now: datetime, *, utc: bool) -> list[str]:
    return [
        messages.format_state(message, now, utc=utc),
        text.format_time(message.enqueued_at, now, utc=True) if utc else text.format_age(now - message.enqueued_at),
        text.format_time(message.expires_at, now, utc=utc),
        text.format_count(message.delivery_count),
        as_size(len(message.body)),
        text.escape(message.id) + (f" ({message.sequence})" if message.id != message.sequence else ""),
    ]


def _row_lines(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> Iterator[str]:
    """The lines of one row."""
    columns = [terminal.wrap(cell, width) for cell, width in zip(cells, widths, strict=True)]
    for parts in zip_longest(*columns, fillvalue=""):
        padded = [
            part.rjust(width) if to_right else part.ljust(width)
            for part, width, to_right in zip(parts, widths, right, strict=True)
        ]
        yield (" " * _GAP).join(padded).rstrip()
