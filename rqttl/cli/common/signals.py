"""Signals that end a command which counts what it does: they wait until what is under way has been counted."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, TypeVar

import click

T = TypeVar("T")

_WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}


class Stop(KeyboardInterrupt):
    """A signal asked to end. Not an `Exception`, so that nothing on the way takes it for a failure."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Stopped(click.ClickException):
    """The command ended because of a signal; `where` says how far it was. Exit code 128 + signal, as of a shell."""

    def __init__(self, stop: Stop, where: str = "") -> None:
        super().__init__(f"{_WORDS[signal.Signals(stop.number)]}{where}")
        self.exit_code = 128 + stop.number  # type: ignore[misc]  # click asks the instance


class Stopping:
    """As a context manager: SIGINT, SIGTERM and SIGHUP raise `Stop`, but only where nothing uncounted is under way.

    What the caller's parent ignores (`nohup`, `&` in a script) stays ignored. After the first `Stop`, and after
    `finish`, further signals are ignored: then there is only the answer to print. For the main thread alone.
    """

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._pressed = 0
        self._held = self._breakable = self._over = False

    def __enter__(self) -> Stopping:
        for number in _WORDS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._meet)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def finish(self) -> None:
        """From now on no signal acts: what remains is short and must be whole."""
        self._over = True

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let a signal wait until the end of this block. If the block fails, its error is what counts."""
        self._held = True
        yield
        self._held = False  # not after a failure: then no `Stop` may take the place of the error
        if self._pressed and not self._over:
            self._raise()

    def call(self, function: Callable[[], T]) -> T:
        """Call a function that may hang, within `held`: a second signal does not wait for it."""
        self._breakable = True
        try:
            return function()
        finally:
            self._breakable = False

    def _meet(self, number: int, _: FrameType | None) -> None:
        if self._over:
            return
        again, self._pressed = bool(self._pressed), number
        if not self._held or (again and self._breakable):
            self._raise()

    def _raise(self) -> None:
        self._over = True
        raise Stop(self._pressed)
