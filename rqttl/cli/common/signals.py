"""Signals that end a command with exact counts: a signal waits until the call that is running has been counted."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

import click

T = TypeVar("T")

_WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}


class SignalReceived(KeyboardInterrupt):
    """A signal asked the command to end. It is not an `Exception`, so that no handler takes it for a failure."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Interrupted(click.ClickException):
    """The command ended by a signal; `position` says how far it was. The exit code is 128 + signal, as in a shell."""

    def __init__(self, received: SignalReceived, position: str = "") -> None:
        super().__init__(f"{_WORDS[signal.Signals(received.number)]}{position}")
        self.exit_code = 128 + received.number  # type: ignore[misc]  # click asks the instance


class SignalGuard:
    """A context manager in which SIGINT, SIGTERM and SIGHUP raise `SignalReceived`, but not within `deferred`.

    A signal that the parent process ignores (`nohup`, `&` in a script) stays ignored. After the first `SignalReceived`,
    and after `finish`, further signals are ignored: only the answer is left to print. For the main thread alone.
    """

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._received = 0
        self._deferring = self._breakable = self._over = False

    def __enter__(self) -> SignalGuard:
        for number in _WORDS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def finish(self) -> None:
        """Ignore signals from now on: the work that is left is short and must be whole."""
        self._over = True

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Let a signal wait until the end of this block. If the block fails, its error goes first."""
        self._deferring = True
        yield
        self._deferring = False  # not after a failure: then no `SignalReceived` may take the place of the error
        if self._received and not self._over:
            self._raise()

    def call(self, function: Callable[[], T]) -> T:
        """Call a function that may hang, within `deferred`: a second signal does not wait for it."""
        self._breakable = True
        try:
            return function()
        finally:
            self._breakable = False

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self._over:
            return
        again, self._received = bool(self._received), number
        if not self._deferring or (again and self._breakable):
            self._raise()

    def _raise(self) -> None:
        self._over = True
        raise SignalReceived(self._received)
