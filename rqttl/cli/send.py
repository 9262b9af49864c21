"""`rqttl send`: store messages in a queue, and print exact counts of the outcomes.

A batch fits into one script call of the library. So it is stored whole or not at all, and counts stay exact after an
error.
"""

from __future__ import annotations

import base64
import io
import json
import os
import stat
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, NoReturn

import click

from rqttl import text
from rqttl.checks import BATCH, BATCH_BYTES, is_scheduled
from rqttl.cli.common import errors, output, params, running
from rqttl.cli.common.settings import Settings, connecting
from rqttl.errors import InvalidInput, MessageTooLarge, NotReplicated, OutcomeUnknown, QueueFull
from rqttl.inspector.message_view import overhead
from rqttl.types import BINARY, MSGPACK, Message, MessageView, Receipt
from rqttl.units import instant

if TYPE_CHECKING:
    from rqttl.queue import Queue


@dataclass
class Outcomes:
    """The outcomes of the messages so far. `last` is the end of that part of the input, in lines."""

    stored: int = 0
    #: The stored messages that were dead on arrival.
    expired: int = 0
    #: The stored messages that arrive later, and the first due time.
    scheduled: int = 0
    due: datetime | None = None
    duplicates: int = 0
    #: Refused messages by the full queue, which may be bound to the topic, its limit and the value of that.
    refused: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    unknown: int = 0
    #: The stored messages, and the duplicates, whose durability Redis has not confirmed.
    unconfirmed: int = 0
    ids: list[str] = field(default_factory=list)
    last: int = 0

    def count(self, results: Sequence[Receipt | QueueFull], *, keep_ids: bool) -> None:
        """Add the results of a call."""
        for result in results:
            if isinstance(result, QueueFull):
                self.refused[result.queue, result.limit, result.value] += 1
                continue
            self.stored += not result.duplicate
            self.expired += result.expired
            if result.deliver_at:
                self.scheduled += 1
                self.due = min(self.due or result.deliver_at, result.deliver_at)
            self.duplicates += result.duplicate
            if keep_ids:
                self.ids.append(result.id)

    def reasons(self, target: str) -> list[tuple[int, str]]:
        """The numbers of messages to a target that were refused, with the limits, for people."""
        return [
            (count, f"{params.flag(limit)}{f' of {queue}' * (queue != target)} is {value:,}")
            for (queue, limit, value), count in self.refused.items()
        ]


