"""The folder of an embedded server: its path, from a URL or the environment, and its mark.

redis-server and rqttl overwrite files in that folder (`address`, the append-only file). So rqttl uses a
folder only if the folder is new or empty, or has the *mark*: a file that declares the data as rqttl's. The mark is the
first file in a folder. No other file is written before the mark is complete and on the disk. So a killed process leaves
an empty folder, a folder with the beginning of a mark only, or a marked folder. Every process writes the same bytes at
the same place, so two processes do not disturb each other.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import re
import sys
import tempfile
from pathlib import Path
from urllib.parse import unquote_to_bytes

from rqttl.errors import EmbeddedUnavailable, InvalidInput
from rqttl.text import plain_text

logger = logging.getLogger("rqttl")

#: Beginning of a URL of an embedded server.
SCHEME = "embedded://"
MARK = "rqttl-embedded"
CONTENT = b"This folder holds the data of an embedded server of rqttl, format 1. Keep no other files here.\n"

_FORM = "expected embedded:///absolute/path, or embedded:// for the default folder"
_RULE = f"the folder must be new, empty, or marked as data of rqttl (by its file {MARK}); nothing was changed"
_LONGEST_SOCKET_PATH = 107 if sys.platform == "linux" else 103  # bytes, a limit of the kernel


def url_in_use(url: str | None) -> str:
    """The URL to connect to: the given one, else `$RQTTL_URL`, else `embedded://`, with a warning.

    A forgotten variable would otherwise show only by messages that nobody receives. `embedded://`, given or in the
    variable, silences the warning.
    """
    text = "" if url is None else plain_text(url)
    if text is None:
        return url  # type: ignore[return-value]  # a value of another type: the client refuses it
    text = text or os.environ.get("RQTTL_URL", "")
    if text:
        return text
    _warn_of_default_server()
    return SCHEME


@functools.cache  # once in a process
def _warn_of_default_server() -> None:
    logger.warning(
        "using the embedded server in %s: no URL is given, and $RQTTL_URL is not set (embedded:// says so on purpose)",
        locate(None),
    )


def folder_of(url: str) -> str | None:
    """The folder in an `embedded://` URL; `None` for the default folder.

    Raises `InvalidInput` for a URL of another form. The message does not show the URL, which may hold a password.
    """
    host, slash, below = url.removeprefix(SCHEME).partition("/")
    path = slash + below
    folder = os.fsdecode(unquote_to_bytes(os.fsencode(path)))
    for wrong, got in (
        ("@" in host, "a user or a password: an embedded server has none"),
        (re.search(r"[?#]", url), "an option or a fragment: there is none (%3F is a ?, %23 is a # in a path)"),
        (host, "a relative path or a host: the path begins with a third slash"),
        (re.search(r"%(?![0-9A-Fa-f]{2})", path), "a % without two hexadecimal digits: %25 is a % in a path"),
        ("\0" in folder, "a NUL byte in the path"),
    ):
        if wrong:
            raise InvalidInput(f"url: {_FORM}, got {got}")
    return folder or None


def locate(folder: str | os.PathLike[str] | None) -> Path:
    """The absolute path of `folder` or of the default folder. The folder need not exist.

    Raises `EmbeddedUnavailable` if the path is not valid or no home directory is known.
    """
    try:
        data = os.environ.get("XDG_DATA_HOME", "")  # a relative path is ignored
        base = Path(data) if data.startswith("/") else Path("~/.local/share")
        path = os.fsdecode(folder or os.environ.get("RQTTL_HOME") or base / "rqttl")
        return Path(path).expanduser().resolve()
    except (RuntimeError, ValueError) as error:  # no home directory is known, or the path is not valid
        raise EmbeddedUnavailable(f"embedded server: no folder for its data ({error}): set RQTTL_HOME") from error


def claim(folder: Path) -> Path:
    """Make the folder if needed, and mark it if it is empty.

    Raises `EmbeddedUnavailable` and changes nothing if the folder belongs to another user, is open to others, or holds
    foreign files.
    """
    _make(folder)
    _check_owner(folder, forbidden=0o022)
    mark = _read_mark(folder)
    if mark != CONTENT:
        foreign = next((entry.name for entry in folder.iterdir() if entry.name != MARK), None)
        if foreign is None and CONTENT.startswith(mark or b""):
            _write_mark(folder)
        elif _read_mark(folder) != CONTENT:  # another process may have marked it between the two looks
            raise EmbeddedUnavailable(f"embedded server: {folder} holds the foreign file {foreign or MARK!r}: {_RULE}")
    return folder


def is_claimed(folder: Path) -> bool:
    """Tell whether a folder exists, is marked, and only this user may write to it. Changes nothing."""
    try:
        _check_owner(folder, forbidden=0o022)
        return _read_mark(folder) == CONTENT
    except (EmbeddedUnavailable, OSError):
        return False


def _read_mark(folder: Path) -> bytes | None:
    """The content of the mark; `None` without a file of this name, a wrong content for a file that is not regular."""
    mark = folder / MARK
    if not os.path.lexists(mark):
        return None
    return mark.read_bytes() if mark.is_file() and not mark.is_symlink() else b"?"


def _write_mark(folder: Path) -> None:
    """Write the mark, and wait until it is on the disk. Never truncates it: another process may have written it."""
    for place, flags in ((folder / MARK, os.O_WRONLY | os.O_CREAT), (folder, os.O_RDONLY)):
        descriptor = os.open(place, flags | os.O_CLOEXEC, 0o600)
        try:
            if place != folder:
                os.pwrite(descriptor, CONTENT, 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _make(folder: Path) -> None:
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)


def _check_owner(folder: Path, *, forbidden: int) -> None:
    status = folder.lstat()
    if status.st_uid != os.geteuid():
        raise EmbeddedUnavailable(f"embedded server: {folder} belongs to user {status.st_uid}, not to {os.geteuid()}")
    if status.st_mode & forbidden:
        raise EmbeddedUnavailable(
            f"embedded server: {folder} is open to others (mode {status.st_mode & 0o777:o}): chmod it to 700"
        )


def choose_address(folder: Path) -> Path:
    """The path of the socket: in the folder, or in a private short folder if that path is too long for a socket."""
    name = f"rqttl-{os.geteuid()}-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]}"
    bases = (os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp")  # noqa: S108  # a private folder in it
    folders = [folder, *(Path(base).resolve() / name for base in bases if base and Path(base).is_dir())]
    for place in folders:
        address = place / "redis.sock"
        if len(os.fsencode(address)) <= _LONGEST_SOCKET_PATH:
            if place != folder:
                _make(place)
                _check_owner(place, forbidden=0o077)
            return address
    raise EmbeddedUnavailable(f"embedded server: no path is short enough for a socket: {', '.join(map(str, folders))}")
