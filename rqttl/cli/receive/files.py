"""A folder that gets the body of each message as a file: whole or not at all, and never over one that is there."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

#: Characters of an id that a file name holds at most; a file system takes 255.
LONGEST = 180


class Folder:
    """The folder, made if it is not there. Raises `OSError` if it cannot be used."""

    def __init__(self, path: Path) -> None:
        path.mkdir(exist_ok=True)
        self._path = path
        self._next: dict[str, int] = {}

    def store(self, id: str, body: bytes) -> Path:
        """Write a body into a new file, named after the id. When this returns it survives a crash of the machine.

        A file of that name is left as it is; the new one gets a number. Raises `OSError`, and then there is none.
        """
        part = self._path / f".rqttl-{secrets.token_hex(8)}.part"
        file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            with os.fdopen(file, "wb") as stream:
                stream.write(body)
                stream.flush()
                os.fsync(file)
            path = self._named(part, file_name(id))
            self._keep_names()
        finally:
            part.unlink(missing_ok=True)
        return path

    def _named(self, part: Path, name: str) -> Path:
        """Give a file that is complete its name: a link is made only where nothing is."""
        number = self._next.get(name, 1)
        while True:
            path = self._path / (name if number == 1 else f"{name}.{number}")
            number += 1
            with suppress(FileExistsError):
                _give_name(part, path)
                break
        self._next[name] = number
        return path

    def _keep_names(self) -> None:
        folder = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _give_name(part: Path, path: Path) -> None:
    try:
        os.link(part, path)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        # a file system without links: an empty file takes the name and is replaced
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
        part.replace(path)


def file_name(id: str) -> str:
    """A file name for an id: letters, digits, `.`, `_`, `-`, everything else %-encoded; plain names begin plainly.

    A long one is cut, and a hash of the id keeps it apart from others.
    """
    name = quote(id, safe="", errors="surrogatepass").replace("~", "%7E")
    if name[:1] in (".", "-", ""):
        # hidden files, folders, and what a program would take for an option
        name = f"%{ord(name[0]):02X}{name[1:]}" if name else "_"
    if len(name) > LONGEST:
        digest = hashlib.sha256(id.encode(errors="surrogatepass")).hexdigest()[:16]
        name = f"{name[:LONGEST]}~{digest}"
    return name