@click.command(epilog="\b\nExample: rqttl send orders hello --ttl 30s --header region=eu")
@params.queue_argument
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
@click.option("--ttl", type=params.DURATION, metavar="TIME", help="Lifetime of the messages.")
@click.option(
    "--expires-at",
    type=params.INSTANT,
    metavar="WHEN",
    help="End of their lifetime: 2026-11-21T10:00:00Z, or ms since 1970.",
)
@click.option(
    "--header", "headers", multiple=True, type=params.PAIR, metavar="KEY=VALUE", help="A header; may be repeated."
)
@click.option("--subject", metavar="WORDS", help="Words with dots between them, for the filters of a topic.")
@click.option(
    "--id", "id", type=params.MESSAGE_ID, metavar="ID", help="The id of the message, for one BODY or --format body."
)
@click.option("--content-type", metavar="TYPE", help="The type of the bodies, such as application/json.")
@params.due_options
@params.json_flag
@connecting
def send(
    queue: str, body: Sequence[str], path: str | None, form: str, as_json: bool, settings: Settings, **fields: Any
) -> None:
    """Store messages in a queue, or in those of a topic.

    Each BODY is a message. Without a BODY each line of stdin or of a file is a message, byte for byte (the carriage
    return of Windows stays). With --format body the whole file or stdin is one message, such as a picture.

    With --format json a line is an object with body or body_base64, and
    optionally headers, subject, id, ttl, expires_at, content_type, delay, deliver_at.
    Such lines come from `rqttl receive --json`, too. A text is stored as UTF-8,
    any other body as msgpack (as JSON if content_type is JSON). A field
    overrides the flag.

    With --delay or --at messages are scheduled: they arrive in the queue when
    they are due, and --ttl counts from then.

    The command prints the number of stored messages, how many of them were
    dead on arrival, and the first due time. If a message is refused the exit
    code is 3.
    """
    if body and path is not None:
        raise click.UsageError("--file: give BODY or --file, not both")
    if body and form != "lines":
        raise click.UsageError(f"--format: a BODY is sent as it is; --format {form} is for stdin and --file")
    if fields["id"] is not None and len(body) != 1 and form != "body":
        raise click.UsageError("--id: give exactly one body with it")
    if fields["ttl"] is not None and fields["expires_at"] is not None:
        raise click.UsageError("--ttl: give --ttl or --expires-at, not both")
    if fields["delay"] is not None and fields["deliver_at"] is not None:
        raise click.UsageError("--delay: give --delay or --at, not both")
    template = Message(b"", **{**fields, "headers": dict(fields["headers"]) or None})
    # no message can have invalid flags, so that is said before anything is read or sent
    weight = overhead(template)
    from redis.exceptions import ConnectionError, TimeoutError  # slow to load: help has no use for them

    with settings.using() as broker, ExitStack() as stack:
        target = broker.queue(queue)
        try:
            longest = target.options().number("max_message_bytes") or 0
        except (ConnectionError, TimeoutError) as error:
            code, line = errors.explain(error, broker)
            reason, _, advice = line.rpartition("; ")
            raise errors.Refused(f"{reason}; nothing was stored; {advice}", exit_code=code) from error
        if body:
            given = [os.fsencode(text) for text in body]  # the bytes as the system has them
            source = Source("lines", iter([(1, given)]), sum(map(len, given)) + len(given), count=len(given))
        elif path is None or path == "-":
            source = _stream(sys.stdin.buffer, "stdin", form, longest)
        else:
            source = _stream(stack.enter_context(io.FileIO(path)), path, form, longest)
        _send_and_print(target, source, _calls(source.batches(template, weight)), as_json)


def _send_and_print(queue: Queue, source: Source, batches: Iterator[Batch], as_json: bool) -> None:
    """Send all messages, then print the outcomes, also after an error."""
    outcomes = Outcomes()
    with running.SignalGuard() as guard:
        try:
            with output.Progress(source.total, visible=not source.interactive) as progress:
                for batch in batches:
                    with guard.deferred():
                        _store(queue, source, batch, outcomes, guard)
                        outcomes.last = batch.last
                    progress.advance(batch.size, len(batch.messages))
        except running.SignalReceived as received:
            received.position = source.after(outcomes.last)
            raise
        finally:
            guard.finish()
            with suppress(BrokenPipeError):  # an answer without a reader must not hide the error
                _print_result(queue.name, outcomes, as_json)
    if outcomes.refused:
        reasons = outcomes.reasons(queue.name)
        refusals = ", ".join(f"{text.plural(n, 'message')} refused ({reason})" for n, reason in reasons)
        full = sorted({name for name, _, _ in outcomes.refused})
        who = (
            f"queue {full[0]!r} is" if len(full) == 1 else f"queues {text.first_few([repr(name) for name in full])} are"
        )
        raise errors.Refused(f"{who} full: {refusals}", QueueFull.code)


def _store(queue: Queue, source: Source, batch: Batch, outcomes: Outcomes, guard: running.SignalGuard) -> None:
    def enqueue(messages: Sequence[Message | bytes]) -> None:
        try:
            results = guard.call(lambda: queue.enqueue_many(messages))
        except NotReplicated as error:
            outcomes.count(error.receipts, keep_ids=not source.name)
            outcomes.unconfirmed += sum(isinstance(one, Receipt) for one in error.receipts[error.confirmed :])
            raise
        except (OutcomeUnknown, running.SignalReceived):
            outcomes.unknown += len(messages)
            raise
        outcomes.count(results, keep_ids=not source.name)

    try:
        enqueue(batch.messages)
    except InvalidInput:
        # nothing of the batch was stored; one by one, the valid messages are, and the invalid one has a number
        for number, message in zip(batch.numbers, batch.messages, strict=True):
            try:
                enqueue([message])
            except InvalidInput as error:
                raise source.refusal(number, error) from error
            outcomes.last = number


