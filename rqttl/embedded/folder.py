"""The folder of an embedded server: its path, from a URL or the environment, and its mark.

redis-server and rqttl overwrite files in that folder (`address`, the append-only file). So rqttl uses a
folder only if the folder is new or empty, or has the *mark*: a file that declares the data as rqttl's. The mark is the
first file in a folder. No other file is written before the mark is complete and on the disk. So a killed process leaves
an empty folder, a folder with the beginning of a mark only, or a marked folder. Every process writes the same bytes at
the same place, so two processes do not disturb each other.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import pwd
import re
import stat
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
        path = os.fsdecode(folder or os.environ.get("RQTTL_HOME") or "")
        if path == "~" or path.startswith("~/"):
            return (_home() / path[2:]).resolve()
        return (Path(path).expanduser() if path else _data_home() / "rqttl").resolve()
    except (RuntimeError, ValueError) as error:  # no home directory is known, or the path is not valid
        raise EmbeddedUnavailable(f"embedded server: no folder for its data ({error}): set RQTTL_HOME") from error


def _home() -> Path:
    """The home of the user: `$HOME` if it is an absolute path, else the home in the user database."""
    home = os.environ.get("HOME", "")
    with contextlib.suppress(KeyError):
        for known in (home, pwd.getpwuid(os.getuid()).pw_dir):
            if known.startswith("/"):
                return Path(known)
    raise RuntimeError(f"HOME is {home!r}, expected an absolute path, and the system knows no home of this user")


def _data_home() -> Path:
    data = os.environ.get("XDG_DATA_HOME", "")
    return Path(data) if data.startswith("/") else _home() / ".local" / "share"  # a relative path is ignored


def claim(folder: Path) -> Path:
    """Make the folder if needed, and mark it if it is empty.

    Raises `EmbeddedUnavailable` and changes nothing if the folder belongs to another user, is open to others, or holds
    foreign files.
    """
    _make(folder)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _check_owner(folder, os.fstat(descriptor), forbidden=0o022)
        mark = _read_mark(descriptor)
        if mark != CONTENT:
            foreign = _first_file_beside_mark(descriptor)
            if foreign is None and CONTENT.startswith(mark or b""):
                _write_mark(descriptor)
            elif _read_mark(descriptor) != CONTENT:  # another process may have marked it between the two looks
                raise EmbeddedUnavailable(
                    f"embedded server: {folder} holds the foreign file {foreign or MARK!r}: {_RULE}"
                )
    finally:
        os.close(descriptor)
    return folder


def is_claimed(folder: Path) -> bool:
    """Tell whether a folder exists, is marked, and only this user may write to it. Changes nothing."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        _check_owner(folder, os.fstat(descriptor), forbidden=0o022)
        return _read_mark(descriptor) == CONTENT
    except EmbeddedUnavailable:
        return False
    finally:
        os.close(descriptor)


def _read_mark(folder: int) -> bytes | None:
    """The content of the mark; `None` without a file of this name, a wrong content for a file that is not regular."""
    try:
        descriptor = os.open(MARK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError:  # a symbolic link, a socket, or a file without the right to read
        return b"?"
    try:
        regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        return os.read(descriptor, len(CONTENT) + 1) if regular else b"?"
    finally:
        os.close(descriptor)


def _first_file_beside_mark(folder: int) -> str | None:
    with os.scandir(folder) as entries:
        return next((entry.name for entry in entries if entry.name != MARK), None)


def _write_mark(folder: int) -> None:
    descriptor = os.open(MARK, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        os.pwrite(descriptor, CONTENT, 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.fsync(folder)


def _make(folder: Path) -> None:
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)


def _check_owner(folder: Path, status: os.stat_result, *, forbidden: int) -> None:
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
                _check_owner(place, place.lstat(), forbidden=0o077)
            return address
    raise EmbeddedUnavailable(f"embedded server: no path is short enough for a socket: {', '.join(map(str, folders))}")
