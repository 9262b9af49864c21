"""Where `rqttl receive` puts messages: on stdout, or each body in a file of its own."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable
from typing import Protocol

from rqttl.cli.common import messages, text
from rqttl.cli.receive.files import Folder
from rqttl.cli.receive.pipe import pipe_of
from rqttl.cli.receive.stopping import Ending
from rqttl.delivery import Delivery


class Sink(Protocol):
    """Takes messages, and tells of them once they are settled."""

    def take(self, delivery: Delivery) -> bool:
        """Put a message where it is safe; False if a signal came before."""

    def wait_until_read(self, *, patient: bool) -> bool:
        """Wait until its reader has it, or with `patient=False` only look; False if a signal came before.

        Raises `BrokenPipeError` if the reader went away and left some of it.
        """

    def tell(self, delivery: Delivery) -> None:
        """Say where it is."""


class Stream:
    """Stdout, with bytes as they are."""

    def __init__(self, ending: Ending) -> None:
        self._ending = ending
        self._stream = sys.stdout.buffer
        try:
            self._file: int | None = self._stream.fileno()
        except OSError:  # it is none, such as a buffer in memory
            self._file = None
        self._pipe = None if self._file is None else pipe_of(self._file, ending.reader)
        self.encoding = sys.stdout.encoding or "utf-8"
        self.read_by_people = sys.stdout.isatty()

    def write(self, data: bytes) -> bool:
        """Write all of it; False if a signal asked to end while nobody read."""
        if self._file is None:
            self._stream.write(data)
            return True
        left = memoryview(data)
        while left:
            _, ready, _ = select.select([self._ending.reader], [self._file], [])
            if not ready:
                return False
            # of so much a pipe that is ready takes all, and no write hangs
            written = os.write(self._file, left[: select.PIPE_BUF])
            left = left[written:]
            if self._pipe is not None:
                self._pipe.wrote(written)
        return True

    def wait_until_read(self, *, patient: bool) -> bool:
        """Wait until a reader of a pipe has all of it; what is not written into a pipe is read at once."""
        return self._pipe is None or self._pipe.wait_until_read(patient=patient)


class Printed:
    """Messages on stdout."""

    def __init__(self, stream: Stream, form: str) -> None:
        made: dict[str, Callable[[Delivery], bytes]] = {"body": self._body, "json": _json, "headers": self._headers}
        self._stream = stream
        self._made = made[form]

    def take(self, delivery: Delivery) -> bool:
        """Print a message."""
        return self._stream.write(self._made(delivery) + b"\n")

    def wait_until_read(self, *, patient: bool) -> bool:
        """Wait for the reader of stdout."""
        return self._stream.wait_until_read(patient=patient)

    def tell(self, delivery: Delivery) -> None:
        """Nothing: who reads it knows."""

    def _body(self, delivery: Delivery) -> bytes:
        if not self._stream.read_by_people:
            return delivery.body
        return messages.body(delivery).encode(self._stream.encoding, "backslashreplace")

    def _headers(self, delivery: Delivery) -> bytes:
        lines = "".join(f"{name}: {value}\n" for name, value in self._facts(delivery))
        return lines.encode(self._stream.encoding, "backslashreplace") + b"\n" + self._body(delivery) + b"\n"

    def _facts(self, delivery: Delivery) -> list[tuple[str, str]]:
        longest = text.LONGEST if self._stream.read_by_people else None
        now = delivery.enqueued_at  # exact times need none
        said = [
            ("id", text.visible(delivery.id)),
            ("queue", delivery.queue),
            ("enqueued", text.moment(delivery.enqueued_at, now, utc=True)),
            ("expires", text.moment(delivery.expires_at, now, utc=True)),
            ("delivery", str(delivery.delivery_count)),
            ("content type", text.visible(delivery.content_type)),
            ("bytes", str(len(delivery.body))),
        ]
        said += [
            (f"header {text.visible(name, longest)}", messages.header(value, longest))
            for name, value in delivery.headers.items()
        ]
        return said + [
            ("death", f"{death.reason} in {death.queue}, {text.moment(death.last_at, now, utc=True)}, {death.count}×")
            for death in delivery.deaths
        ]


class Filed:
    """Each body in a file of its own; stdout gets the paths."""

    def __init__(self, stream: Stream, folder: Folder, form: str) -> None:
        self._stream = stream
        self._folder = folder
        self._form = form
        self._path = b""

    def take(self, delivery: Delivery) -> bool:
        """Store the body, so that it survives a crash."""
        self._path = os.fsencode(self._folder.store(delivery.id, delivery.body))
        return True

    def wait_until_read(self, *, patient: bool) -> bool:  # noqa: ARG002  # as of `Sink`
        """Nothing to wait for: the body is in a file."""
        return True

    def tell(self, delivery: Delivery) -> None:
        """Print the path."""
        if self._form == "json":
            said = {**messages.facts(delivery, with_body=False), "file": text.visible(self._path)}
            self._stream.write(text.as_json(said).encode() + b"\n")
            return
        path = text.visible(self._path).encode() if self._stream.read_by_people else self._path
        self._stream.write(path + b"\n")


def _json(delivery: Delivery) -> bytes:
    return text.as_json(messages.facts(delivery)).encode()