def _print_result(queue: str, outcomes: Outcomes, as_json: bool) -> None:
    if as_json:
        refused_by, refused_in = Counter[str](), Counter[str]()
        for (name, limit, _), count in outcomes.refused.items():
            refused_by[limit] += count
            refused_in[name] += count
        document = {
            "queue": queue,
            "stored": outcomes.stored,
            "expired": outcomes.expired,
            "scheduled": outcomes.scheduled,
            "deliver_at": outcomes.due,
            "duplicates": outcomes.duplicates,
            "refused": outcomes.refused.total(),
            "refused_by": refused_by,
            "refused_in": refused_in,
            "unknown": outcomes.unknown,
            "unconfirmed": outcomes.unconfirmed,
        }
        output.answer_json({**document, "ids": outcomes.ids} if outcomes.ids else document)
        return
    every = 0 < outcomes.scheduled == outcomes.stored
    line = f"{'scheduled' if every else 'stored'} {text.plural(outcomes.stored, 'message')} in {text.escape(queue)}"
    if outcomes.due:
        some = "" if every else f"{text.format_count(outcomes.scheduled)} of them scheduled, "
        due = text.format_time(outcomes.due, outcomes.due, utc=True)
        line += f", {some}{'the first ' * (outcomes.scheduled > 1)}due {due}"
    if outcomes.expired:
        many = f"{text.format_count(outcomes.expired)} of them already expired"
        line += f", {'already expired' if outcomes.stored == 1 else many}"
    if outcomes.duplicates:
        line += f", {text.plural(outcomes.duplicates, 'duplicate')} left out"
    if outcomes.refused:
        line += "; refused " + ", ".join(f"{text.format_count(n)} ({reason})" for n, reason in outcomes.reasons(queue))
    if outcomes.unknown:
        line += f"; not known: {text.plural(outcomes.unknown, 'message')}"
    if outcomes.unconfirmed:
        line += f"; not confirmed: {text.plural(outcomes.unconfirmed, 'message')}"
    output.answer(line)
    if outcomes.scheduled and len(outcomes.ids) == 1:
        output.answer(f"id {text.escape(outcomes.ids[0])}")


# The input: arguments, a whole stream, or its lines as they arrive

#: Bytes of one read at most.
CHUNK = 1 << 18
#: The growth of a value from JSON to its stored form, at most: `1e15` becomes 1000000000000000.0.
_JSON_GROWTH = 4


class Batch(NamedTuple):
    """Messages of one call. `numbers` are their lines in the input, `last` is the last line that was read.

    `size` is the length of that part of the input in bytes.
    """

    messages: Sequence[Message | bytes]
    numbers: Sequence[int]
    last: int
    size: int


