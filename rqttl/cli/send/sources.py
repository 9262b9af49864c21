"""Sources of messages to send: arguments, a whole stream, or its lines as they arrive, in batches.

A batch fits into one script call of the library. So it is stored whole or not at all, and counts stay exact after an
error.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

from rqttl.cli.common import output
from rqttl.cli.send.json_lines import Defaults, read_json
from rqttl.errors import InvalidInput, MessageTooLarge
from rqttl.protocol.commands import BATCH, BATCH_BYTES
from rqttl.text import escape
from rqttl.types import Message

#: Bytes of one read at most.
CHUNK = 1 << 18
Stream = BinaryIO | io.FileIO

#: The growth of a value from JSON to its stored form, at most: `1e15` becomes 1000000000000000.0.
_JSON_GROWTH = 4


class Batch(NamedTuple):
    """Messages of one call. `numbers` are their lines in the input, `last` is the last line that was read.

    `size` is the length of that part of the input, in the unit of `Source.total`.
    """

    messages: Sequence[Message | bytes]
    numbers: Sequence[int]
    last: int
    size: int


class InvalidLine(Exception):
    """Input line `number` is not a valid message, because of `error`."""

    def __init__(self, number: int, error: InvalidInput) -> None:
        super().__init__(number, error)
        self.number = number
        self.error = error


@dataclass
class Source:
    """The input. `total` is its length in bytes, for arguments their number; `None` if it is unknown.

    With `whole` the input is one message; with `described` each line is a message in JSON.
    """

    batches: Iterator[Batch]
    name: str = ""
    total: int | None = None
    interactive: bool = False
    whole: bool = False
    described: bool = False

    def place(self, number: int) -> str:
        """The name of a line or argument, for errors; empty for a single argument."""
        if self.whole:
            return f"{self.name}: "
        if self.name:
            return f"{self.name}:{number}: "
        return f"BODY {number}: " if self.total != 1 else ""

    def after(self, last: int) -> str:
        """The part of the input that was read, for people."""
        if self.whole:
            return f" after {self.name}" if last else f" before the end of {self.name}"
        return f" after line {last:,} of {self.name}" if self.name else f" after {last:,} of {self.total:,} bodies"


def arguments(bodies: Sequence[str], defaults: Defaults) -> Source:
    """A source of arguments. Each argument is a body: its bytes as the system has them."""
    lines = [os.fsencode(body) for body in bodies]

    def batches() -> Iterator[Batch]:
        for start, piece in _pieces(lines, 1, defaults.weight):
            messages = _messages(piece, defaults)
            end = start + len(messages)
            yield Batch(messages, range(start + 1, end + 1), end, len(messages))

    return Source(batches(), total=len(lines))


def stream(opened: Stream, name: str, longest: int, defaults: Defaults, *, as_json: bool) -> Source:
    """A source of lines, from a file or from stdin. Each line is a body, or a message in JSON."""
    total = _length(opened)
    interactive = opened.isatty()
    if interactive:
        output.note("one message a line; Ctrl-D ends")
    if as_json:
        # an escape takes six bytes for one, and a line has headers and an id
        batches = _json_batches(_arrivals(opened, 8 * longest + (1 << 20), longest), defaults)
    else:
        batches = _line_batches(_arrivals(opened, longest, longest), name, defaults)
    return Source(batches, name, total, interactive, described=as_json)


def whole(opened: Stream, name: str, longest: int, defaults: Defaults) -> Source:
    """A source of one body: the whole file, or all of stdin. An empty input is an empty body."""
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
            length = f"{len(body):,} bytes or more" if size is None else f"{len(body) + size:,} bytes"
            raise InvalidLine(1, MessageTooLarge(f"body: {length}; max_message_bytes is {longest:,}"))
    return bytes(body)


def _length(opened: Stream) -> int | None:
    """The unread bytes of a file; `None` for a pipe or a terminal."""
    try:
        status = os.fstat(opened.fileno())
        return max(0, status.st_size - opened.tell()) if stat.S_ISREG(status.st_mode) else None
    except OSError:  # a stream of Python without a file below it
        return None


def _arrivals(opened: Stream, longest_line: int, longest: int) -> Iterator[tuple[int, list[bytes]]]:
    """The whole lines that have arrived, after the number of the first one. They do not wait for a full batch."""
    read: Callable[[int], bytes] = getattr(opened, "read1", opened.read)
    first, begun = 1, bytearray()
    while chunk := read(CHUNK):
        end = chunk.rfind(b"\n")
        if end >= 0:
            begun += chunk[:end]
            lines = bytes(begun).split(b"\n")
            yield first, lines
            first += len(lines)
            begun = bytearray(chunk[end + 1 :])
        else:
            begun += chunk
        if len(begun) > longest_line:
            size = len(begun) - 1
            error = MessageTooLarge(f"body: a line of more than {size} bytes; max_message_bytes is {longest}")
            raise InvalidLine(first, error)
    if begun:
        yield first, [bytes(begun)]


def _line_batches(arrivals: Iterator[tuple[int, list[bytes]]], name: str, defaults: Defaults) -> Iterator[Batch]:
    warned = False
    for first, lines in arrivals:
        if not warned and (number := _line_with_nul(first, lines)):
            warned = True
            place = f"{escape(name)}:{number}"
            output.note(f"{place}: a NUL byte: is this no text? `--format body` sends the input as one message")
        for start, piece in _pieces(lines, 1, defaults.weight):
            number = first + start
            last = number + len(piece) - 1
            yield Batch(_messages(piece, defaults), range(number, last + 1), last, _size(piece))


def _line_with_nul(first: int, lines: list[bytes]) -> int:
    """The number of the first line with a NUL byte; 0 if there is none."""
    return next((number for number, line in enumerate(lines, first) if b"\0" in line), 0)


def _json_batches(arrivals: Iterator[tuple[int, list[bytes]]], defaults: Defaults) -> Iterator[Batch]:
    for first, lines in arrivals:
        for start, piece in _pieces(lines, _JSON_GROWTH, defaults.weight):
            messages: list[Message | bytes] = []
            numbers: list[int] = []
            invalid: InvalidInput | None = None
            number = first + start
            for number, line in enumerate(piece, first + start):
                try:
                    message = read_json(line, defaults)
                except InvalidInput as error:
                    invalid = error
                    break
                if message is not None:
                    messages.append(message)
                    numbers.append(number)
            if messages:
                yield Batch(messages, numbers, number - (invalid is not None), _size(piece))
            if invalid is not None:
                raise InvalidLine(number, invalid)


def _messages(piece: list[bytes], defaults: Defaults) -> Sequence[Message | bytes]:
    return piece if defaults.are_empty else list(map(defaults.message, piece))


def _size(piece: list[bytes]) -> int:
    return sum(map(len, piece)) + len(piece)


def _pieces(lines: list[bytes], growth: int, weight: int) -> Iterator[tuple[int, list[bytes]]]:
    """The lines in pieces that fit into one call, each after the index of its first line."""
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
