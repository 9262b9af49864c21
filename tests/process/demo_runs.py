"""Runs of the demo as a user starts them."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.process.embedded_users import ROOT, processes_with

LIMIT = 2_000


def start(folder: Path, *arguments: str, spark: bool = False, **environment: str) -> subprocess.Popen[str]:
    kept = {name: value for name, value in os.environ.items() if name != "RQTTL_URL"}
    words = ["--limit", str(LIMIT), "--spark" if spark else "--no-spark", *arguments]
    return subprocess.Popen(
        [sys.executable, "-m", "rqttl.cli", "demo", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**kept, "RQTTL_HOME": str(folder), **environment},
    )


def family(folder: Path) -> list[int]:
    """The processes of a demo in this folder: they have its name in their environment."""
    return processes_with("environ", f"RQTTL_HOME={folder}\0".encode())


def command_line(pid: int) -> bytes:
    """The command line of a process; nothing if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def check_document(document: Any) -> None:
    total = document["total"]
    assert document["problems"] == []
    assert total == {name: sum(one[name] for one in document["carriers"].values()) for name in total}
    assert total["sent"] == LIMIT == total["handled"] + total["expired"] + total["rejected"]
    assert total["dead_lettered"] == total["expired"] + total["rejected"]
    assert total["waiting"] == 0
    # the few calls that are rejected could all expire on a slow machine
    assert min(total["handled"], total["expired"]) > 0