def _calls(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Batches that are one call each: the library sends scheduled messages in calls of their own."""
    for batch in batches:
        pairs = list(zip(batch.numbers, batch.messages, strict=True))
        runs = [list(run) for _, run in groupby(pairs, key=lambda pair: is_scheduled(pair[1]))]
        for run in runs:
            numbers, messages = [number for number, _ in run], [message for _, message in run]
            end = run is runs[-1]
            yield Batch(messages, numbers, batch.last if end else numbers[-1], batch.size if end else 0)


@dataclass
class Source:
    """The input: a file `name`, or arguments. `total` is its length in bytes, `None` if it is unknown.

    `form` is that of `--format`. `count` is the number of arguments.
    """

    form: str
    #: The number of the first one of some lines, and the lines.
    arrivals: Iterator[tuple[int, Sequence[bytes]]]
    total: int | None = None
    name: str = ""
    count: int = 0
    interactive: bool = False

    def refusal(self, number: int, error: InvalidInput) -> errors.Refused:
        """The error for a line or argument that is not a valid message."""
        place = f"BODY {number}: " if self.count > 1 else ""
        if self.name:
            place = f"{self.name}: " if self.form == "body" else f"{self.name}:{number}: "
        # a line of JSON has fields of its own; elsewhere a flag has the invalid value
        with_names = params.with_flags if self.form == "json" else params.naming_flag
        code = errors.REFUSED if isinstance(error, MessageTooLarge) else errors.USAGE
        return errors.Refused(f"{place}{with_names(str(error))}", error.code, code)

    def after(self, last: int) -> str:
        """The part of the input that was read, for people."""
        if self.form == "body":
            return f" after {self.name}" if last else f" before the end of {self.name}"
        return f" after line {last:,} of {self.name}" if self.name else f" after {last:,} of {self.count:,} bodies"

    def batches(self, template: Message, weight: int) -> Iterator[Batch]:
        """Messages in pieces that fit into one call. Those before an invalid line come before its error.

        `template` has the flags, which are for every message, and `weight` is the number of bytes that they add.
        """
        is_json, is_plain = self.form == "json", template == Message(b"")
        for first, lines in self.arrivals:
            messages: list[Message | bytes] = []
            numbers: list[int] = []
            cost = size = 0
            for number, line in enumerate(lines, first):
                more = (_JSON_GROWTH if is_json else 1) * len(line) + weight
                if messages and (len(messages) == BATCH or cost + more > BATCH_BYTES):
                    yield Batch(messages, numbers, number - 1, size)
                    messages, numbers, cost, size = [], [], 0, 0
                message: Message | bytes | None = line
                if is_json:
                    try:
                        message = read_json(line, template)
                    except InvalidInput as error:
                        if messages:
                            yield Batch(messages, numbers, number - 1, size)
                        raise self.refusal(number, error) from error
                elif not is_plain:
                    message = replace(template, body=line)
                size += len(line) + 1
                if message is not None:
                    messages.append(message)
                    numbers.append(number)
                    cost += more
            if messages:
                yield Batch(messages, numbers, first + len(lines) - 1, size)


def _stream(opened: BinaryIO | io.FileIO, name: str, form: str, longest: int) -> Source:
    """A source that is a file or stdin: each line is a body, or a message in JSON, or the whole is one body."""
    interactive = opened.isatty()
    if interactive:
        output.note(("all that you type is one message" if form == "body" else "one message a line") + "; Ctrl-D ends")
    total = None
    with suppress(OSError):  # a stream of Python without a file below it
        status = os.fstat(opened.fileno())
        if stat.S_ISREG(status.st_mode):
            total = max(0, status.st_size - opened.tell())
    source = Source(form, iter(()), total, name, interactive=interactive)
    source.arrivals = _whole(opened) if form == "body" else _lines(opened, longest, source)
    return source


def _whole(opened: BinaryIO | io.FileIO) -> Iterator[tuple[int, Sequence[bytes]]]:
    yield 1, [opened.read()]


def _lines(opened: BinaryIO | io.FileIO, longest: int, source: Source) -> Iterator[tuple[int, Sequence[bytes]]]:
    """The whole lines that have arrived. They do not wait for a full batch."""
    read: Callable[[int], bytes] = getattr(opened, "read1", opened.read)
    # in JSON an escape takes six bytes for one, and a line has headers and an id
    most = 8 * longest + (1 << 20) if source.form == "json" else longest
    first, begun = 1, bytearray()
    while chunk := read(CHUNK):
        done, newline, rest = chunk.rpartition(b"\n")
        if newline:
            begun += done
            lines = bytes(begun).split(b"\n")
            yield first, lines
            first += len(lines)
            begun.clear()
        begun += rest
        if len(begun) > most:
            line = f"body: a line of more than {len(begun) - 1} bytes; max_message_bytes is {longest}"
            raise source.refusal(first, MessageTooLarge(line))
    if begun:
        yield first, [bytes(begun)]


# A message as a line of JSON

#: The fields of a message that a sender sets.
SENDER_FIELDS = (
    *("body", "body_base64", "headers", "subject", "id", "ttl", "expires_at", "content_type"),
    *("delay", "deliver_at"),
)
#: The fields that `rqttl receive --json` and `rqttl peek --json` add. A sender cannot set them, so they are ignored.
BROKER_FIELDS = {*MessageView.__dataclass_fields__, "leased_until", "body_bytes"}.difference(SENDER_FIELDS)

_JSON_TYPES = ("application/json", "+json")
_BOM = b"\xef\xbb\xbf"


def read_json(line: bytes, template: Message) -> Message | None:
    """The message that a line of JSON describes; `None` for a blank line. Raises `InvalidInput`.

    A field of the line overrides the flag. Headers are overridden one by one; `ttl` or `expires_at`
    overrides both flags, and so does `delay` or `deliver_at`. A field that is null counts as absent, except `body`.
    `body_base64` overrides `body`.
    """
    if not line or line.isspace():
        return None
    fields = _object(line)
    for name in fields:
        if name not in SENDER_FIELDS and name not in BROKER_FIELDS:
            hint = text.did_you_mean(name, SENDER_FIELDS, f"there are {', '.join(SENDER_FIELDS)}")
            raise InvalidInput(f"unknown field {name[:80]!r}{hint}")
    content_type = fields.get("content_type")
    if content_type is None:
        content_type = template.content_type
    elif content_type == BINARY:
        content_type = None  # the type of bytes without a content type
    ttl, expires_at = _times(fields, template, "ttl", "expires_at")
    delay, deliver_at = _times(fields, template, "delay", "deliver_at")
    id = fields.get("id")
    if id == fields.get("sequence"):
        id = None  # the sequence of another queue is no id; the message gets a new sequence
    if id is not None and not isinstance(id, str):
        raise InvalidInput(f"id: expected text, got {_json_type(id)}")
    headers, subject = _headers(fields, template), fields.get("subject")
    if subject is None and "subject" not in (headers or ()):
        subject = template.subject
    body = _body(fields, content_type)
    return Message(body, ttl, expires_at, headers, id, content_type, delay, deliver_at, subject)


def _times(fields: Mapping[str, Any], template: Message, length: str, end: str) -> tuple[Any, Any]:
    """The values of two fields for one time: those of the line, or without any those of the flags."""
    if fields.get(end) is not None:
        return fields.get(length), instant(fields[end], end)
    if fields.get(length) is not None:
        return fields[length], None
    return getattr(template, length), getattr(template, end)


def _object(line: bytes) -> dict[str, Any]:
    try:
        value = _decoder.decode(line.removeprefix(_BOM).decode())
    except UnicodeDecodeError as error:
        raise InvalidInput(f"not JSON: byte {error.start + 1} is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise InvalidInput(f"not JSON: {error.msg} at character {error.pos + 1}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"not JSON that can be read: {error}") from None
    if not isinstance(value, dict):
        raise InvalidInput(f'expected an object such as {{"body": "hello"}}, got {_json_type(value)}')
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_decoder = json.JSONDecoder(parse_constant=_refuse_constant)


def _body(fields: Mapping[str, Any], content_type: object) -> object:
    """The bytes to store, or a value that is stored as msgpack."""
    encoded = fields.get("body_base64")
    if encoded is not None:
        try:
            return base64.b64decode(encoded, validate=True)
        except (ValueError, TypeError):
            raise InvalidInput("body_base64: expected text in base64") from None
    if "body" not in fields:
        raise InvalidInput("body: missing; give body or body_base64")
    body = fields["body"]
    if content_type == MSGPACK:
        return body
    if isinstance(body, str):
        return _utf8(body)
    if content_type is None:
        return body
    if isinstance(content_type, str) and content_type.partition(";")[0].strip().lower().endswith(_JSON_TYPES):
        return _utf8(json.dumps(body, ensure_ascii=False, separators=(",", ":")))
    raise InvalidInput(f"body: expected text where content_type is {content_type!r}, got {_json_type(body)}")


def _utf8(body: str) -> bytes:
    try:
        return body.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"body: character {error.start + 1} is half of a surrogate pair") from None


def _headers(fields: Mapping[str, Any], template: Message) -> Mapping[str, Any] | None:
    headers = fields.get("headers")
    if headers is None:
        return template.headers
    if not isinstance(headers, dict):
        raise InvalidInput(f"headers: expected an object, got {_json_type(headers)}")
    return {**(template.headers or {}), **headers}


def _json_type(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
