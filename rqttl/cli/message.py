"""`rqttl peek` and `rqttl message`: look at messages, and act on single ones."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

import click

from rqttl import text
from rqttl.cli.common import errors, output, params
from rqttl.cli.common.settings import Settings, connecting
from rqttl.inspector import message_view
from rqttl.inspector.queues import consumer_to_json, living_consumers
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
    with settings.looking() as broker:
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
    """Look at one message, or act on it.

    The commands but `show` act on all messages with an id, in any state but
    leased. If a consumer has one of them, nothing is done. Those that end a
    message ask first.
    """


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
    with settings.looking() as broker:
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
    matches = queue.messages(id)
    if not matches:
        raise _missing(queue.name, id)
    if not matches[0].complete:
        output.note("more than 5,000 messages are leased or delayed: some of them could not be looked at")
    if len(matches) > 1:
        named = ", ".join(match.sequence for match in matches[:NAMED]) + ", …" * (len(matches) > NAMED)
        count = text.format_count(len(matches))
        raise errors.Refused(f"{count} messages have the id {id!r}; name one by its sequence: {named}", "ambiguous")
    return matches[0]


def _missing(queue: str, id: str) -> errors.Refused:
    hint = f"`rqttl peek {queue}` shows those it holds"
    return errors.Refused(f"queue {queue!r} holds no message {id!r}: {hint}", "not_found")


def _print_message(message: MessageView, held: str | None, now: datetime, longest: int | None, *, utc: bool) -> None:
    headers = [
        (f"header {text.escape(name, longest)}", message_view.header_text(value, longest))
        for name, value in message.headers.items()
    ]
    output.print_pairs([*message_view.facts(message, held, now, longest, utc=utc), *headers])
    if message.deaths:
        output.answer("")
        rows = []
        for death in message.deaths:
            counts = map(text.format_count, (death.count, death.delivery_count))
            why = text.escape(death.description or "-", longest)
            rows.append([text.format_time(death.last_at, now, utc=utc), death.queue, death.reason, *counts, why])
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


# Acting on a message

#: Gives a command on messages with an id its arguments and options.
_acting = params.with_options(
    params.queue_argument,
    click.argument("id", type=params.MESSAGE_ID),
    params.dry_run_flag,
    params.json_flag,
    connecting,
)


def _act(
    method: str,
    verb: str,
    done: str,
    *more: Any,
    queue: str,
    id: str,
    dry_run: bool,
    as_json: bool,
    settings: Settings,
    yes: bool = True,
) -> None:
    """Call a method of the queue, and print the number of messages. `verb` and `done` are words for it in JSON."""
    with settings.using() as broker:
        call: Callable[..., int] = partial(getattr(broker.queue(queue), method), id, *more)
        if not yes and not dry_run and (found := call(dry_run=True)):
            action, messages = verb.replace("_", "-").capitalize(), text.plural(found, "message")
            output.confirm(f"{action} {messages} of {queue} with the id {text.escape(id)}?")
        number = call(dry_run=dry_run)
    document = {"queue": queue, "id": id, f"would_{verb}" if dry_run else done: number}
    told = f"{'would be ' if dry_run else ''}{done.replace('_', '-')}"
    output.answer_either(document, f"{text.plural(number, 'message')} of {queue} {told}", as_json=as_json)
    if not number:
        raise _missing(queue, id)


@message.command(epilog="\b\nExample: rqttl message move orders order-17 parked --dry-run")
@_acting
@click.argument("to", type=params.QUEUE_NAME, shell_complete=params.complete_queues)
def move(to: str, **given: Any) -> None:
    """Move a message to the end of the queue TO.

    It keeps its id, headers, deaths and deadline: limits and TTL options of TO act.
    A scheduled message keeps its due time.
    """
    _act("move", "move", "moved", to, **given)


@message.command(epilog="\b\nExample: rqttl message delete orders order-17")
@params.yes_flag
@_acting
def delete(**given: Any) -> None:
    """Remove a message for good. Nothing is dead-lettered."""
    _act("delete_message", "delete", "deleted", **given)


@message.command(epilog="\b\nExample: rqttl message expire orders order-17")
@params.yes_flag
@_acting
def expire(**given: Any) -> None:
    """Let a message expire now, whatever its TTL.

    It goes to the dead-letter queue for expired messages, if there is one.
    """
    _act("expire", "expire", "expired", **given)


@message.command("dead-letter", epilog="\b\nExample: rqttl message dead-letter orders order-17 --description poison")
@click.option("--description", type=params.TEXT, metavar="TEXT", help="Why; it is kept with the dead letter.")
@params.yes_flag
@_acting
def dead_letter(description: str | None, **given: Any) -> None:
    """Reject a message.

    It goes to the dead-letter queue for rejected messages, if there is one.
    """
    _act("dead_letter", "dead_letter", "dead_lettered", description, **given)


@message.command(epilog="\b\nExample: rqttl message redeliver orders order-17")
@_acting
def redeliver(**given: Any) -> None:
    """Let a delayed or scheduled message wait no longer.

    A delayed one is ready in its old place; a scheduled one arrives at the end of
    the queue.
    """
    _act("redeliver_now", "redeliver", "redelivered", **given)
