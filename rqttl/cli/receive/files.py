"""A folder with the body of each message as a file. A file is written whole or not at all, and replaces no other."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

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
