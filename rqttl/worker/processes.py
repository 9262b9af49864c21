"""Copies of a process that handles messages: a handler may fork."""

from __future__ import annotations

import os
import sys
import traceback
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn


def tell_copies(leave: Callable[[], None]) -> None:
    """Call a method in each process that this one forks from now on, as long as its object lives."""
    if not hasattr(os, "register_at_fork"):
        return  # there is no fork on this system
    method = weakref.WeakMethod(leave)

    def call() -> None:
        if (alive := method()) is not None:
            alive()

    os.register_at_fork(after_in_child=call)


def end_copy(error: BaseException | None) -> NoReturn:
    """End a forked process at the end of its handler, as Python ends a program with this error."""
    code: object = None
    if isinstance(error, SystemExit):
        code = error.code
    elif error is not None:
        traceback.print_exception(error)
        code = 1
    if code is not None and not isinstance(code, int):
        sys.stderr.write(f"{code}\n")
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # the handler may have closed it
            stream.flush()
    os._exit((code or 0) & 0xFF)
