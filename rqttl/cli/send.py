"""`rqttl send`: put messages into a queue."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import BinaryIO

import click

from rqttl.cli import output, text
from rqttl.cli.errors import Refused
from rqttl.cli.shared import Settings, connecting, json_flag, read_duration
from rqttl.errors import MessageTooLarge, OutcomeUnknown, QueueFull
from rqttl.queue import Queue
from rqttl.types import Message

#: Bytes of input, and messages, that are sent together at most.
CHUNK = 1 << 18
TOGETHER = 1_000


@dataclass
class Sent:
    """What became of the messages so far."""

    stored: int = 0
    duplicates: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    unknown: int = 0
    ids: list[str] = field(default_factory=list)


@click.command(epilog="Example: rqttl send orders hello --ttl 30s --header region=eu")
@click.argument("queue")
@click.argument("body", nargs=-1, type=click.UNPROCESSED)
@click.option("--ttl", callback=read_duration, metavar="TIME", help="How long the messages live.")
@click.option("--header", "headers", multiple=True, metavar="KEY=VALUE", help="A header; may be repeated.")
@click.option("--id", "id", metavar="ID", help="The id of the message (only with one body).")
@click.option("--content-type", metavar="TYPE", help="What the bodies are, such as application/json.")
@json_flag
@connecting
def send(
    queue: str,
    body: Sequence[str],
    ttl: int | None,
    headers: Sequence[str],
    id: str | None,
    content_type: str | None,
    as_json: bool,
    settings: Settings,
) -> int | None:
    """Store messages in a queue.

    Each BODY is a message; without any, each line of stdin. Says how many were stored. If some were refused the exit
    code is 3.
    """
    if id is not None and len(body) != 1:
        raise click.UsageError("--id: give exactly one body with it")
    named = dict(_header(one) for one in headers) or None
    plain = ttl is None and named is None and id is None and content_type is None

    def made(one: bytes) -> Message | bytes:
        return one if plain else Message(one, ttl=ttl, headers=named, id=id, content_type=content_type)

    with settings.connect() as broker:
        target = broker.queue(queue)
        most = target.options().number("max_message_bytes") or 0
        batches = _arguments(body) if body else _lines(_stdin(), most)
        sent = Sent()
        try:
            for batch in batches:
                _store(target, [made(one) for one in batch], sent, keep_ids=bool(body))
        finally:
            _tell(queue, sent, as_json)
    if sent.refused:
        raise Refused(f"queue {queue!r} is full: {_refusals(sent)}")
    return None


def _header(given: str) -> tuple[str, str]:
    name, equals, value = given.partition("=")
    if not name or not equals:
        raise click.UsageError(f"--header: expected KEY=VALUE, got {given!r}")
    return name, value


def _arguments(bodies: Sequence[str]) -> Iterator[list[bytes]]:
    for start in range(0, len(bodies), TOGETHER):
        yield [os.fsencode(one) for one in bodies[start : start + TOGETHER]]


def _stdin() -> BinaryIO:
    if sys.stdin.isatty():
        output.note("one message a line; Ctrl-D ends")
    return sys.stdin.buffer


def _lines(stream: BinaryIO, longest: int) -> Iterator[list[bytes]]:
    """Lines, in batches of what has arrived: a slow writer is not kept waiting for others to fill a batch."""
    read: Callable[[int], bytes] = getattr(stream, "read1", stream.read)
    rest = bytearray()
    while chunk := read(CHUNK):
        rest += chunk
        end = rest.rfind(b"\n")
        if end >= 0:
            lines = bytes(rest[:end]).split(b"\n")
            del rest[: end + 1]
            for start in range(0, len(lines), TOGETHER):
                yield lines[start : start + TOGETHER]
        if len(rest) > longest:
            raise MessageTooLarge(f"body: a line of more than {len(rest) - 1} bytes; max_message_bytes is {longest}")
    if rest:
        yield [bytes(rest)]


def _store(queue: Queue, batch: list[Message | bytes], sent: Sent, *, keep_ids: bool) -> None:
    with _uninterrupted():
        try:
            results = queue.enqueue_many(batch)
        except OutcomeUnknown:
            sent.unknown = len(batch)
            raise
        for result in results:
            if isinstance(result, QueueFull):
                reason = f"{result.limit} is {result.value}"
                sent.refused[reason] = sent.refused.get(reason, 0) + 1
                continue
            sent.stored += not result.duplicate
            sent.duplicates += result.duplicate
            if keep_ids:
                sent.ids.append(result.id)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let a Ctrl-C wait until the batch has been counted, so that the counts are exact."""
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt


def _refusals(sent: Sent) -> str:
    return ", ".join(f"{text.plural(n, 'message')} refused ({reason})" for reason, n in sent.refused.items())


def _tell(queue: str, sent: Sent, as_json: bool) -> None:
    if as_json:
        facts = {"queue": queue, "stored": sent.stored, "duplicates": sent.duplicates,
                 "refused": sum(sent.refused.values()), "unknown": sent.unknown}  # fmt: skip
        output.answer_json({**facts, "ids": sent.ids} if sent.ids else facts)
        return
    said = f"stored {text.plural(sent.stored, 'message')} in {text.visible(queue)}"
    if sent.duplicates:
        said += f", {text.plural(sent.duplicates, 'duplicate')} left out"
    if sent.unknown:
        said += f"; not known: {text.plural(sent.unknown, 'message')}"
    output.answer(said)
