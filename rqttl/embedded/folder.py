"""The folder of an embedded server: its path, from a URL or the environment, and its mark.

redis-server writes in that folder. So rqttl uses a folder only if it is new or empty, or has the *mark*: a file that
declares the data as rqttl's. The mark is the first file in a folder.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import sys
from pathlib import Path
from urllib.parse import unquote_to_bytes

from rqttl.errors import EmbeddedUnavailable, InvalidInput
from rqttl.text import plain_text

logger = logging.getLogger("rqttl")

#: Beginning of a URL of an embedded server.
SCHEME = "embedded://"
MARK = "rqttl-embedded"

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
    path = url.removeprefix(SCHEME)
    if (path and not path.startswith("/")) or "?" in path or "#" in path:
        form = "embedded:///absolute/path (%3F is a ?, %23 is a #), or embedded:// for the default folder"
        raise InvalidInput(f"url: expected {form}")
    return os.fsdecode(unquote_to_bytes(os.fsencode(path))) or None


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
    make_private(folder, forbidden=0o022)
    foreign = next((entry.name for entry in folder.iterdir()), None)
    if (folder / MARK).is_file():  # looked for last: another process may have marked the folder meanwhile
        return folder
    if foreign is not None:
        raise EmbeddedUnavailable(f"embedded server: {folder} holds the foreign file {foreign!r}: {_RULE}")
    (folder / MARK).write_text("This folder holds the data of an embedded server of rqttl. Keep no other files here.\n")
    return folder


def is_claimed(folder: Path) -> bool:
    """Tell whether a folder exists, is marked, and only this user may write to it. Changes nothing."""
    return is_private(folder) and (folder / MARK).is_file()


def is_private(folder: Path) -> bool:
    """Tell whether a folder exists and only this user may write to it."""
    try:
        return not _fault(folder, 0o022)
    except OSError:
        return False


def make_private(folder: Path, *, forbidden: int) -> None:
    """Make a folder if needed. Raises `EmbeddedUnavailable` if it is another user's, or has a `forbidden` mode."""
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    if fault := _fault(folder, forbidden):
        raise EmbeddedUnavailable(f"embedded server: {folder} {fault}")


def _fault(folder: Path, forbidden: int) -> str:
    status = folder.lstat()
    if status.st_uid != os.geteuid():
        return f"belongs to user {status.st_uid}, not to {os.geteuid()}"
    if status.st_mode & forbidden:
        return f"is open to others (mode {status.st_mode & 0o777:o}): chmod it to 700"
    return ""


def address_of(folder: Path) -> Path:
    """The path of the socket: in the folder, or in a private short folder if that path is too long for a socket."""
    address = folder / "redis.sock"
    if len(os.fsencode(address)) <= _LONGEST_SOCKET_PATH:
        return address
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    return Path("/tmp", f"rqttl-{os.geteuid()}-{digest}", "redis.sock")  # noqa: S108  # nobody else may write there
