"""`rqttl peek` and `rqttl message show`: look at messages, and leave them as they are."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import TYPE_CHECKING, get_args

import click

from rqttl import text
from rqttl.cli.common import errors, output, params
from rqttl.cli.common.settings import Settings, connecting
from rqttl.inspector import message_view
from rqttl.inspector.queues import consumer_to_json, living_consumers
from rqttl.protocol import codec
from rqttl.types import MessageView, State
from rqttl.units import as_size

if TYPE_CHECKING:
    from rqttl.queue import Queue

#: Characters of a body in a list, and sequences that an error names.
BODY, NAMED = 200, 5


@click.command(epilog="\b\nExample: rqttl peek orders --limit 50")
@params.queue_argument
@click.option("--after", metavar="SEQUENCE", help="Begin after this message, for the next page.")
@params.limit_option(20, "Number of messages at most.")
@click.option("--state", type=click.Choice(get_args(State)), help="Only messages in this state.")
@params.utc_flag
@params.json_flag
@connecting
def peek(
    queue: str, after: str | None, limit: int, state: State | None, utc: bool, as_json: bool, settings: Settings
) -> None:
    """List messages in order, and leave them as they are.

    The list has the messages that are in the queue, each with the beginning of
    its body, its number of deliveries, and the reason of its last failure. The
    sequence follows the id in brackets if it is another. Expired messages are
    left out, also before a sweep has removed them. Scheduled messages are listed
    with --state scheduled, the next one first.
    """
    with settings.using() as broker:
        target = broker.queue(queue)
        page = target.peek(limit + 1, after, state=state)  # one more shows that the list goes on
        now = broker.server_time()
        scheduled = 0 if page or after or state else target.stats(sweep=False).scheduled
    listed = page[:limit]
    if as_json:
        output.answer_json([message_view.to_json(message) for message in listed])
    else:
        for message in listed:
            _print_lines(message, now, utc=utc)
    if not listed:
        messages = f"{state} messages" if state else "messages"
        if scheduled:
            output.note(f"{queue} has only {text.plural(scheduled, 'scheduled message')}: --state scheduled lists them")
        else:
            output.note(f"no {'more ' * bool(after)}{messages} in {queue}" if after or state else f"{queue} is empty")
    if len(page) > limit:
        output.note(f"there are more: --after {listed[-1].sequence}")


def _print_lines(message: MessageView, now: datetime, *, utc: bool) -> None:
    """Print the id and the facts; below it the beginning of the body, and the reason of the last failure."""
    sequence = f" ({message.sequence})" if message.id != message.sequence else ""
    facts = [
        message_view.state_text(message, now, utc=utc),
        f"enqueued {text.format_time(message.enqueued_at, now, utc=utc)}",
        *([f"expires {text.format_time(message.expires_at, now, utc=utc)}"] if message.expires_at else []),
        *([f"delivered {message.delivery_count:,}×"] if message.delivery_count else []),
        as_size(len(message.body)),
    ]
    output.answer_sentence(f"{text.escape(message.id)}{sequence}: {', '.join(facts)}")
    output.answer_cut(f"  {message_view.body_text(message, BODY)}")
    if message.description:
        output.answer_cut(f"  last failure: {text.escape(message.description, BODY)}")


@click.group(epilog="\b\nExample: rqttl message show orders order-17")
def message() -> None:
    """Look at one message."""


@message.command(epilog="\b\nExample: rqttl message show orders order-17")
@params.queue_argument
@click.argument("id", type=params.MESSAGE_ID)
@click.option("--full", is_flag=True, help="Do not cut the body and the headers.")
@click.option("--raw", is_flag=True, help="Write only the body, byte for byte.")
@params.utc_flag
@params.json_flag
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
        consumers = living_consumers(broker, queue) if message.state == "leased" and not raw else None
    holder = message_view.holder(message, consumers or ())
    if raw:
        sys.stdout.buffer.write(message.body)
    elif as_json:
        held = {"held_by": holder and consumer_to_json(holder)} if message.state == "leased" else {}
        output.answer_json(message_view.to_json(message) | held)
    else:
        name = None if consumers is None else message_view.holder_text(message, holder, now)
        _print_message(message, name, now, None if full else text.LONGEST, utc=utc)


def _find(queue: Queue, id: str) -> MessageView:
    """The message with this id or sequence. Raises `errors.Refused` if there is none, or if there are several."""
    if codec.is_sequence(id):
        page = queue.peek(1, codec.sequence_before(id))
        if page and page[0].sequence == id:
            return page[0]
    # scheduled ones first: one that arrives meanwhile is not missed
    matches = [message for message in output.read_messages(queue, "scheduled") if id in (message.id, message.sequence)]
    matches += [message for message in output.read_messages(queue) if message.id == id]
    if not matches:
        hint = f"`rqttl peek {queue.name}` shows those it holds"
        raise errors.Refused(f"queue {queue.name!r} holds no message {id!r}: {hint}", "not_found")
    if len(matches) > 1:
        named = ", ".join(match.sequence for match in matches[:NAMED]) + ", …" * (len(matches) > NAMED)
        count = text.format_count(len(matches))
        raise errors.Refused(f"{count} messages have the id {id!r}; name one by its sequence: {named}", "ambiguous")
    return matches[0]


def _print_message(message: MessageView, held: str | None, now: datetime, longest: int | None, *, utc: bool) -> None:
    output.print_pairs(
        [
            ("id", text.escape(message.id)),
            ("sequence", message.sequence),
            ("queue", message.queue),
            ("state", message_view.state_text(message, now, utc=utc)),
            *([("held by", held)] if held else []),
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
        rows = [
            [
                text.format_time(death.last_at, now, utc=utc),
                death.queue,
                death.reason,
                text.format_count(death.count),
                text.format_count(death.delivery_count),
                text.escape(death.description or "-", longest),
            ]
            for death in message.deaths
        ]
        output.print_table(["died", "in queue", "of", ">times", ">deliv.", "description"], rows)
    output.answer("")
    for line in _body_lines(message, longest) if message.body else ["(no body)"]:
        output.answer_indented(line)


def _body_lines(message: MessageView, longest: int | None) -> list[str]:
    """The lines of a body; a body without a newline is one line."""
    value = message_view.body_value(message)
    if not isinstance(value, bytes) or b"\n" not in value[:longest]:
        return [message_view.body_text(message, longest)]
    lines = value[:longest].removesuffix(b"\n").split(b"\n")
    escaped = [text.escape(line.removesuffix(b"\r")) for line in lines]
    return escaped if longest is None or len(value) <= longest else [*escaped, f"… ({len(value):,} bytes)"]
