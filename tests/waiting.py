"""Polling: how tests wait for another thread, process or server."""

import time
from collections.abc import Callable

#: Seconds for which a test waits. Only a hang reaches them.
PATIENCE = 300.0


def until(condition: Callable[[], object], patience: float = PATIENCE) -> None:
    """Poll until a condition holds. Raises `TimeoutError` after `patience` seconds."""
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the condition did not hold within {patience:g} s")
        time.sleep(0.005)
