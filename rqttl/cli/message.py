"""`rqttl message`: one message, with all its facts."""

from __future__ import annotations

import shutil
import sys
from datetime import datetime
from typing import TYPE_CHECKING

import click

from rqttl import text
from rqttl.cli.common import messages, output, terminal
from rqttl.cli.common.exits import Refused
from rqttl.cli.common.params import MESSAGE_ID, json_flag, queue_argument, utc_flag
from rqttl.cli.common.progress import read_messages
from rqttl.cli.common.settings import Settings, command_group, connecting
from rqttl.inspector import message_view
from rqttl.protocol import codec
from rqttl.types import MessageView
from rqttl.units import as_size

if TYPE_CHECKING:
    from rqttl.queue import Queue

#: Sequences that an error names.
_NAMED = 5


@command_group("rqttl message show orders order-17")
def message() -> None:
    """Look at one message."""


@message.command(epilog="\b\nExample: rqttl message show orders order-17")
@queue_argument
@click.argument("id", type=MESSAGE_ID)
@click.option("--full", is_flag=True, help="Do not cut the body and the headers.")
@click.option("--raw", is_flag=True, help="Write only the body, byte for byte.")
@utc_flag
@json_flag
@connecting
def show(queue: str, id: str, full: bool, raw: bool, utc: bool, as_json: bool, settings: Settings) -> None:
    """Show one message: state, headers, deaths, body.

    ID is its id, or the sequence that `rqttl peek` shows. To find an id the
    command reads the whole queue, page by page. It changes nothing.
    """
    if raw and (as_json or full or utc):
        raise click.UsageError("--raw writes only the body: give it without --json, --full and --utc")
    if raw and sys.stdout.isatty():
        raise click.UsageError("--raw would let the body act on this terminal: write it into a file or a pipe")
    with settings.using() as broker:
        message = _find(broker.queue(queue), id)
        now = broker.server_time()
    if raw:
        sys.stdout.buffer.write(message.body)
    elif as_json:
        output.answer_json(message_view.to_json(message))
    else:
        _print_message(message, now, None if full else text.LONGEST, utc=utc)


def _find(queue: Queue, id: str) -> MessageView:
    """The message with this id or sequence. Raises `Refused` if there is none, or if there are several."""
    matches = _matches(queue, id)
    if not matches:
        hint = f"`rqttl peek {queue.name}` shows those it holds"
        raise Refused(f"queue {queue.name!r} holds no message {id!r}: {hint}", "not_found")
    if len(matches) > 1:
        named = ", ".join(match.sequence for match in matches[:_NAMED]) + ", …" * (len(matches) > _NAMED)
        count = text.format_count(len(matches))
        raise Refused(f"{count} messages have the id {id!r}; name one by its sequence: {named}", "ambiguous")
    return matches[0]


def _matches(queue: Queue, id: str) -> list[MessageView]:
    if codec.is_sequence(id):
        page = queue.peek(1, codec.sequence_before(id))
        if page and page[0].sequence == id:
            return page
    return [message for message in read_messages(queue) if message.id == id]


def _print_message(message: MessageView, now: datetime, longest: int | None, *, utc: bool) -> None:
    output.print_pairs(
        [
            ("id", text.escape(message.id)),
            ("sequence", message.sequence),
            ("queue", message.queue),
            ("state", messages.format_state(message, now, utc=utc)),
            ("enqueued", text.format_time(message.enqueued_at, now, utc=utc)),
            ("expires", text.format_time(message.expires_at, now, utc=utc) if message.expires_at else "never"),
            ("deliveries", text.format_count(message.delivery_count)),
            *([("last failure", text.escape(message.description, longest))] if message.description else []),
            ("content type", text.escape(message.content_type)),
            ("size", as_size(len(message.body))),
            *(
                (f"header {text.escape(name, longest)}", message_view.header_text(value, longest))
                for name, value in message.headers.items()
            ),
        ]
    )
    if message.deaths:
        output.answer("")
        output.print_table(
            ["died", "in queue", "of", ">times", ">deliv.", "description"],
            [
                [
                    text.format_time(death.last_at, now, utc=utc),
                    death.queue,
                    death.reason,
                    text.format_count(death.count),
                    text.format_count(death.delivery_count),
                    text.escape(death.description or "-", longest),
                ]
                for death in message.deaths
            ],
        )
    output.answer("")
    cells = shutil.get_terminal_size().columns - 2 if sys.stdout.isatty() else None
    for line in messages.body_lines(message, longest) if message.body else ("(no body)",):
        for piece in terminal.chunk(line, cells):
            output.answer(f"  {piece}".rstrip())
