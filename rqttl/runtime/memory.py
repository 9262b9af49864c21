"""The memory of processes."""

from __future__ import annotations

import os
import sys


def resident_bytes(process: int | str = "self") -> int:
    """Return the bytes of RAM of a process: of this one, or 0 for another one if the system does not say."""
    try:
        with open(f"/proc/{process}/statm", "rb") as file:  # noqa: PTH123  # it is read after each message
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        if process != "self":
            return 0
        import resource  # where there is no /proc, the peak has to do

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
