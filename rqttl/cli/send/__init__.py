"""`rqttl send`: store messages in a queue, and print exact counts of the outcomes."""

from __future__ import annotations

import io
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from rqttl import text
from rqttl.cli.common import errors, output
from rqttl.cli.common.errors import Refused
from rqttl.cli.common.output import Progress
from rqttl.cli.common.params import (
    DURATION,
    INSTANT,
    MESSAGE_ID,
    PAIR,
    flag,
    json_flag,
    naming_flag,
    queue_argument,
    with_flags,
)
from rqttl.cli.common.running import Interrupted, SignalGuard, SignalReceived
from rqttl.cli.common.settings import Settings, connecting
from rqttl.cli.send.json_lines import Defaults
from rqttl.cli.send.sources import Batch, InvalidLine, Source, arguments, stream
from rqttl.errors import InvalidInput, MessageTooLarge, OutcomeUnknown, QueueFull
from rqttl.types import Message, Receipt

if TYPE_CHECKING:
    from rqttl.queue import Queue


@dataclass
class Outcomes:
    """The outcomes of the messages so far. `last` is the end of that part of the input, in lines."""

    stored: int = 0
    #: The stored messages that were dead on arrival.
    expired: int = 0
    duplicates: int = 0
    #: Refused messages by the limit and its value: `("max_length", 10)`.
    refused: Counter[tuple[str, int]] = field(default_factory=Counter)
    unknown: int = 0
    ids: list[str] = field(default_factory=list)
    last: int = 0

    def count(self, results: Sequence[Receipt | QueueFull], *, keep_ids: bool) -> None:
        """Add the results of a call."""
        for result in results:
            if isinstance(result, QueueFull):
                self.refused[result.limit, result.value] += 1
                continue
            self.stored += not result.duplicate
            self.expired += result.expired
            self.duplicates += result.duplicate
            if keep_ids:
                self.ids.append(result.id)

    def reasons(self) -> list[tuple[int, str]]:
        """The numbers of refused messages with the limits, for people."""
        return [(count, f"{flag(limit)} is {value:,}") for (limit, value), count in self.refused.items()]


@click.command(epilog="\b\nExample: rqttl send orders hello --ttl 30s --header region=eu")
@queue_argument
@click.argument("body", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--file",
    "path",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    metavar="PATH",
    help="Take the messages from a file; - is stdin.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["lines", "json", "body"]),
    default="lines",
    show_default=True,
    help="lines: each line is a body; json: each is a message in JSON; body: the whole input is one body.",
)
@click.option("--ttl", type=DURATION, metavar="TIME", help="Lifetime of the messages.")
@click.option(
    "--expires-at", type=INSTANT, metavar="WHEN", help="End of their lifetime: 2026-11-21T10:00:00Z, or ms since 1970."
)
@click.option("--header", "headers", multiple=True, type=PAIR, metavar="KEY=VALUE", help="A header; may be repeated.")
@click.option("--id", "id", type=MESSAGE_ID, metavar="ID", help="The id of the message, for one BODY or --format body.")
@click.option("--content-type", metavar="TYPE", help="The type of the bodies, such as application/json.")
@json_flag
@connecting
def send(
    queue: str, body: Sequence[str], path: str | None, form: str, as_json: bool, settings: Settings, **fields: Any
) -> None:
    """Store messages in a queue.

    Each BODY is a message. Without a BODY each line of stdin or of a file is a message, byte for byte (the carriage
    return of Windows stays). With --format body the whole file or stdin is one message, such as a picture.

    With --format json a line is an object with body or body_base64, and
    optionally headers, id, ttl, expires_at, content_type. Such lines come from
    `rqttl receive --json`, too. A text is stored as UTF-8, any other body as
    msgpack (as JSON if content_type is JSON). A field overrides the flag.

    The command prints the number of stored messages, and how many of them were
    dead on arrival. If a message is refused the exit code is 3.
    """
    if body and path is not None:
        raise click.UsageError("--file: give BODY or --file, not both")
    if body and form != "lines":
        raise click.UsageError(f"--format: a BODY is sent as it is; --format {form} is for stdin and --file")
    if fields["id"] is not None and len(body) != 1 and form != "body":
        raise click.UsageError("--id: give exactly one body with it")
    if fields["ttl"] is not None and fields["expires_at"] is not None:
        raise click.UsageError("--ttl: give --ttl or --expires-at, not both")
    defaults = Defaults(**{**fields, "headers": dict(fields["headers"]) or None})
    defaults.check()
    with settings.using() as broker, ExitStack() as stack:
        target = broker.queue(queue)
        longest = target.options().number("max_message_bytes") or 0
        if body:
            source = arguments(body, defaults)
        elif path is None or path == "-":
            source = stream(sys.stdin.buffer, "stdin", form, longest, defaults)
        else:
            source = stream(stack.enter_context(io.FileIO(path)), path, form, longest, defaults)
        _send_and_print(target, source, as_json)


