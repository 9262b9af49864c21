"""Sources of messages to send: arguments, a whole stream, or its lines as they arrive, in batches.

A batch fits into one script call of the library. So it is stored whole or not at all, and counts stay exact after an
error.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

from rqttl.cli.common import output
from rqttl.cli.send.json_lines import Defaults, read_json
from rqttl.errors import InvalidInput, MessageTooLarge
from rqttl.protocol.commands import BATCH, BATCH_BYTES
from rqttl.types import Message

#: Bytes of one read at most.
CHUNK = 1 << 18
Stream = BinaryIO | io.FileIO
#: The number of the first one of some lines, and the lines.
Arrival = tuple[int, Sequence[bytes]]

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


class InvalidLine(Exception):
    """Input line `number` is not a valid message, because of `error`."""

    def __init__(self, number: int, error: InvalidInput) -> None:
        super().__init__(number, error)
        self.number = number
        self.error = error


@dataclass
class Source:
    """The input: a file `name`, or arguments. `total` is its length in bytes, `None` if it is unknown.

    `form` is that of `--format`. `count` is the number of arguments.
    """

    batches: Iterator[Batch]
    form: str
    total: int | None = None
    name: str = ""
    count: int = 0
    interactive: bool = False

    def place(self, number: int) -> str:
        """The name of a line or argument, for errors; empty for a single argument."""
        if self.name:
            return f"{self.name}: " if self.form == "body" else f"{self.name}:{number}: "
        return f"BODY {number}: " if self.count > 1 else ""

    def after(self, last: int) -> str:
        """The part of the input that was read, for people."""
        if self.form == "body":
            return f" after {self.name}" if last else f" before the end of {self.name}"
        return f" after line {last:,} of {self.name}" if self.name else f" after {last:,} of {self.count:,} bodies"


def arguments(bodies: Sequence[str], defaults: Defaults) -> Source:
    """A source of arguments. Each argument is a body: its bytes as the system has them."""
    lines = [os.fsencode(body) for body in bodies]
    total = sum(map(len, lines)) + len(lines)
    return Source(_batches([(1, lines)], "lines", defaults), "lines", total, count=len(lines))


def stream(opened: Stream, name: str, form: str, longest: int, defaults: Defaults) -> Source:
    """A source that is a file or stdin: each line is a body, or a message in JSON, or the whole is one body."""
    interactive = opened.isatty()
    if interactive:
        output.note(("all that you type is one message" if form == "body" else "one message a line") + "; Ctrl-D ends")
    arrivals = _whole(opened) if form == "body" else _lines(opened, longest, form)
    return Source(_batches(arrivals, form, defaults), form, _length(opened), name, interactive=interactive)


def _length(opened: Stream) -> int | None:
    """The unread bytes of a file; `None` for a pipe or a terminal."""
    try:
        status = os.fstat(opened.fileno())
        return max(0, status.st_size - opened.tell()) if stat.S_ISREG(status.st_mode) else None
    except OSError:  # a stream of Python without a file below it
        return None


def _whole(opened: Stream) -> Iterator[Arrival]:
    yield 1, [opened.read()]


def _lines(opened: Stream, longest: int, form: str) -> Iterator[Arrival]:
    """The whole lines that have arrived. They do not wait for a full batch."""
    read: Callable[[int], bytes] = getattr(opened, "read1", opened.read)
    # in JSON an escape takes six bytes for one, and a line has headers and an id
    most = 8 * longest + (1 << 20) if form == "json" else longest
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
            raise InvalidLine(first, MessageTooLarge(line))
    if begun:
        yield first, [bytes(begun)]


def _batches(arrivals: Iterable[Arrival], form: str, defaults: Defaults) -> Iterator[Batch]:
    """Messages in pieces that fit into one call. Those before an invalid line come before its error."""
    growth = _JSON_GROWTH if form == "json" else 1
    for first, lines in arrivals:
        messages: list[Message | bytes] = []
        numbers: list[int] = []
        cost = size = 0
        for number, line in enumerate(lines, first):
            more = growth * len(line) + defaults.weight
            if messages and (len(messages) == BATCH or cost + more > BATCH_BYTES):
                yield Batch(messages, numbers, number - 1, size)
                messages, numbers, cost, size = [], [], 0, 0
            try:
                message = read_json(line, defaults) if form == "json" else defaults.message(line)
            except InvalidInput as error:
                if messages:
                    yield Batch(messages, numbers, number - 1, size)
                raise InvalidLine(number, error) from error
            size += len(line) + 1
            if message is not None:
                messages.append(message)
                numbers.append(number)
                cost += more
        if messages:
            yield Batch(messages, numbers, first + len(lines) - 1, size)
