"""`rqttl message`: one message, with everything that is known of it."""

from __future__ import annotations

import shutil
import sys
from datetime import datetime
from typing import TYPE_CHECKING

import click

from rqttl import codec
from rqttl.cli.common import messages, output, text
from rqttl.cli.common.errors import Refused
from rqttl.cli.common.settings import Settings, connecting, help_alone, json_flag, queue_argument, utc_flag
from rqttl.cli.dead.filters import read
from rqttl.types import Peeked

if TYPE_CHECKING:
    from rqttl.queue import Queue

#: Sequences that an error names at most.
_NAMED = 5


@click.group(invoke_without_command=True, epilog="\b\nExample: rqttl message show orders order-17")
@click.pass_context
def message(context: click.Context) -> None:
    """Look at one message."""
    help_alone(context)


@message.command(epilog="\b\nExample: rqttl message show orders order-17")
@queue_argument
@click.argument("id")
@click.option("--full", is_flag=True, help="Do not cut the body and the headers.")
@click.option("--raw", is_flag=True, help="Write the body alone, byte for byte.")
@utc_flag
@json_flag
@connecting
def show(queue: str, id: str, full: bool, raw: bool, utc: bool, as_json: bool, settings: Settings) -> None:
    """Show one message: state, headers, deaths, body.

    ID is its id, or the sequence that `rqttl peek` shows. By its id it is
    looked for in the whole queue, page by page; nothing is changed.
    """
    if raw and (as_json or full or utc):
        raise click.UsageError("--raw writes the body alone: give it without --json, --full and --utc")
    if raw and sys.stdout.isatty():
        raise click.UsageError("--raw would let the body act on this terminal: write it into a file or a pipe")
    with settings.using() as broker:
        one = _only(broker.queue(queue), id)
        now = broker.time()
    if raw:
        sys.stdout.buffer.write(one.body)
    elif as_json:
        output.answer_json(messages.facts(one))
    else:
        _tell(one, now, None if full else text.LONGEST, utc=utc)


def _only(queue: Queue, id: str) -> Peeked:
    """The message that is meant. Refused if there is none, or if there are several."""
    found = _found(queue, id)
    if not found:
        raise Refused(f"queue {queue.name!r} holds no message {id!r}: `rqttl peek {queue.name}` shows those it holds",
                      "not_found")  # fmt: skip
    if len(found) > 1:
        named = ", ".join(one.sequence for one in found[:_NAMED]) + ", …" * (len(found) > _NAMED)
        raise Refused(f"{text.count(len(found))} messages have the id {id!r}; name one by its sequence: {named}",
                      "ambiguous")  # fmt: skip
    return found[0]


def _found(queue: Queue, id: str) -> list[Peeked]:
    if codec.is_sequence(id):
        there = queue.peek(1, codec.sequence_before(id))
        if there and there[0].sequence == id:
            return there
    return [one for one in read(queue) if one.id == id]


def _tell(one: Peeked, now: datetime, longest: int | None, *, utc: bool) -> None:
    output.facts([
        ("id", text.visible(one.id)),
        ("sequence", one.sequence),
        ("queue", one.queue),
        ("state", messages.state(one, now, utc=utc)),
        ("enqueued", text.moment(one.enqueued_at, now, utc=utc)),
        ("expires", text.moment(one.expires_at, now, utc=utc) if one.expires_at else "never"),
        ("deliveries", text.count(one.delivery_count)),
        *([("last failure", text.visible(one.description, longest))] if one.description else []),
        ("content type", text.visible(one.content_type)),
        ("size", text.size(len(one.body))),
        *((f"header {text.visible(name, longest)}", messages.header(value, longest))
          for name, value in one.headers.items()),
    ])  # fmt: skip
    if one.deaths:
        output.answer("")
        output.table(
            ["died", "in queue", "of", ">times", ">deliv.", "description"],
            [[text.moment(death.last_at, now, utc=utc), death.queue, death.reason, text.count(death.count),
              text.count(death.delivery_count), text.visible(death.description or "-", longest)]
             for death in one.deaths],
        )  # fmt: skip
    output.answer("")
    cells = shutil.get_terminal_size().columns - 2 if sys.stdout.isatty() else None
    for line in messages.body_lines(one, longest) if one.body else ("(no body)",):
        for part in text.chopped(line, cells):
            output.answer(f"  {part}".rstrip())
