"""The progress of a long sending: a bar where the length is known, else a spinner; on a terminal alone."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
from collections.abc import Callable, Iterator
from io import StringIO

import pytest

from rqttl.cli.common import progress as send_progress
from rqttl.cli.common.progress import Progress
from tests.waiting import PATIENCE

Shown = Callable[[], str]
END = "\x04END"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Shown]]:
    """A function that makes stderr a terminal of 80 columns. It returns a function for the output since then."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    monkeypatch.setattr(send_progress, "MOMENT", 0)
    for name in ("NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with open(theirs, "w", encoding="utf-8") as stream:  # noqa: PTH123  # it is a descriptor

        def read() -> str:
            # what was written comes when the kernel gets to it, and in its order
            stream.write(END)
            stream.flush()
            drawn = b""
            while not drawn.endswith(END.encode()):
                assert select.select([ours], [], [], PATIENCE)[0]
                drawn += os.read(ours, 65536)
            return drawn.decode().removesuffix(END)

        def use() -> Shown:
            # not before: pytest sets stderr anew when the test itself begins
            monkeypatch.setattr(sys, "stderr", stream)
            return read

        yield use
    os.close(ours)


def lines(drawn: str) -> list[str]:
    """Each state that was drawn, without the escapes for cursor and colours."""
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", drawn)
    return [line for line in re.split(r"[\r\n]+", plain) if line]


def test_of_a_file_a_bar_shows_how_much_is_done(terminal: Callable[[], Shown]) -> None:
    printed = terminal()
    with Progress(4_000_000, in_bytes=True) as progress:
        progress.advance(1_000_000, 250)
        progress.advance(2_000_000, 500)

    first, *_, last = lines(printed())
    assert re.fullmatch(r"[━╸╺]{12} +25% 1\.0 MB of 4\.0 MB  250 messages  [\d,]+/s +\S+", first)
    assert re.fullmatch(r"[━╸╺]{12} +75% 3\.0 MB of 4\.0 MB  750 messages  [\d,]+/s +\S+", last)


def test_the_progress_of_a_long_sending_counts_the_expired_ones(terminal: Callable[[], Shown]) -> None:
    printed = terminal()
    with Progress(None, in_bytes=True) as progress:
        progress.advance(1_000, 250)
        progress.advance(1_000, 1_000, expired=1_200)

    first, *_, last = lines(printed())
    assert re.fullmatch(r"\S 250 messages  [\d,]+/s +0:00:\d\d", first)
    assert re.fullmatch(r"\S 1,250 messages, 1,200 already expired  [\d,]+/s +0:00:\d\d", last)


def test_of_arguments_the_bar_counts_messages(terminal: Callable[[], Shown]) -> None:
    printed = terminal()
    with Progress(4, in_bytes=False) as progress:
        progress.advance(1, 1)

    assert re.fullmatch(r"[━╸╺]{12} +25% 1 message  [\d,]+/s +\S+", lines(printed())[-1])


def test_progress_fits_the_terminal_and_leaves_no_trace(terminal: Callable[[], Shown]) -> None:
    printed = terminal()
    with Progress(10**15, in_bytes=True) as progress:
        progress.advance(10**15 - 1, 10**12)

    drawn = printed()
    assert max(map(len, lines(drawn))) <= 80
    assert drawn.endswith("\r\n\x1b[?25h\r\x1b[1A\x1b[2K")  # the cursor is back, on the emptied line


def test_a_short_command_has_no_progress(terminal: Callable[[], Shown], monkeypatch: pytest.MonkeyPatch) -> None:
    printed = terminal()
    monkeypatch.setattr(send_progress, "MOMENT", 1e9)

    with Progress(4, in_bytes=False) as progress:
        progress.advance(1, 1)

    assert printed() == ""


def test_progress_is_hidden_in_pipes_and_on_dumb_terminals(
    terminal: Callable[[], Shown], monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = terminal()
    with Progress(4, in_bytes=False, visible=False) as progress:
        progress.advance(1, 1)
    monkeypatch.setenv("TERM", "dumb")
    with Progress(4, in_bytes=False) as progress:
        progress.advance(1, 1)
    file = StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    with Progress(4, in_bytes=False) as progress:
        progress.advance(1, 1)

    assert printed() == ""
    assert file.getvalue() == ""