def _send_and_print(queue: Queue, source: Source, as_json: bool) -> None:
    """Send all messages, then print the outcomes, also after an error."""
    outcomes = Outcomes()
    with SignalGuard() as guard:
        try:
            with Progress(source.total, visible=not source.interactive) as progress:
                for batch in source.batches:
                    with guard.deferred():
                        _store(queue, batch, outcomes, guard, keep_ids=not source.name)
                        outcomes.last = batch.last
                    progress.advance(batch.size, len(batch.messages))
        except InvalidLine as invalid:
            # a line of JSON has fields of its own; elsewhere a flag has the invalid value
            with_names = with_flags if source.form == "json" else naming_flag
            line = f"{source.place(invalid.number)}{with_names(str(invalid.error))}"
            code = errors.REFUSED if isinstance(invalid.error, MessageTooLarge) else errors.USAGE
            raise Refused(line, invalid.error.code, code) from invalid
        except SignalReceived as received:
            raise Interrupted(received, source.after(outcomes.last)) from received
        finally:
            guard.finish()
            with suppress(BrokenPipeError):  # an answer without a reader must not hide the error
                _print_result(queue.name, outcomes, as_json)
    if outcomes.refused:
        refusals = ", ".join(f"{text.plural(n, 'message')} refused ({reason})" for n, reason in outcomes.reasons())
        raise Refused(f"queue {queue.name!r} is full: {refusals}", QueueFull.code)


def _store(queue: Queue, batch: Batch, outcomes: Outcomes, guard: SignalGuard, *, keep_ids: bool) -> None:
    def enqueue(messages: Sequence[Message | bytes]) -> None:
        try:
            results = guard.call(lambda: queue.enqueue_many(messages))
        except (OutcomeUnknown, SignalReceived):
            outcomes.unknown += len(messages)
            raise
        outcomes.count(results, keep_ids=keep_ids)

    try:
        enqueue(batch.messages)
    except InvalidInput:
        # nothing of the batch was stored; one by one, the valid messages are, and the invalid one has a number
        for number, message in zip(batch.numbers, batch.messages, strict=True):
            try:
                enqueue([message])
            except InvalidInput as error:
                raise InvalidLine(number, error) from error
            outcomes.last = number


def _print_result(queue: str, outcomes: Outcomes, as_json: bool) -> None:
    if as_json:
        refused_by: Counter[str] = Counter()
        for (limit, _), count in outcomes.refused.items():
            refused_by[limit] += count
        document = {
            "queue": queue,
            "stored": outcomes.stored,
            "expired": outcomes.expired,
            "duplicates": outcomes.duplicates,
            "refused": outcomes.refused.total(),
            "refused_by": refused_by,
            "unknown": outcomes.unknown,
        }
        output.answer_json({**document, "ids": outcomes.ids} if outcomes.ids else document)
        return
    line = f"stored {text.plural(outcomes.stored, 'message')} in {text.escape(queue)}"
    if outcomes.expired:
        many = f"{text.format_count(outcomes.expired)} of them already expired"
        line += f", {'already expired' if outcomes.stored == 1 else many}"
    if outcomes.duplicates:
        line += f", {text.plural(outcomes.duplicates, 'duplicate')} left out"
    if outcomes.refused:
        line += "; refused " + ", ".join(f"{text.format_count(n)} ({reason})" for n, reason in outcomes.reasons())
    if outcomes.unknown:
        line += f"; not known: {text.plural(outcomes.unknown, 'message')}"
    output.answer(line)
