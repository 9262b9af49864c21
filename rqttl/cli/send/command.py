"""`rqttl send`: put messages into a queue, and say exactly what became of them."""

from __future__ import annotations

import io
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from rqttl.cli.common import errors, output, text
from rqttl.cli.common.errors import Refused
from rqttl.cli.common.instants import read_instant
from rqttl.cli.common.option_text import flag, naming_flag, with_flags
from rqttl.cli.common.progress import Progress
from rqttl.cli.common.settings import Settings, connecting, json_flag, queue_argument, read_duration
from rqttl.cli.common.signals import Stop, Stopped, Stopping
from rqttl.cli.send.json_lines import Defaults
from rqttl.cli.send.sources import Batch, Misread, Source, Stream, arguments, stream, whole
from rqttl.errors import InvalidInput, MessageTooLarge, OutcomeUnknown, QueueFull
from rqttl.types import Message, Receipt

if TYPE_CHECKING:
    from rqttl.queue import Queue


class WrongMessage(Refused):
    """What stands at a place of the input is no message; nothing from there on was sent."""

    exit_code = errors.USAGE


@dataclass
class Sent:
    """What became of the messages so far, and how much of the input that is."""

    stored: int = 0
    #: How many of these were dead on arrival.
    expired: int = 0
    duplicates: int = 0
    #: By the limit that refused them, and its value: `("max_length", 10)`.
    refused: Counter[tuple[str, int]] = field(default_factory=Counter)
    unknown: int = 0
    ids: list[str] = field(default_factory=list)
    last: int = 0

    def count(self, results: Sequence[Receipt | QueueFull], *, keep_ids: bool) -> None:
        """Add what a call answered."""
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
        """The number of refused messages and the limits that refused them, for people."""
        return [(count, f"{flag(limit)} is {value:,}") for (limit, value), count in self.refused.items()]


@click.command(epilog="\b\nExample: rqttl send orders hello --ttl 30s --header region=eu")
@queue_argument
@click.argument("body", nargs=-1, type=click.UNPROCESSED)
@click.option("--file", "path", type=click.Path(exists=True, dir_okay=False, allow_dash=True), metavar="PATH",
              help="Take the messages from a file; - is stdin.")  # fmt: skip
@click.option("--format", "form", type=click.Choice(["lines", "json", "body"]), default="lines", show_default=True,
              help="lines: each line is a body; json: each is a message in JSON; body: the whole input is one body.",
)  # fmt: skip
@click.option("--ttl", callback=read_duration, metavar="TIME", help="How long the messages live.")
@click.option("--expires-at", callback=read_instant, metavar="WHEN",
              help="Until when: 2026-11-21T10:00:00Z, or ms since 1970.")  # fmt: skip
@click.option("--header", "headers", multiple=True, metavar="KEY=VALUE", help="A header; may be repeated.")
@click.option("--id", "id", metavar="ID", help="The id of the message: with one BODY or --format body.")
@click.option("--content-type", metavar="TYPE", help="What the bodies are, such as application/json.")
@json_flag
@connecting
def send(queue: str, body: Sequence[str], path: str | None, form: str, as_json: bool, settings: Settings,
         **said: Any) -> None:  # fmt: skip
    """Store messages in a queue.

    Each BODY is a message; without any, each line of stdin or of a file, its bytes as they are (of Windows' line ends
    the carriage return stays). With --format body the whole file or stdin is one message, such as a picture.

    With --format json a line is an object with body or body_base64 and, if need be, headers, id, ttl, expires_at,
    content_type; what `rqttl receive --json` prints will do. A body that is text is stored as UTF-8, any other
    value as msgpack (as JSON where content_type says so). What a line says goes before the flags.

    Says how many were stored, and how many of them were dead on arrival. If
    some were refused the exit code is 3.
    """
    if body and path is not None:
        raise click.UsageError("--file: give BODY or --file, not both")
    if body and form != "lines":
        raise click.UsageError(f"--format: a BODY is sent as it is; --format {form} is for stdin and --file")
    defaults = _defaults(said, one_message=len(body) == 1 or form == "body")
    with settings.using() as broker, ExitStack() as stack:
        target = broker.queue(queue)
        longest = target.options().number("max_message_bytes") or 0
        if body:
            source = arguments(body, defaults)
        elif path is None or path == "-":
            source = _read(sys.stdin.buffer, "stdin", form, longest, defaults)
        else:
            source = _read(stack.enter_context(io.FileIO(path)), path, form, longest, defaults)
        _run(target, source, as_json)


