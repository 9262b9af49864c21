"""Signals wait until what is under way has been counted."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import click
import pytest

from rqttl.cli.common.signals import Stop, Stopped, Stopping

ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """What a process starts with, whatever the one of the tests was started with."""
    before = {number: signal.getsignal(number) for number in ALL}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    "number, code, word",
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated"), (signal.SIGHUP, 129, "hung up")],
)
def test_a_signal_stops_at_once_where_nothing_is_under_way(number: int, code: int, word: str) -> None:
    with pytest.raises(Stop) as caught, Stopping():
        signal.raise_signal(number)

    told = Stopped(caught.value, " after line 7")
    assert (told.exit_code, told.format_message()) == (code, f"{word} after line 7")
    assert isinstance(told, click.ClickException)


@pytest.mark.parametrize("number", ALL)
def test_a_signal_waits_for_the_end_of_what_is_under_way(number: int) -> None:
    done = []

    def work() -> None:
        with Stopping() as stopping, stopping.held():
            signal.raise_signal(number)
            signal.raise_signal(number)
            done.append(stopping.call(lambda: "called"))

    with pytest.raises(Stop) as caught:
        work()
    assert (done, caught.value.number) == (["called"], number)


def test_a_second_signal_does_not_wait_for_a_call_that_hangs() -> None:
    reached = []

    def hang() -> None:
        signal.raise_signal(signal.SIGINT)
        reached.append("first")
        signal.raise_signal(signal.SIGINT)
        reached.append("second")

    with pytest.raises(Stop), Stopping() as stopping, stopping.held():
        stopping.call(hang)

    assert reached == ["first"]


def test_the_error_of_what_is_under_way_goes_before_a_signal() -> None:
    def fail() -> None:
        with Stopping() as stopping, stopping.held():
            signal.raise_signal(signal.SIGINT)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()


def test_after_the_first_stop_and_after_the_finish_signals_are_ignored() -> None:
    with Stopping() as stopping:
        with pytest.raises(Stop):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    with Stopping() as stopping:
        stopping.finish()
        signal.raise_signal(signal.SIGTERM)
        with stopping.held():
            signal.raise_signal(signal.SIGINT)


def test_afterwards_all_is_as_it_was() -> None:
    before = [signal.getsignal(number) for number in ALL]

    with Stopping():
        assert [signal.getsignal(number) for number in ALL] != before

    assert [signal.getsignal(number) for number in ALL] == before


@pytest.mark.parametrize("number", ALL)
def test_what_the_parent_ignores_stays_ignored(number: int) -> None:
    signal.signal(number, signal.SIG_IGN)

    with Stopping():
        signal.raise_signal(number)

    assert signal.getsignal(number) == signal.SIG_IGN
