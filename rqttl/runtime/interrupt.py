"""The clock of a driver, and objects that end the waits of threads, also from a signal handler.

A signal handler runs between two instructions of the main thread, and the main thread may hold any lock at that moment.
So these objects never wait for a lock that a running thread can hold. `threading.Event.set` does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress


class Gate:
    """A gate: one thread waits at it until another thread opens it. It opens once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def open(self) -> None:
        """Open the gate. Any thread and any signal handler may call this, and more than once."""
        with suppress(RuntimeError):  # the gate is open already
            self._lock.release()

    def wait(self, seconds: float) -> None:
        """Wait until the gate is open, for `seconds` at most. Only one thread may call this, and only once."""
        self._lock.acquire(timeout=seconds)


class Interrupt:
    """Ends all waits: the present and all later ones. Safe to share between threads and signal handlers."""

    def __init__(self) -> None:
        self._asked = False
        self._endings: list[Callable[[], object]] = []

    def asked(self) -> bool:
        """Return True after the first `ask`."""
        return self._asked

    def ask(self) -> None:
        """End all waits: those of now and all later ones."""
        self._asked = True
        for end in list(self._endings):
            end()

    def ending(self, end: Callable[[], object]) -> _Registration:
        """Call `end` at an `ask` within this block. The code in the block checks `asked()` first.

        `end` may still be called for a short time after the block, but only if `asked()` is true at its end.
        """
        return _Registration(self._endings, end)

    def wait(self, seconds: float) -> bool:
        """Sleep until `ask`, for `seconds` at most. Returns `asked()`."""
        gate = Gate()
        with self.ending(gate.open):
            if not self._asked:
                gate.wait(seconds)
        return self._asked


class _Registration:
    """A block in which `end` is one of the endings of an interrupt. A generator would take longer."""

    __slots__ = ("_end", "_endings")

    def __init__(self, endings: list[Callable[[], object]], end: Callable[[], object]) -> None:
        self._endings = endings
        self._end = end

    def __enter__(self) -> None:
        self._endings.append(self._end)

    def __exit__(self, *_: object) -> None:
        self._endings.remove(self._end)


class Wakeup:
    """Ends the wait of one thread after a change."""

    def __init__(self) -> None:
        self._gate: Gate | None = None

    def notify(self) -> None:
        """End the present wait. Any thread and any signal handler may call this."""
        gate = self._gate
        if gate is not None:
            gate.open()

    def wait(self, stop: Interrupt, seconds: Callable[[], float]) -> None:
        """Wait until `notify` or `stop`, and no longer than `seconds()`. Only one thread may wait.

        The wait calls `seconds` when it can be ended already, so a change that `seconds` misses ends the wait.
        """
        self._gate = gate = Gate()
        with stop.ending(gate.open):
            pause = 0.0 if stop.asked() else seconds()
            if pause > 0:
                gate.wait(pause)
        self._gate = None


class Timing:
    """The clock that flows and consumers go by, and the way in which time passes during a wait: here, real time."""

    #: The `freeze_time` of tests stops the functions of modules, and no wait would end. It leaves those of classes.
    seconds = staticmethod(time.monotonic)

    def now(self) -> int:
        """Return a time in ms that never goes back. Times of two threads may not be compared."""
        return int(self.seconds() * 1000)

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        time.sleep(seconds)

    def pause(self, end: Interrupt, ms: Callable[[], float], sooner: Wakeup | None = None) -> None:
        """Let `ms()` ms pass. `end` and `sooner` end the pause early; see `Wakeup.wait`."""
        (sooner or Wakeup()).wait(end, lambda: ms() / 1000)

    def leaps(self, prepare: Callable[[int], None]) -> AbstractContextManager[object]:
        """Within this block call `prepare(ms)` before time leaps forward by `ms`, and `prepare(0)` after that.

        A thread that has something to do at certain times cannot do it within a leap. Real time never leaps.
        """
        return nullcontext(prepare)
