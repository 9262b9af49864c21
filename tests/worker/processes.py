"""Workers in processes of their own, with a folder for their journal; and in threads of the test."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import Self

from rqttl.runtime.stop_signals import SAME
from tests.waiting import PATIENCE, until

if TYPE_CHECKING:  # spawned workers import this module before `late` changes what `Worker` copies
    from rqttl import Worker

ROOT = Path(__file__).parents[2]
#: The folder of `home` in which workers find modules, too. See `tests.worker.late`.
SITE = "site"


def module_path(home: Path) -> str:
    """The folders in which workers and their children look for modules."""
    return f"{home / SITE}{os.pathsep}{ROOT}"


class WorkerProcess:
    """`rqttl worker` with these arguments. `home` is the folder of its journal and of the files for handlers."""

    def __init__(self, url: str, home: Path, *arguments: str, call: str | None = None) -> None:
        self.home = home
        handler = [] if call is None else ["--call", f"tests.worker.handlers:{call}"]
        environment = {**os.environ, "RQTTL_URL": url, "RQTTL_TEST_HOME": str(home), "PYTHONPATH": module_path(home)}
        self._errors = (home / "stderr").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rqttl.cli", "worker", *arguments, *handler],
            env=environment,
            stderr=self._errors,
            cwd=home,
        )

    def journal(self, word: str = "") -> list[list[str]]:
        """The events so far, or those of one word."""
        return events(self.home, word)

    def log(self) -> str:
        """The lines on stderr so far."""
        return (self.home / "stderr").read_text()

    def until_journal(self, word: str, count: int = 1) -> list[list[str]]:
        """Wait until the journal has so many events of a word. Returns them."""
        until(lambda: len(self.journal(word)) >= count or self.process.poll() not in (None, 0), PATIENCE)
        assert len(self.journal(word)) >= count, self.log()
        return self.journal(word)

    def until_log(self, text: str, count: int = 1) -> None:
        """Wait until the log has a text so many times."""
        until(lambda: self.log().count(text) >= count or self.process.poll() is not None, PATIENCE)
        assert self.log().count(text) >= count, self.log()

    def open(self, name: str = "go") -> None:
        """Make a file for which handlers wait."""
        (self.home / name).touch()

    def send(self, number: int) -> None:
        """Send a signal to the worker alone."""
        self.process.send_signal(number)

    def send_another(self, number: int) -> None:
        """Send a signal that the worker does not take for the one that its log shows already."""
        seen = time.monotonic()
        until(lambda: time.monotonic() - seen > SAME)
        self.send(number)

    def end(self) -> int:
        """Wait for the end. Returns the exit code."""
        return self.process.wait(PATIENCE)

    def finished(self) -> Self:
        """Wait for its end, which has to be a good one. Returns the worker."""
        assert self.end() == 0, self.log()
        return self

    def stop(self) -> int:
        """Stop it by SIGTERM. Returns the exit code."""
        self.send(signal.SIGTERM)
        return self.end()

    def remove(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()
        self._errors.close()


def events(home: Path, word: str = "") -> list[list[str]]:
    """The events of a journal so far, or those of one word."""
    path = home / "journal"
    lines = path.read_text().splitlines() if path.exists() else []
    return [line.split(" ") for line in lines if line.startswith(word)]


def ids(events: Sequence[Sequence[str]]) -> list[str]:
    """The second words of events."""
    return [event[1] for event in events]


@contextmanager
def running(worker: "Worker") -> Iterator["Worker"]:
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
        yield worker
    finally:
        worker.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()
        if errors:
            raise errors[0]
