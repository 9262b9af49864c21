"""The guard of a process that runs commands: a process of its own that ends them when that process is killed.

The standard library only: `rqttl.worker.groups` runs this file by its path, in an isolated interpreter, so it starts
fast and takes little memory. Each line on stdin is `+` or `-` and the number of a process group that begins or ends.
At the end of stdin the process that runs the commands has ended.

    python -I -S guard.py
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress


def left(lines: Iterable[bytes]) -> set[int]:
    """Read all lines. Returns the groups that have begun and not ended."""
    groups: set[int] = set()
    for line in lines:
        if line.startswith(b"+"):
            groups.add(int(line[1:]))
        else:
            groups.discard(int(line[1:]))
    return groups


if __name__ == "__main__":
    for group in left(sys.stdin.buffer):
        with suppress(ProcessLookupError, PermissionError):  # it has ended
            os.killpg(group, signal.SIGKILL)
