"""Handlers of the tests' workers. They write a journal, a line for each event, and wait for files."""

import asyncio
import builtins
import os
import re
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import rqttl
from rqttl.runtime.memory import resident_bytes
from tests.waiting import until

HOME = Path(os.environ.get("RQTTL_TEST_HOME", "."))
_leak: list[bytes] = []


def note(*words: object) -> None:
    """Append a line to the journal, in one write."""
    with (HOME / "journal").open("ab", buffering=0) as file:
        file.write(" ".join(map(str, words)).encode() + b"\n")


def wait_for(name: str) -> None:
    """Wait until a file exists."""
    deadline = time.monotonic() + 60
    while not (HOME / name).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(name)
        time.sleep(0.005)


def plain(value: object) -> None:
    note("done", value if isinstance(value, str | int) else len(value), os.getpid())  # type: ignore[arg-type]


def names_queue(delivery: rqttl.Delivery) -> None:
    note("queue", delivery.queue, delivery.decode())


def gated(delivery: rqttl.Delivery) -> None:
    """Begin, wait for the file `go`, end."""
    note("begun", delivery.id, delivery.delivery_count, os.getpid())
    wait_for("go")
    note("done", delivery.id, delivery.delivery_count, os.getpid())


def gates_all_but_fast(delivery: rqttl.Delivery) -> None:
    """As `gated`, but for the message `fast`."""
    if delivery.id != "fast":
        gated(delivery)


def first_gated(delivery: rqttl.Delivery) -> None:
    """As `gated`, for the first delivery of a message."""
    if delivery.delivery_count == 1:
        gated(delivery)
    else:
        note("again", delivery.id, delivery.delivery_count)


def slow_one(value: str) -> None:
    """Wait for the file `go` with the message `slow`, and do the others at once."""
    if value == "slow":
        note("begun", value)
        wait_for("go")
    note("done", value)


def dies_once(delivery: rqttl.Delivery) -> None:
    """End the process by SIGKILL at the first delivery of the message `die`."""
    if delivery.decode() == "die" and delivery.delivery_count == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    note("done", delivery.id, delivery.delivery_count)


def tracked(delivery: rqttl.Delivery) -> None:
    """Note the beginning and the end of a short work."""
    note("begun", delivery.id, delivery.delivery_count)
    time.sleep(0.002)
    note("done", delivery.id, delivery.delivery_count)


def rejects_long(value: str) -> None:
    """Reject with more words than a description can have."""
    raise rqttl.Reject(value * 5000)


def rejects_by_hand(delivery: rqttl.Delivery) -> None:
    """Try words that are too long, then words that fit."""
    try:
        delivery.reject("x" * 5000)
    except rqttl.InvalidInput as error:
        note("refused", error)
    delivery.reject("\udcff fits")


def by_word(value: Any) -> None:
    """Do the word."""
    note("word", value)
    if value == "reject":
        raise rqttl.Reject("not mine")
    if value == "retry":
        raise rqttl.Retry("1h", "later")
    if value == "fail":
        raise ValueError("broken")


def settles(delivery: rqttl.Delivery) -> None:
    """Settle early, and go on."""
    delivery.renew("5m")
    delivery.reject("by hand")
    note("settled", delivery.settled)


def holds_the_gil(delivery: rqttl.Delivery) -> None:
    """Keep the GIL until the file `go` exists: matches of a regular expression."""
    note("begun", delivery.id, delivery.delivery_count)
    size = 18
    while not (HOME / "go").exists():
        re.match(r"(a+)+$", "a" * size + "b")
        size += 1
    note("done", delivery.id, delivery.delivery_count)


async def blocks_the_loop(value: str) -> None:
    """Block the event loop until the file `go` exists."""
    note("begun", value)
    wait_for("go")  # the fault under test
    note("done", value)


async def coroutine(value: str) -> None:
    note("begun", value)
    await asyncio.sleep(0)
    note("done", value)


def too_long(delivery: rqttl.Delivery) -> None:
    """Take for ever, in one of four ways; the second delivery succeeds."""
    note("begun", delivery.decode(), delivery.delivery_count)
    if delivery.delivery_count > 1:
        return
    if delivery.decode() == "loop":
        while True:
            pass
    elif delivery.decode() == "sleep":
        time.sleep(3600)
    elif delivery.decode() == "c":
        re.match(r"(a+)+$", "a" * 60 + "b")


async def awaits_too_long(delivery: rqttl.Delivery) -> None:
    note("begun", delivery.decode(), delivery.delivery_count)
    if delivery.delivery_count == 1 and delivery.decode() == "long":
        await asyncio.Event().wait()


