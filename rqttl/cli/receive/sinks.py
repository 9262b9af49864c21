"""Sinks of `rqttl receive`: stdout, or a file for each body."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable
from typing import Protocol

from rqttl import json_text, text
from rqttl.cli.receive.files import Folder
from rqttl.cli.receive.pipe import pipe_of
from rqttl.cli.receive.stopping import GracefulStop
from rqttl.delivery import Delivery
from rqttl.inspector import message_view


class Sink(Protocol):
    """A place for messages."""

    def take(self, delivery: Delivery) -> bool:
        """Write a message; False if a signal came before."""

    def wait_until_read(self, *, patient: bool) -> bool:
        """Wait until the reader has the message; without `patient` only check. False if a signal came before.

        Raises `BrokenPipeError` if the reader went away and left a part of it.
        """

    def print_result(self, delivery: Delivery) -> None:
        """Print the place of a message, after it was settled."""


class Stream:
    """Stdout for bytes."""

    def __init__(self, stop: GracefulStop) -> None:
        self._stop = stop
        self._stream = sys.stdout.buffer
        try:
            self._file: int | None = self._stream.fileno()
        except OSError:  # a stream without a file, such as a buffer in memory
            self._file = None
        self._pipe = None if self._file is None else pipe_of(self._file, stop.reader)
        self.encoding = sys.stdout.encoding or "utf-8"
        self.is_terminal = sys.stdout.isatty()

    def write(self, data: bytes) -> bool:
        """Write all bytes; False if a signal asked the command to end while nobody read."""
        if self._file is None:
            self._stream.write(data)
            return True
        left = memoryview(data)
        while left:
            _, ready, _ = select.select([self._stop.reader], [self._file], [])
            if not ready:
                return False
            # a pipe that is ready takes so many bytes at once, so no write hangs
            written = os.write(self._file, left[: select.PIPE_BUF])
            left = left[written:]
            if self._pipe is not None:
                self._pipe.wrote(written)
        return True

    def wait_until_read(self, *, patient: bool) -> bool:
        """Wait until the reader of a pipe has all bytes. Without a pipe there is no wait."""
        return self._pipe is None or self._pipe.wait_until_read(patient=patient)


class StdoutSink:
    """Messages on stdout."""

    def __init__(self, stream: Stream, form: str) -> None:
        forms: dict[str, Callable[[Delivery], bytes]] = {"body": self._body, "json": _json, "headers": self._headers}
        self._stream = stream
        self._encode = forms[form]

    def take(self, delivery: Delivery) -> bool:
        """Print a message."""
        return self._stream.write(self._encode(delivery) + b"\n")

    def wait_until_read(self, *, patient: bool) -> bool:
        """Wait for the reader of stdout."""
        return self._stream.wait_until_read(patient=patient)

    def print_result(self, delivery: Delivery) -> None:
        """Print nothing more: stdout has the message."""

    def _body(self, delivery: Delivery) -> bytes:
        if not self._stream.is_terminal:
            return delivery.body
        return message_view.body_text(delivery).encode(self._stream.encoding, "backslashreplace")

    def _headers(self, delivery: Delivery) -> bytes:
        lines = "".join(f"{name}: {value}\n" for name, value in self._pairs(delivery))
        return lines.encode(self._stream.encoding, "backslashreplace") + b"\n" + self._body(delivery) + b"\n"

    def _pairs(self, delivery: Delivery) -> list[tuple[str, str]]:
        longest = text.LONGEST if self._stream.is_terminal else None
        now = delivery.enqueued_at  # exact times need none
        pairs = [
            ("id", text.escape(delivery.id)),
            ("queue", delivery.queue),
            ("enqueued", text.format_time(delivery.enqueued_at, now, utc=True)),
            ("expires", text.format_time(delivery.expires_at, now, utc=True)),
            ("delivery", str(delivery.delivery_count)),
            ("content type", text.escape(delivery.content_type)),
            ("bytes", str(len(delivery.body))),
        ]
        pairs += [
            (f"header {text.escape(name, longest)}", message_view.header_text(value, longest))
            for name, value in delivery.headers.items()
        ]
        return pairs + [
            (
                "death",
                f"{death.reason} in {death.queue}, {text.format_time(death.last_at, now, utc=True)}, {death.count}×",
            )
            for death in delivery.deaths
        ]


class FileSink:
    """A file for each body; stdout gets the paths."""

    def __init__(self, stream: Stream, folder: Folder, form: str) -> None:
        self._stream = stream
        self._folder = folder
        self._form = form
        self._path = b""

    def take(self, delivery: Delivery) -> bool:
        """Store the body in a file that survives a crash."""
        self._path = os.fsencode(self._folder.store(delivery.id, delivery.body))
        return True

    def wait_until_read(self, *, patient: bool) -> bool:  # noqa: ARG002  # as of `Sink`
        """Return at once: the body is in a file."""
        return True

    def print_result(self, delivery: Delivery) -> None:
        """Print the path."""
        if self._form == "json":
            document = {**message_view.to_json(delivery, with_body=False), "file": text.escape(self._path)}
            self._stream.write(json_text.dump(document).encode() + b"\n")
            return
        path = text.escape(self._path).encode() if self._stream.is_terminal else self._path
        self._stream.write(path + b"\n")


def _json(delivery: Delivery) -> bytes:
    return json_text.dump(message_view.to_json(delivery)).encode()
