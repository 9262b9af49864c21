"""Workers in a thread of the test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rqttl import Worker
from tests.waiting import PATIENCE


@contextmanager
def running(worker: Worker) -> Iterator[None]:
    """Run a worker in a thread, and stop it at the end of the block."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            worker.run()
        except BaseException as error:  # noqa: BLE001  # the test raises it
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()
        if errors:
            raise errors[0]
