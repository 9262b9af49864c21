"""Ending a wait from a signal handler never blocks, with any lock in the hands of the main thread."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.once]

PROGRAM = Path(__file__).with_name("interrupted_lines.py")
#: Seconds until a process counts as blocked for ever.
PATIENCE = 110


@pytest.mark.parametrize("what", ["consume", "receive", "run", "run_until_set", "reap"])
def test_a_signal_handler_may_end_a_wait_at_any_line(redis_url: str, what: str) -> None:
    done = subprocess.run(
        [sys.executable, PROGRAM, redis_url, what], capture_output=True, text=True, timeout=PATIENCE, check=False
    )

    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10