def _read(opened: Stream, name: str, form: str, longest: int, defaults: Defaults) -> Source:
    if form == "body":
        return whole(opened, name, longest, defaults)
    return stream(opened, name, longest, defaults, as_json=form == "json")


def _defaults(said: dict[str, Any], *, one_message: bool) -> Defaults:
    if said["id"] is not None and not one_message:
        raise click.UsageError("--id: give exactly one body with it")
    if said["ttl"] is not None and said["expires_at"] is not None:
        raise click.UsageError("--ttl: give --ttl or --expires-at, not both")
    said["headers"] = dict(_header(one) for one in said["headers"]) or None
    defaults = Defaults(**said)
    defaults.check()
    return defaults


def _header(given: str) -> tuple[str, str]:
    name, equals, value = given.partition("=")
    if not name or not equals:
        raise click.UsageError(f"--header: expected KEY=VALUE, got {given!r}")
    return name, value


def _run(queue: Queue, source: Source, as_json: bool) -> None:
    """Send all of it, then say what became of it, however it ended."""
    sent = Sent()
    with Stopping() as stopping:
        try:
            _send(queue, source, sent, stopping)
        except Misread as wrong:
            kind = Refused if isinstance(wrong.error, MessageTooLarge) else WrongMessage
            # a line of JSON has fields of its own; elsewhere what is wrong came from a flag
            named = with_flags if source.described else naming_flag
            raise kind(f"{source.place(wrong.number)}{named(str(wrong.error))}", wrong.error.code) from wrong
        except Stop as stop:
            raise Stopped(stop, source.after(sent.last)) from stop
        finally:
            stopping.finish()
            with suppress(BrokenPipeError):  # that nobody reads the answer must not hide how it ended
                _tell(queue.name, sent, as_json)
    if sent.refused:
        told = ", ".join(f"{text.plural(n, 'message')} refused ({reason})" for n, reason in sent.reasons())
        raise Refused(f"queue {queue.name!r} is full: {told}", QueueFull.code)


def _send(queue: Queue, source: Source, sent: Sent, stopping: Stopping) -> None:
    with Progress(source.total, in_bytes=bool(source.name), wanted=not source.interactive) as progress:
        for batch in source.batches:
            with stopping.held():
                _store(queue, batch, sent, stopping, keep_ids=not source.name)
                sent.last = batch.last
            progress.advance(batch.size, len(batch.messages), sent.expired)


def _store(queue: Queue, batch: Batch, sent: Sent, stopping: Stopping, *, keep_ids: bool) -> None:
    def enqueue(messages: Sequence[Message | bytes]) -> None:
        try:
            results = stopping.call(lambda: queue.enqueue_many(messages))
        except (OutcomeUnknown, Stop):
            sent.unknown += len(messages)
            raise
        sent.count(results, keep_ids=keep_ids)

    try:
        enqueue(batch.messages)
    except InvalidInput:
        # nothing of it was stored: one by one, all before the wrong one are, and it can be named
        for number, message in zip(batch.numbers, batch.messages, strict=True):
            try:
                enqueue([message])
            except InvalidInput as error:
                raise Misread(number, error) from error
            sent.last = number


def _tell(queue: str, sent: Sent, as_json: bool) -> None:
    if as_json:
        by: Counter[str] = Counter()
        for (limit, _), count in sent.refused.items():
            by[limit] += count
        facts: dict[str, Any] = {"queue": queue, "stored": sent.stored, "expired": sent.expired}
        facts |= {"duplicates": sent.duplicates, "refused": sent.refused.total(), "refused_by": by}
        facts["unknown"] = sent.unknown
        output.answer_json({**facts, "ids": sent.ids} if sent.ids else facts)
        return
    said = f"stored {text.plural(sent.stored, 'message')} in {text.visible(queue)}"
    if sent.expired:
        said += ", already expired" if sent.stored == 1 else f", {text.count(sent.expired)} of them already expired"
    if sent.duplicates:
        said += f", {text.plural(sent.duplicates, 'duplicate')} left out"
    if sent.refused:
        said += "; refused " + ", ".join(f"{text.count(n)} ({reason})" for n, reason in sent.reasons())
    if sent.unknown:
        said += f"; not known: {text.plural(sent.unknown, 'message')}"
    output.answer(said)
