"""Where `rqttl receive` writes messages: to stdout, to JSON lines, or into files of a folder."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import select
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from rqttl import json_text, text
from rqttl.cli.receive.stopping import GracefulStop, pipe_of
from rqttl.delivery import Delivery
from rqttl.inspector import message_view

#: Characters of an id in a file name; a file system takes 255.
LONGEST = 180


class Folder:
    """A folder, created if it is missing. Raises `OSError` if it cannot be used."""

    def __init__(self, path: Path) -> None:
        path.mkdir(exist_ok=True)
        self._path = path
        self._next: dict[str, int] = {}

    def store(self, id: str, body: bytes) -> Path:
        """Write a body into a new file, named after the id. After the return it survives a crash of the machine.

        If a file has the name already, the new one gets a number. After an `OSError` there is no file.
        """
        part = self._path / f".rqttl-{secrets.token_hex(8)}.part"
        file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            with os.fdopen(file, "wb") as stream:
                stream.write(body)
                stream.flush()
                os.fsync(file)
            path = self._name(part, file_name(id))
            self._sync_folder()
        finally:
            part.unlink(missing_ok=True)
        return path

    def _name(self, part: Path, name: str) -> Path:
        """Give a complete file its name. A link never replaces a file."""
        number = self._next.get(name, 1)
        while True:
            path = self._path / (name if number == 1 else f"{name}.{number}")
            number += 1
            with suppress(FileExistsError):
                _link(part, path)
                break
        self._next[name] = number
        return path

    def _sync_folder(self) -> None:
        folder = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _link(part: Path, path: Path) -> None:
    try:
        os.link(part, path)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        # a file system without links: an empty file takes the name and is replaced
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
        part.replace(path)


def file_name(id: str) -> str:
    """A file name for an id: letters, digits, `.`, `_`, `-`; all other characters are %-encoded.

    A name never begins with `.` or `-`. A long name is cut and ends with a hash of the id.
    """
    name = quote(id, safe="", errors="surrogatepass").replace("~", "%7E")
    if name[:1] in (".", "-", ""):
        # hidden files, folders, and options of programs
        name = f"%{ord(name[0]):02X}{name[1:]}" if name else "_"
    if len(name) > LONGEST:
        digest = hashlib.sha256(id.encode(errors="surrogatepass")).hexdigest()[:16]
        name = f"{name[:LONGEST]}~{digest}"
    return name


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
