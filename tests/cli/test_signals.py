"""A signal waits until the call that is running has been counted."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import click
import pytest

from rqttl.cli.common.signals import Interrupted, SignalGuard, SignalReceived

pytestmark = pytest.mark.once

ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """The signal handlers of a new process, instead of those of the test process."""
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
def test_a_signal_acts_at_once_while_no_call_is_running(number: int, code: int, word: str) -> None:
    with pytest.raises(SignalReceived) as caught, SignalGuard():
        signal.raise_signal(number)

    error = Interrupted(caught.value, " after line 7")
    assert (error.exit_code, error.format_message()) == (code, f"{word} after line 7")
    assert isinstance(error, click.ClickException)


@pytest.mark.parametrize("number", ALL)
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


def test_the_error_of_a_deferring_block_goes_before_a_signal() -> None:
    def fail() -> None:
        with SignalGuard() as guard, guard.deferred():
            signal.raise_signal(signal.SIGINT)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()


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
