"""Waits that are ended from outside, and signals that ask a loop to stop."""

import asyncio
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rqttl.runtime import stop_signals
from rqttl.runtime.interrupt import Gate, Interrupt, Wakeup
from rqttl.runtime.stop_signals import StopSignals
from tests.waiting import PATIENCE

LONG = 3_600.0


def test_a_wait_ends_on_request_and_no_later_one_begins() -> None:
    interrupt = Interrupt()
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(interrupt.wait, LONG) for _ in range(3)]
        interrupt.ask()
        assert [one.result(timeout=PATIENCE) for one in waiting] == [True] * 3

    assert interrupt.wait(LONG)
    assert interrupt.asked()


def test_a_wait_in_vain_says_that_nobody_asked() -> None:
    interrupt = Interrupt()

    assert not interrupt.wait(0.0)
    assert not interrupt.asked()


def test_the_end_of_a_wait_is_called_within_its_block_only() -> None:
    interrupt = Interrupt()
    called: list[str] = []

    with interrupt.ending(lambda: called.append("before")):
        pass
    with interrupt.ending(lambda: called.append("within")):
        interrupt.ask()

    assert called == ["within"]


def test_a_signal_handler_may_ask_the_wait_that_it_breaks_into_at_any_instruction() -> None:
    """`threading.Event` fails here now and then: its `set` takes the lock that the interrupted `wait` may hold."""
    before = signal.getsignal(signal.SIGALRM)
    try:
        for _ in range(200):
            interrupt = Interrupt()
            signal.signal(signal.SIGALRM, lambda *_, interrupt=interrupt: interrupt.ask())
            signal.setitimer(signal.ITIMER_REAL, 0.0002)
            while not interrupt.wait(0.00001):
                pass
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def own() -> Iterator[list[int]]:
    """Handlers of the test's own for both signals; the list has the signals that they got."""
    got: list[int] = []
    before = {number: signal.signal(number, lambda n, _: got.append(n)) for number in (signal.SIGTERM, signal.SIGINT)}
    yield got
    stop_signals._handlers.restore()  # a command that ends keeps its handlers, and this process goes on
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets seconds pass."""
    now = [100.0]

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return now[0]

    monkeypatch.setattr(stop_signals, "time", Clock)

    def later(seconds: float) -> None:
        now[0] += seconds

    return later


def test_the_first_signal_stops_and_a_later_one_does_only_what_it_did_before(
    own: list[int], later: Callable[[float], None]
) -> None:
    stopped: list[Any] = []

    with StopSignals(lambda: stopped.append(True)):
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        later(1.0)
        signal.raise_signal(signal.SIGINT)
        assert (bool(stopped), own) == (True, [signal.SIGTERM])
        later(0.1)
        signal.raise_signal(signal.SIGINT)
        assert own == [signal.SIGTERM, signal.SIGINT]


@pytest.mark.parametrize("first", [0, 1])
def test_several_may_be_left_in_any_order(own: list[int], first: int) -> None:
    before = signal.getsignal(signal.SIGTERM)
    stopped: list[int] = []
    both = [StopSignals(lambda: stopped.append(0)), StopSignals(lambda: stopped.append(1))]
    for one in both:
        one.__enter__()
    both.pop(first).__exit__(None, None, None)
    signal.raise_signal(signal.SIGTERM)
    both.pop().__exit__(None, None, None)

    assert (set(stopped), own) == ({1 - first}, [signal.SIGTERM])
    assert (signal.getsignal(signal.SIGTERM), signal.set_wakeup_fd(-1)) == (before, -1)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="before Python 3.11 asyncio sets no handler")
def test_the_handlers_of_python_itself_break_nothing_off_at_the_first_signal() -> None:
    stopped: list[bool] = []

    async def work() -> None:
        with StopSignals(lambda: stopped.append(True)):
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(0)

    asyncio.run(work())

    assert stopped


def test_the_same_signal_may_come_once_more_after_the_end_of_a_command(
    own: list[int], later: Callable[[float], None]
) -> None:
    with StopSignals(lambda: None, ends_process=True):
        signal.raise_signal(signal.SIGTERM)

    signal.raise_signal(signal.SIGTERM)
    assert own == [signal.SIGTERM]
    later(1.1)
    signal.raise_signal(signal.SIGTERM)
    assert own == [signal.SIGTERM] * 2


def test_a_signal_that_the_process_ignores_stays_ignored(own: list[int]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stopped: list[Any] = []

    with StopSignals(lambda: stopped.append(True)):
        signal.raise_signal(signal.SIGINT)

    assert (stopped, own) == ([], [])
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN


def test_a_second_signal_without_a_handler_before_is_sent_again(
    own: list[int], later: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sent: list[int] = []
    monkeypatch.setattr("rqttl.runtime.stop_signals.os.kill", lambda _, number: sent.append(number))

    with StopSignals(lambda: None):
        signal.raise_signal(signal.SIGTERM)
        later(2.0)
        signal.raise_signal(signal.SIGTERM)
        assert sent == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_signal_that_another_thread_receives_ends_the_wait_of_the_main_thread(own: list[int]) -> None:
    """Python would run the handler when the main thread has waited to the end."""
    main = threading.get_ident()

    def receive() -> None:
        while sys._current_frames()[main].f_code is not Gate.wait.__code__:
            pass
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    for _ in range(10):
        interrupt = Interrupt()
        with StopSignals(interrupt.ask):
            other = threading.Thread(target=receive)
            other.start()
            assert interrupt.wait(PATIENCE)
            other.join()


def test_a_forked_child_has_the_previous_handlers(own: list[int]) -> None:
    before = signal.getsignal(signal.SIGTERM)

    with StopSignals(lambda: None), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the child of a process with threads
        child = os.fork()
        if child == 0:
            os._exit(0 if signal.getsignal(signal.SIGTERM) == before and signal.set_wakeup_fd(-1) == -1 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert signal.getsignal(signal.SIGTERM) != before


def test_an_earlier_receiver_of_signals_still_receives_them(own: list[int]) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    outside = signal.set_wakeup_fd(writer)
    try:
        with StopSignals(lambda: None):
            signal.raise_signal(signal.SIGTERM)
            assert os.read(reader, 1) == bytes([signal.SIGTERM])
        assert signal.set_wakeup_fd(outside) == writer
    finally:
        signal.set_wakeup_fd(outside)
        os.close(reader)
        os.close(writer)


def test_a_change_or_a_stop_ends_a_wait_for_a_wakeup() -> None:
    wakeup, stop = Wakeup(), Interrupt()
    begun = threading.Semaphore(0)

    def seconds() -> float:
        begun.release()
        return LONG

    with ThreadPoolExecutor(1) as pool:
        for end in (wakeup.notify, stop.ask):
            waiting = pool.submit(wakeup.wait, stop, seconds)
            assert begun.acquire(timeout=PATIENCE)
            end()
            waiting.result(timeout=PATIENCE)

    wakeup.wait(stop, seconds)
    assert not begun.acquire(blocking=False)


def test_a_change_that_comes_while_a_wait_begins_ends_it() -> None:
    wakeup = Wakeup()

    def seconds() -> float:
        wakeup.notify()  # too late for what is looked at here, early enough for the wait
        return LONG

    wakeup.wait(Interrupt(), seconds)
    wakeup.notify()  # nobody waits
    wakeup.wait(Interrupt(), lambda: 0.0)