def leaks(value: object) -> None:
    """Keep 1 MB for each message."""
    _leak.append(os.urandom(2**20))
    note("done", value, os.getpid(), resident_bytes())


class Odd(BaseException):
    """An exception that `except Exception` does not catch."""


ODD = {"odd": Odd, "keyboard": KeyboardInterrupt, "exit": SystemExit, "generator": GeneratorExit}


def raises_odd(value: str) -> None:
    """Raise an exception that ends threads and loops, for the words in `ODD`."""
    note("begun", value)
    if value in ODD:
        raise ODD[value]
    note("done", value)


async def raises_odd_async(value: str) -> None:
    raises_odd(value)


def raises_a_surrogate(value: str) -> None:
    if value == "surrogate":
        raise ValueError("\ud800")
    note("done", value)


class Unreportable(rqttl.Retry):
    """A decision that someone has broken after it was made."""

    def __init__(self) -> None:
        super().__init__()
        self.description = object()  # type: ignore[assignment]  # the wrong type is the test


def raises_the_unreportable(value: str) -> None:
    raise Unreportable


def raises_a_chain(value: str) -> None:
    """Raise an error with a cause, or several errors at once."""
    if value == "group":
        group: Any = vars(builtins)["ExceptionGroup"]  # Python 3.10 has none
        raise group("two parts", [ValueError("first"), TypeError("second")])
    try:
        raise KeyError("inner")
    except KeyError as error:
        raise RuntimeError("outer") from error


def hides_a_coroutine(value: str) -> Any:
    """Return work that nobody has done."""
    return coroutine(value)


def hides_a_generator(value: str) -> Any:
    return yields(value)


def yields(value: str) -> Iterator[None]:
    note("done", value)
    yield


async def yields_async(value: str) -> AsyncIterator[None]:
    note("done", value)
    yield


def meets(value: str) -> None:
    """Wait until two handlers work at the same time."""
    note("begun", value)
    until(lambda: len((HOME / "journal").read_text().splitlines()) >= int(value))
    note("done", value)


def forks(value: str) -> None:
    """Fork a process that returns, and reject the message after that."""
    process = os.fork()
    if process:
        os.waitpid(process, 0)
        raise rqttl.Reject("after the end of the copy")


def leaves_a_copy(value: str) -> None:
    """Fork a process that outlives this one, and is in a group of its own."""
    note("begun", value)
    if len((HOME / "journal").read_text().splitlines()) > 1:
        return note("done", value)
    if os.fork() == 0:
        os.setpgid(0, 0)
        note("copy", value, os.getpid())
        threading.Event().wait()
    until(lambda: "copy" in (HOME / "journal").read_text())
    os.kill(os.getpid(), signal.SIGKILL)
    return None


class Counting:
    """A handler that is made once in a child."""

    def __init__(self) -> None:
        note("made", os.getpid())

    def __call__(self, value: object) -> None:
        note("done", value, threading.current_thread() is threading.main_thread())

    def close(self) -> None:
        note("closed", os.getpid())


class CountingInLoop:
    """A handler whose call and end belong to one event loop."""

    def __init__(self) -> None:
        note("made", os.getpid())

    async def __call__(self, value: object) -> None:
        self.loop = asyncio.get_running_loop()
        note("done", value)

    async def close(self) -> None:
        await asyncio.sleep(0)
        note("closed", asyncio.get_running_loop() is self.loop)


class ClosesLate:
    """A handler whose end takes longer than that of a killed one. Other threads of the process go on meanwhile."""

    def __call__(self, value: object) -> None:
        note("done", value)

    def close(self) -> None:
        note("closing")
        wait_for("go")
        note("closed")


class ClosesWrongly(Counting):
    """A plain handler whose end is a coroutine, for which there is no loop."""

    async def close(self) -> None:  # type: ignore[override]
        note("closed")


HANDLERS = {"mail": lambda value: note("mail", value), "bill": lambda value: note("bill", value)}


def refuse(value: str) -> None:
    raise rqttl.Reject("an unknown type")


#: Handlers of which one gets all unknown types.
WITH_DEFAULT = {"mail": lambda value: note("mail", value), "default": refuse}


#: Plain functions beside a coroutine function.
MIXED = {
    "meets": lambda delivery: meets(delivery.decode()),
    "odd": lambda delivery: raises_odd(delivery.decode()),
    "too_long": too_long,
    "coroutine": awaits_too_long,
}
