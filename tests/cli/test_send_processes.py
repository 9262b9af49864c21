"""`rqttl send` as a process: signals, a server that goes away, pipes, and progress. Its counts are exact."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import IO, Any

import pytest

from rqttl import Broker, Queue
from rqttl.cli.common import output
from rqttl.cli.common.output import Progress
from rqttl.cli.common.running import SignalGuard, SignalReceived
from tests.cli.conftest import Run
from tests.cli.processes import Terminal, command, environment
from tests.servers import Server
from tests.waiting import PATIENCE

pytestmark = pytest.mark.once


def start(redis_url: str, *arguments: str, **pipes: Any) -> subprocess.Popen[bytes]:
    # without a buffer nothing is left to be written when the pipe is closed, which the process may have left by then
    pipes = {"bufsize": 0, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **pipes}
    return subprocess.Popen(command("send", "orders", "--url", redis_url, *arguments), env=environment(), **pipes)


def write_on(pipe: IO[bytes]) -> threading.Thread:
    """Write the numbers from 0 on, a line each, until nobody reads any more."""

    def write() -> None:
        number = 0
        try:
            while True:
                pipe.write(b"".join(b"%d\n" % i for i in range(number, number + 1000)))
                number += 1000
        except BrokenPipeError:
            pass

    writer = threading.Thread(target=write)
    writer.start()
    return writer


def end(process: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    """The exit code, and the output."""
    process.wait(PATIENCE)
    assert process.stdout is not None
    assert process.stderr is not None
    return process.returncode, process.stdout.read(), process.stderr.read()


def wait_for(queue: Queue, messages: int) -> None:
    """Wait until so many have been stored."""
    while messages:
        came = len(queue.receive_many(messages, wait="60s", auto_ack=True))
        assert came
        messages -= came


@pytest.mark.slow
def test_lines_are_stored_as_they_come_and_ctrl_c_leaves_exact_counts(orders: Queue, redis_url: str) -> None:
    with start(redis_url) as process:
        assert process.stdin is not None
        process.stdin.write(b"one\ntwo\nhalf a li")
        process.stdin.flush()
        wait_for(orders, 1)  # both lines are there though the writer goes on

        process.send_signal(signal.SIGINT)
        process.stdin.close()  # it ends the read before which the signal may have come
        line = end(process)

    assert line == (130, b"stored 2 messages in orders\n", b"rqttl: interrupted after line 2 of stdin\n")
    assert orders.stats().enqueued == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "number, code, word", [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
@pytest.mark.parametrize("after", [1, 700])
def test_the_count_of_an_interrupted_command_is_exact(
    orders: Queue, redis_url: str, number: int, code: int, word: str, after: int
) -> None:
    with start(redis_url, "--json") as process:
        assert process.stdin is not None
        writer = write_on(process.stdin)
        wait_for(orders, after)
        process.send_signal(number)
        ended, stdout, stderr = end(process)
        writer.join()

    stored = json.loads(stdout)["stored"]
    assert (ended, stderr.decode()) == (code, f"rqttl: {word} after line {stored:,} of stdin\n")
    assert json.loads(stdout)["unknown"] == 0
    assert orders.stats().enqueued == stored
    assert [one.body for one in orders.peek(stored)] == [b"%d" % i for i in range(after, stored)]


@pytest.mark.slow
def test_a_terminal_has_progress_and_ctrl_c_leaves_only_the_counts(
    orders: Queue, redis_url: str, tmp_path: Path
) -> None:
    path = tmp_path / "numbers"
    os.mkfifo(path)

    with Terminal("send", "orders", "--url", redis_url, "--file", str(path)) as terminal:
        with path.open("wb", buffering=0) as pipe:
            writer = write_on(pipe)
            terminal.until(" messages 0:")
            terminal.type(b"\x03")
            code = terminal.end()
            writer.join()
        printed = terminal.screen.replace("\n  ", " ")  # the last line is folded

    stored = orders.stats().enqueued
    assert code == 130
    assert re.search(r"[\d,]+ messages +0:00:\d\d", printed)
    # the line of the progress is emptied, and then
    assert printed.endswith(
        f"\x1b[2Kstored {stored:,} messages in orders\nrqttl: interrupted after line {stored:,} of {path}\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags, told, stored",
    [((), "one message a line", [b"a", b"b"]), (("--format", "body"), "all that you type is one message", [b"a\nb\n"])],
)
def test_on_a_terminal_messages_are_typed(
    orders: Queue, redis_url: str, flags: tuple[str, ...], told: str, stored: list[bytes]
) -> None:
    with Terminal("send", "orders", *flags, "--url", redis_url) as terminal:
        terminal.until(f"rqttl: {told}; Ctrl-D ends\n")
        terminal.type(b"a\rb\r\x04")
        assert terminal.end() == 0

    assert [one.body for one in orders.peek()] == stored


@pytest.mark.slow
def test_after_a_lost_redis_the_stored_and_unknown_counts_bound_the_stored_messages(
    start_server: Callable[..., Server],
) -> None:
    server = start_server(appendonly="yes", appendfsync="always")
    with server.client() as client:
        Broker(client).declare_queue("orders")
        with start(server.url, "--json") as process:
            assert process.stdin is not None
            writer = write_on(process.stdin)
            wait_for(Broker(client).queue("orders"), 300)
            server.kill()
            code, stdout, stderr = end(process)
            writer.join()
    line = json.loads(stdout)
    server.start()
    with server.client() as client:
        stored = Broker(client).queue("orders").stats().enqueued

    assert (code, stderr.count(b"\n")) == (4, 1)
    assert line["stored"] <= stored <= line["stored"] + line["unknown"]
    assert line["stored"] >= 300 - 250
    assert line["unknown"] <= 250


@pytest.mark.parametrize("presses, code, unknown", [(1, 130, 0), (2, 130, 3)])
def test_a_second_ctrl_c_does_not_wait_for_redis(
    run: Run, orders: Queue, monkeypatch: pytest.MonkeyPatch, presses: int, code: int, unknown: int
) -> None:
    enqueue_many = Queue.enqueue_many

    def pressed(queue: Queue, messages: Any) -> Any:
        for _ in range(presses):
            signal.raise_signal(signal.SIGINT)
        return enqueue_many(queue, messages)

    monkeypatch.setattr(Queue, "enqueue_many", pressed)

    result = run("send", "orders", "a", "b", "c")

    line = f"stored {3 - unknown} messages in orders" + ("; not known: 3 messages" if unknown else "")
    assert (result.exit_code, result.stdout) == (code, f"{line}\n")
    assert result.stderr == f"rqttl: interrupted after {3 - unknown} of 3 bodies\n"
    assert orders.stats().enqueued == 3 - unknown


@pytest.mark.slow
@pytest.mark.parametrize("full", [False, True])
def test_that_nobody_reads_the_answer_hides_no_failure(broker: Broker, redis_url: str, full: bool) -> None:
    orders = broker.declare_queue("orders", max_length=2, overflow="reject-publish")
    ours, theirs = os.pipe()
    os.close(ours)

    with start(redis_url, stdout=theirs) as process:
        os.close(theirs)
        _, stderr = process.communicate(b"a\nb\nc\n" if full else b"a\nb\n", PATIENCE)

    line = b"rqttl: queue 'orders' is full: 1 message refused (--max-length is 2) [queue_full]\n"
    assert (process.returncode, stderr) == ((3, line) if full else (0, b""))
    assert orders.stats().ready == 2


Shown = Callable[[], str]
END = "\x04END"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Shown]]:
    """A function that makes stderr a terminal of 80 columns. It returns a function for the output since then."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    monkeypatch.setattr(output, "MOMENT", 0)
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
    with Progress(4_000_000) as progress:
        progress.advance(1_000_000, 250)
        progress.advance(2_000_000, 500)

    drawn = printed()
    first, *_, last = lines(drawn)
    assert re.fullmatch(r"[━╸╺]+ +25% 250 messages +\S+", first)
    assert re.fullmatch(r"[━╸╺]+ +75% 750 messages +\S+", last)
    assert drawn.endswith("\x1b[1A\x1b[2K"), "no trace is left"


