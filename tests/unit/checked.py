"""A strict type checker, run on programs, for the oldest Python."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.repository import ROOT
from tests.unit.test_wheel import made_once


def said_of(programs: Mapping[str, str], factory: pytest.TempPathFactory, name: str) -> str:
    """The output of `mypy --strict`. One process of a test run asks for all of them.

    `programs` are texts by file name, `name` is that of the check. No two checks run at once: they share a cache.
    """

    def make(folder: Path) -> None:
        for file, text in programs.items():
            (folder / file).write_text(text, encoding="utf-8")
        with (folder.parent / "mypy.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            done = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "mypy",
                    "--strict",
                    "--no-error-summary",
                    "--hide-error-context",
                    "--config-file=",
                    "--python-version=3.10",
                    f"--cache-dir={ROOT / '.mypy_cache' / 'programs'}",
                    "--scripts-are-modules",
                    *[str(folder / file) for file in programs],
                ],
                cwd=folder,
                env={**os.environ, "MYPYPATH": str(ROOT)},
                capture_output=True,
                text=True,
                check=False,
            )
        assert (done.returncode in (0, 1), done.stderr) == (True, "")
        (folder / "said").write_text(done.stdout, encoding="utf-8")

    return (made_once(factory, name, make) / "said").read_text(encoding="utf-8")
