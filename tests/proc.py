"""Processes by the `/proc` of Linux."""

from pathlib import Path


def process_fields(pid: int | str) -> list[str]:
    """The fields of `/proc/PID/stat` behind the name: state, parent and so on; `[]` when the process has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text.rpartition(")")[2].split()


def is_running(pid: int | str) -> bool:
    """True if a process is there, and is no zombie."""
    return process_fields(pid)[:1] not in ([], ["Z"], ["X"])


def has_closed_all(pid: int | str) -> bool:
    """True if a process is gone, or a zombie without threads: either has closed all its connections."""
    try:
        return not is_running(pid) and len(list(Path(f"/proc/{pid}/task").iterdir())) == 1
    except (FileNotFoundError, ProcessLookupError):
        return True
