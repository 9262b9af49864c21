"""Where the messages to send come from: arguments, a whole stream, or its lines as they arrive, in batches.

A batch is never more than one script call of the library takes. So either all of it is stored or nothing, and counts
are exact whatever happens in between.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

from rqttl.cli.common import output, text
from rqttl.cli.send.json_lines import Defaults, read_json
from rqttl.commands import BATCH, BATCH_BYTES
from rqttl.errors import InvalidInput, MessageTooLarge
from rqttl.types import Message

#: Bytes that are read at once, at most.
CHUNK = 1 << 18
Stream = BinaryIO | io.FileIO

#: How much larger a value can be stored than it is written in JSON: `1e15` as 1000000000000000.0, and some spare.
_JSON_GROWTH = 4


class Batch(NamedTuple):
    """Messages to store together. `numbers` are their places in the input, `last` how far it was read, in lines.

    `size` is how much of the input that is, in the unit of `Source.total`.
    """

    messages: Sequence[Message | bytes]
    numbers: Sequence[int]
    last: int
    size: int


class Misread(Exception):
    """What stands at a place of the input is no message, because of `error`."""

    def __init__(self, number: int, error: InvalidInput) -> None:
        super().__init__(number, error)
        self.number = number
        self.error = error


@dataclass
class Source:
    """The input. `total` is its length in bytes, or in messages where it is arguments; `None` if nobody knows.

    With `whole` all of it is one message; with `described` each line says in JSON what the message is.
    """

    batches: Iterator[Batch]
    name: str = ""
    total: int | None = None
    interactive: bool = False
    whole: bool = False
    described: bool = False

    def place(self, number: int) -> str:
        """The name of a place, for errors; empty for a single argument."""
        if self.whole:
            return f"{self.name}: "
        if self.name:
            return f"{self.name}:{number}: "
        return f"BODY {number}: " if self.total != 1 else ""

    def after(self, last: int) -> str:
        """How far the input was read, for people."""
        if self.whole:
            return f" after {self.name}" if last else f" before the end of {self.name}"
        return f" after line {last:,} of {self.name}" if self.name else f" after {last:,} of {self.total:,} bodies"


def arguments(bodies: Sequence[str], defaults: Defaults) -> Source:
    """Each argument is a body: the bytes that the system gave."""
    lines = [os.fsencode(one) for one in bodies]

    def batches() -> Iterator[Batch]:
        for start, piece in _pieces(lines, 1, defaults.weight):
            made = _made(piece, defaults)
            yield Batch(made, range(start + 1, start + 1 + len(made)), start + len(made), len(made))

    return Source(batches(), total=len(lines))


def stream(opened: Stream, name: str, longest: int, defaults: Defaults, *, as_json: bool) -> Source:
    """Each line of a file, or of stdin, is a body, or says in JSON what the message is."""
    total = _length(opened)
    interactive = opened.isatty()
    if interactive:
        output.note("one message a line; Ctrl-D ends")
    if as_json:
        # escapes take six bytes for one, headers and id come along
        batches = _json_batches(_arrivals(opened, 8 * longest + (1 << 20), longest), defaults)
    else:
        batches = _line_batches(_arrivals(opened, longest, longest), name, defaults)
    return Source(batches, name, total, interactive, described=as_json)


def whole(opened: Stream, name: str, longest: int, defaults: Defaults) -> Source:
    """All that a file or stdin holds is one body, also if that is nothing."""
    interactive = opened.isatty()
    if interactive:
        output.note("all that you type is one message; Ctrl-D ends")

    def batches() -> Iterator[Batch]:
        body = _read_all(opened, longest)
        yield Batch([defaults.message(body)], [1], 1, len(body))

    return Source(batches(), name, _length(opened), interactive, whole=True)


def _read_all(opened: Stream, longest: int) -> bytes:
    read: Callable[[int], bytes] = getattr(opened, "read1", opened.read)
    body = bytearray()
    while chunk := read(CHUNK):
        body += chunk
        if len(body) > longest:
            size = _length(opened)
            told = f"{len(body):,} bytes or more" if size is None else f"{len(body) + size:,} bytes"
            raise Misread(1, MessageTooLarge(f"body: {told}; max_message_bytes is {longest:,}"))
    return bytes(body)


def _length(opened: Stream) -> int | None:
    """What is left to read, if it is a file."""
    try:
        status = os.fstat(opened.fileno())
        return max(0, status.st_size - opened.tell()) if stat.S_ISREG(status.st_mode) else None
    except OSError:  # a stream of Python without a file below it
        return None


def _arrivals(opened: Stream, most: int, longest: int) -> Iterator[tuple[int, list[bytes]]]:
    """The number of the first of the whole lines that have arrived, and these: nobody waits for a batch to be full."""
    read: Callable[[int], bytes] = getattr(opened, "read1", opened.read)
    first, rest = 1, bytearray()
    while chunk := read(CHUNK):
        end = chunk.rfind(b"\n")
        if end >= 0:
            rest += chunk[:end]
            lines = bytes(rest).split(b"\n")
            yield first, lines
            first += len(lines)
            rest = bytearray(chunk[end + 1 :])
        else:
            rest += chunk
        if len(rest) > most:
            size = len(rest) - 1
            error = MessageTooLarge(f"body: a line of more than {size} bytes; max_message_bytes is {longest}")
            raise Misread(first, error)
    if rest:
        yield first, [bytes(rest)]


def _line_batches(arrivals: Iterator[tuple[int, list[bytes]]], name: str, defaults: Defaults) -> Iterator[Batch]:
    warned = False
    for first, lines in arrivals:
        if not warned and (number := _line_with_nul(first, lines)):
            warned = True
            place = f"{text.visible(name)}:{number}"
            output.note(f"{place}: a NUL byte: is this no text? `--format body` sends the input as one message")
        for start, piece in _pieces(lines, 1, defaults.weight):
            number = first + start
            last = number + len(piece) - 1
            yield Batch(_made(piece, defaults), range(number, last + 1), last, _size(piece))


def _line_with_nul(first: int, lines: list[bytes]) -> int:
    """The number of the first line that has a NUL byte; 0 if none has."""
    return next((number for number, line in enumerate(lines, first) if b"\0" in line), 0)


def _json_batches(arrivals: Iterator[tuple[int, list[bytes]]], defaults: Defaults) -> Iterator[Batch]:
    for first, lines in arrivals:
        for start, piece in _pieces(lines, _JSON_GROWTH, defaults.weight):
            messages: list[Message | bytes] = []
            numbers: list[int] = []
            wrong: InvalidInput | None = None
            number = first + start
            for number, line in enumerate(piece, first + start):
                try:
                    message = read_json(line, defaults)
                except InvalidInput as error:
                    wrong = error
                    break
                if message is not None:
                    messages.append(message)
                    numbers.append(number)
            if messages:
                yield Batch(messages, numbers, number - (wrong is not None), _size(piece))
            if wrong is not None:
                raise Misread(number, wrong)


def _made(piece: list[bytes], defaults: Defaults) -> Sequence[Message | bytes]:
    return piece if defaults.silent else list(map(defaults.message, piece))


def _size(piece: list[bytes]) -> int:
    return sum(map(len, piece)) + len(piece)


def _pieces(lines: list[bytes], growth: int, weight: int) -> Iterator[tuple[int, list[bytes]]]:
    """The lines in pieces that fit into one call, each with the index of its first line."""
    for start in range(0, len(lines), BATCH):
        piece = lines[start : start + BATCH]
        if growth * sum(map(len, piece)) + weight * len(piece) <= BATCH_BYTES:
            yield start, piece
            continue
        begin = size = 0
        for i, line in enumerate(piece):
            more = growth * len(line) + weight
            if i > begin and size + more > BATCH_BYTES:
                yield start + begin, piece[begin:i]
                begin, size = i, 0
            size += more
        yield start + begin, piece[begin:]