def test_progress_is_hidden_of_short_commands_in_pipes_and_on_dumb_terminals(
    terminal: Callable[[], Shown], monkeypatch: pytest.MonkeyPatch
) -> None:
    def advance(*, visible: bool = True) -> None:
        with Progress(4, visible=visible) as progress:
            progress.advance(1, 1)

    printed, file = terminal(), StringIO()
    advance(visible=False)
    with monkeypatch.context() as patched:
        patched.setattr(output, "MOMENT", 1e9)
        advance()
    monkeypatch.setenv("TERM", "dumb")
    advance()
    monkeypatch.setattr(sys, "stderr", file)
    monkeypatch.setenv("TERM", "xterm")
    advance()

    assert printed() == ""
    assert file.getvalue() == ""


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture
def handlers() -> Iterator[None]:
    """The signal handlers of a new process, instead of those of the test process."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_waits_for_the_end_of_a_deferring_block(number: int) -> None:
    done = []

    def work() -> None:
        with SignalGuard() as guard, guard.deferred():
            signal.raise_signal(number)
            signal.raise_signal(number)
            done.append(guard.call(lambda: "called"))

    with pytest.raises(SignalReceived) as caught:
        work()
    assert (done, caught.value.number) == (["called"], number)


@pytest.mark.usefixtures("handlers")
def test_the_error_of_a_deferring_block_goes_before_a_signal() -> None:
    def fail() -> None:
        with SignalGuard() as guard, guard.deferred():
            signal.raise_signal(signal.SIGINT)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()


@pytest.mark.usefixtures("handlers")
def test_signals_are_ignored_after_the_first_one_and_after_finish() -> None:
    with SignalGuard() as guard:
        with pytest.raises(SignalReceived):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    with SignalGuard() as guard:
        guard.finish()
        signal.raise_signal(signal.SIGTERM)
        with guard.deferred():
            signal.raise_signal(signal.SIGINT)
