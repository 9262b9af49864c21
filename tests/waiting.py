"""How tests wait for another thread, process or server: by polling, or at a gate."""

import threading
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


class Gate:
    """A handler that tells when it has begun, and works until the gate is open."""

    def __init__(self) -> None:
        self._begun, self._open = threading.Semaphore(0), threading.Event()

    def __call__(self, _: object) -> None:
        self._begun.release()
        assert self._open.wait(PATIENCE)

    def reached(self, count: int = 1) -> None:
        """Wait until it has been called so many times."""
        for _ in range(count):
            assert self._begun.acquire(timeout=PATIENCE)

    def open(self) -> None:
        """Let all calls end, also later ones."""
        self._open.set()
