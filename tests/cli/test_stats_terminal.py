"""`rqttl stats` on a terminal, live, while the terminal, Redis and the queues change."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable

import pytest

from rqttl import Broker
from tests.cli.processes import Terminal, on_terminal
from tests.servers import Server

pytestmark = [pytest.mark.slow, pytest.mark.once]

ENTER, LEAVE = b"\x1b[?1049h\x1b[?25l", b"\x1b[?25h\x1b[?1049l"
WATCH = ("stats", "--watch", "--interval", "100ms")
#: The frame says nothing about a Redis that is slow to answer: on a busy machine each one may be.
UNHURRIED = "from rqttl.cli.stats import watch; watch.SLOW = 3600"


def screens(raw: bytes) -> list[list[str]]:
    """The lines of each frame, without the escapes for style and place."""
    frames = re.findall(rb"\x1b\[\?7l\x1b\[H(.*?)\x1b\[J\x1b\[\?7h", raw, re.DOTALL)
    return [re.sub(r"\x1b\[[0-9;]*[mK]", "", one.decode()).replace("\r", "").split("\n") for one in frames]


def test_a_watch_shows_what_changes_until_ctrl_c_and_leaves_the_screen_as_it_was(
    broker: Broker, redis_url: str
) -> None:
    orders = broker.declare_queue("orders")

    with Terminal(*WATCH, "--url", redis_url, first=UNHURRIED) as terminal:
        terminal.until("orders")
        orders.enqueue_many([b"x"] * 1_234)
        terminal.until("1,234")
        orders.receive_many(234, auto_ack=True)
        terminal.until("1,000")
        assert terminal.interrupt() == 0

    raw = terminal.raw
    assert (raw.startswith(ENTER), raw.count(ENTER), raw.count(LEAVE)) == (True, 1, 1)
    assert raw.removesuffix(b"\r\n").removesuffix(LEAVE) != raw  # nothing comes after it, at most the echo of ^C
    frames = screens(raw)
    assert max(len(line) for one in frames for line in one) <= 80
    assert max(map(len, frames)) <= 24
    assert any(re.search(r"orders +1,234 .* [1-9][\d.,]*k? +0 +0", line) for one in frames for line in one)  # a rate
    assert all(" · 1 queue · every 100ms · no reaper" in one[0] for one in frames)


def test_q_ends_a_watch(broker: Broker, redis_url: str) -> None:
    broker.declare_queue("orders")

    with Terminal(*WATCH, "--url", redis_url) as terminal:
        terminal.until("orders")
        terminal.type(b"xq")
        assert terminal.end() == 0

    assert terminal.raw.endswith(LEAVE)


def test_a_watch_fits_a_terminal_that_changes_its_size(broker: Broker, redis_url: str) -> None:
    for i in range(20):
        broker.declare_queue(f"orders.{i:02}")

    with Terminal(*WATCH, "--url", redis_url, first=UNHURRIED) as terminal:
        terminal.until("orders.19")
        terminal.resize(40, 10)
        terminal.until("(15 queues not shown")
        terminal.resize(100, 50)
        assert "ref/s" not in terminal.screen  # only a wide terminal has room for it
        terminal.until("ref/s", 2)  # the first frame is whole then; Ctrl-C may cut the last one short
        assert terminal.interrupt() == 0

    frames = screens(terminal.raw)
    assert [max(map(len, one)) <= 40 and len(one) == 10 for one in frames if "(15" in one[-2]].count(False) == 0
    assert max(map(len, frames[-1])) > 80
    assert len(frames[-1]) == 23


def test_a_watch_outlives_redis(start_server: Callable[..., Server]) -> None:
    server = start_server()
    with Broker(server.client()) as broker:
        broker.declare_queue("orders")

        with Terminal(*WATCH, "orders", "--url", server.url, first=UNHURRIED) as terminal:
            terminal.until("1 queue")
            server.kill()
            terminal.until("Redis does not answer: ")
            terminal.until("trying again (these numbers")
            server.start()
            terminal.until("not there: orders")
            broker.declare_queue("orders").enqueue_many([b"x"] * 4_321)
            terminal.until("4,321")
            assert terminal.interrupt() == 0

    last = screens(terminal.raw)[-1]
    assert [line.split()[0] for line in last[1:]] == ["queue", "orders"]


def test_a_redis_that_hangs_freezes_neither_the_screen_nor_ctrl_c(start_server: Callable[..., Server]) -> None:
    server = start_server()
    with Broker(server.client()) as broker:
        broker.declare_queue("orders")

    with Terminal(*WATCH, "--url", server.url) as terminal:
        terminal.until("orders")
        server.process.send_signal(signal.SIGSTOP)
        try:
            terminal.until("Redis has not answered for ")
            terminal.resize(29, 24)
            terminal.until("Redis has not answered for\x1b[K\n")  # then a number of seconds of any length
            assert terminal.interrupt() == 0
        finally:
            server.process.send_signal(signal.SIGCONT)

    assert terminal.raw.count(LEAVE) == 1


def test_a_watch_that_is_terminated_leaves_the_screen_too(broker: Broker, redis_url: str) -> None:
    broker.declare_queue("orders")

    with Terminal(*WATCH, "--url", redis_url) as terminal:
        terminal.until("orders")
        terminal.process.terminate()
        assert terminal.end() == 143

    assert terminal.raw.endswith(LEAVE + b"rqttl: terminated\r\n")


def test_a_watch_ends_after_so_many_looks(broker: Broker, redis_url: str) -> None:
    broker.declare_queue("orders")

    with Terminal(*WATCH, "--count", "3", "--url", redis_url, first=UNHURRIED) as terminal:
        assert terminal.end() == 0

    assert len({tuple(one) for one in screens(terminal.raw)}) <= len(screens(terminal.raw)) <= 3
    assert terminal.raw.endswith(LEAVE)


def test_without_colour_a_watch_still_draws(broker: Broker, redis_url: str) -> None:
    broker.declare_queue("orders")

    def styled(*flags: str) -> bool:
        with Terminal(*WATCH, "--count", "2", "--url", redis_url, **dict.fromkeys(flags, "1")) as terminal:  # type: ignore[arg-type]  # no flag is called columns
            assert terminal.end() == 0
        assert screens(terminal.raw)
        return b"m" in b"".join(re.findall(rb"\x1b\[[0-9;]*[a-zA-Z]", terminal.raw))

    assert (styled(), styled("NO_COLOR")) == (True, False)


def test_a_watch_on_a_dumb_terminal_prints_tables(broker: Broker, redis_url: str) -> None:
    broker.declare_queue("orders")

    printed = on_terminal(*WATCH, "--count", "2", "--url", redis_url, TERM="dumb")

    assert "\x1b" not in printed
    assert [line.split()[0] for line in printed.splitlines() if line.startswith(("queue", "orders"))] == [
        "queue",
        "orders",
    ] * 2


def test_a_terminal_without_bars_gets_others(broker: Broker, redis_url: str) -> None:
    broker.declare_queue("orders").enqueue(b"x")

    printed = on_terminal(*WATCH, "--count", "2", "--url", redis_url, PYTHONIOENCODING="ascii")

    assert printed.isascii()
    assert " - 1 queue - every" in printed


def test_stats_fit_a_terminal_and_say_what_is_left_out(broker: Broker, redis_url: str) -> None:
    long = "a" * 60 + "." + "b" * 60
    broker.declare_queue(long).enqueue_many([b"x"] * 12_345)
    orders = broker.declare_queue("orders")
    orders.enqueue_many([b"x"] * 1_234)
    orders.receive_many(1_000, lease="1h")

    def notes(columns: int) -> list[str]:
        printed = on_terminal("stats", "--url", redis_url, columns=columns)
        assert max(map(len, printed.splitlines())) <= columns
        lines = printed.replace("\n  ", " ").splitlines()  # a note is folded
        assert ("".join(lines).count("a") >= 60, "".join(lines).count("b") >= 60) == (True, True)
        return [line for line in lines if line.startswith("rqttl: ")]

    zeros = "rqttl: columns left out, all 0: delayed, "
    assert notes(80) == [f"{zeros}acked, expired, refused, consumers"]
    assert notes(45) == [
        f"{zeros}acked, expired, dead, refused, consumers, overdue",
        "rqttl: no room for leased, oldest: a wider terminal or --json shows them",
    ]
