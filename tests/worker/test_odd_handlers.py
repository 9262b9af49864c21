"""Handlers that do what handlers should not: odd exceptions, odd results, odd processes, odd ends."""

import io
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from rqttl import Broker, Message, Queue, Reject
from rqttl.worker import commands
from tests.waiting import PATIENCE
from tests.worker import late
from tests.worker.conftest import Spawn
from tests.worker.handlers import ODD
from tests.worker.processes import ids

pytestmark = [pytest.mark.once, pytest.mark.slow]


@pytest.mark.parametrize(
    "words, call",
    [
        ("--processes 0", "raises_odd"),
        ("--processes 1 --threads 2", "raises_odd"),
        ("--processes 1 --asyncio 2", "raises_odd_async"),
        ("--processes 1 --delivery", "MIXED"),
    ],
)
def test_an_odd_exception_fails_its_own_message_once_and_no_other(
    spawn: Spawn, broker: Broker, words: str, call: str
) -> None:
    queue = broker.declare_queue("q", max_deliveries=1, dead_letter="dead")
    queue.enqueue_many([Message(word, headers={"type": "odd"}) for word in (*ODD, "a", "b", "c")])

    worker = spawn(f"q --burst {words}", call=call).finished()

    assert sorted(ids(worker.journal("done"))) == ["a", "b", "c"]
    descriptions = sorted((letter.deaths[0].description or "").split(":")[0] for letter in broker.queue("dead").peek())
    assert descriptions == sorted(["tests.worker.handlers.Odd", "KeyboardInterrupt", "SystemExit", "GeneratorExit"])


def test_an_error_with_a_lone_surrogate_fails_its_message_only(spawn: Spawn, broker: Broker) -> None:
    queue = broker.declare_queue("q", max_deliveries=1, dead_letter="dead")
    queue.enqueue_many(["a", "surrogate", "b"])

    worker = spawn("q --burst --processes 1", call="raises_a_surrogate").finished()

    assert sorted(ids(worker.journal("done"))) == ["a", "b"]
    [letter] = broker.queue("dead").peek()
    assert letter.deaths[0].description == "ValueError: \\ud800"
    assert "ValueError: \\ud800" in worker.log()
    assert queue.stats().leased == 0


@pytest.mark.parametrize(
    "words, call, reason, description",
    [
        ("--processes 1 --threads 2", "raises_the_unreportable", "delivery_limit", "could not be reported"),
        ("--processes 1", "hides_a_coroutine", "delivery_limit", "that nobody awaited: make it async def"),
        ("--processes 1", "hides_a_generator", "delivery_limit", "that nobody awaited: make it async def"),
        ("--processes 1", "rejects_long", "rejected", "aaaa"),
        ("--processes 0", "forks", "rejected", "after the end of the copy"),
        ("--processes 1", "forks", "rejected", "after the end of the copy"),
    ],
)
def test_an_odd_end_has_a_description(
    spawn: Spawn, broker: Broker, words: str, call: str, reason: str, description: str
) -> None:
    """An error that cannot be reported, work that nobody has done, words that are too long, a copy that returns."""
    queue = broker.declare_queue("q", max_deliveries=1, dead_letter="dead")
    queue.enqueue("a")

    worker = spawn(f"q --burst {words}", call=call).finished()

    [letter] = broker.queue("dead").peek()
    assert letter.deaths[0].reason == reason
    assert description in (letter.deaths[0].description or "")
    assert "never awaited" not in worker.log()
    assert queue.stats().acked == 0


@pytest.mark.parametrize(
    "name, words",
    [
        ("nomodule:name", "nomodule:name: "),
        ("tests.worker.handlers:nothing", "nothing"),
        ("tests.worker.handlers:HOME", "expected a function"),
        ("tests.worker.handlers:yields", "one that yields"),
        ("tests.worker.handlers:yields_async", "one that yields"),
        ("tests.worker.handlers:ClosesWrongly", "`close` is a coroutine function, but the handler is not"),
    ],
)
def test_a_handler_that_cannot_be_used_ends_the_worker_with_one_line(
    spawn: Spawn, queue: Queue, name: str, words: str
) -> None:
    queue.enqueue("a")

    worker = spawn("q --processes 2", "--call", name)

    assert worker.end() == 2
    [line] = worker.log().splitlines()
    assert line.startswith(f"rqttl: --call: {name}: ")
    assert words in line
    assert queue.stats().delivered == 0


def test_the_log_has_the_whole_chain_and_the_description_the_first_part_of_a_group(
    spawn: Spawn, broker: Broker
) -> None:
    queue = broker.declare_queue("q", max_deliveries=1, dead_letter="dead")
    queue.enqueue_many(["chain", "group"] if sys.version_info >= (3, 11) else ["chain"])

    worker = spawn("q --burst", "--processes", "1", call="raises_a_chain").finished()

    chain, *groups = [letter.deaths[0].description for letter in broker.queue("dead").peek()]
    assert chain == "RuntimeError: outer"
    assert "KeyError: 'inner'" in worker.log()
    assert "The above exception was the direct cause" in worker.log()
    assert "rqttl/worker/" not in worker.log()
    for group in groups:
        assert group == "ExceptionGroup: two parts (2 sub-exceptions): ValueError: first"
        assert "TypeError: second" in worker.log()


def test_plain_functions_beside_a_coroutine_function_do_not_block_its_loop(spawn: Spawn, queue: Queue) -> None:
    kinds = ["meets"] * 39 + ["coroutine"]
    queue.enqueue_many([Message("40", headers={"type": kind}) for kind in kinds])

    worker = spawn("q --asyncio 40 --burst --delivery", "--processes", "1", call="MIXED").finished()

    assert len(worker.journal("done")) == 39


def test_a_forked_process_does_not_hide_the_death_of_a_child(spawn: Spawn, queue: Queue) -> None:
    queue.enqueue("a")

    worker = spawn("q --processes 1 --burst", call="leaves_a_copy")

    try:
        assert worker.end() == 0, worker.log()
        assert ids(worker.journal("done")) == ["a"]
    finally:
        for _, _, pid in worker.journal("copy"):
            os.kill(int(pid), signal.SIGKILL)


class Broken(io.StringIO):
    """A stream without a reader."""

    @property
    def buffer(self) -> NoReturn:
        raise BrokenPipeError


def test_a_command_is_heard_to_its_end_if_nobody_reads_the_errors_of_the_worker(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.declare_queue("q").enqueue(b"x")
    [delivery] = broker.queue("q").receive_many(1)
    monkeypatch.setattr(sys, "stderr", Broken())
    monkeypatch.setattr(commands, "LATE", PATIENCE)

    with pytest.raises(Reject, match=r"the last word\Z"):  # it lies beyond the first read of stderr
        commands.run(["sh", "-c", "head -c 200000 /dev/zero >&2; echo the last word >&2; exit 65"], delivery)


def test_words_of_a_settle_are_checked_in_the_handler(spawn: Spawn, broker: Broker) -> None:
    broker.declare_queue("q", dead_letter="dead").enqueue("a")

    worker = spawn("q --burst --delivery", "--processes", "1", call="rejects_by_hand").finished()

    assert "5000 bytes are more than 4096" in " ".join(*worker.journal("refused"))
    [letter] = broker.queue("dead").peek()
    assert (letter.deaths[0].reason, letter.deaths[0].description) == ("rejected", "? fits")


@pytest.mark.parametrize("code", ["65", "3"])
def test_the_end_of_a_long_stderr_of_any_bytes_is_the_description(
    spawn: Spawn, broker: Broker, tmp_path: Path, code: str
) -> None:
    broker.declare_queue("q", dead_letter="dead", max_deliveries=1).enqueue(b"x")
    late.prepare(tmp_path, graces=True)

    noise = f"import sys; sys.stderr.buffer.write(bytes([255]) * 300_000 + b' the cause'); sys.exit({code})"
    spawn("q --processes 1 --burst", "--exec", f'{sys.executable} -c "{noise}"').finished()

    [letter] = broker.queue("dead").peek()
    assert letter.deaths[0].reason == ("rejected" if code == "65" else "delivery_limit")
    assert (letter.deaths[0].description or "").endswith("\ufffd the cause")


@pytest.mark.parametrize("processes", ["0", "1"])
def test_a_close_may_take_its_time(spawn: Spawn, queue: Queue, tmp_path: Path, processes: str) -> None:
    queue.enqueue("a")
    late.prepare(tmp_path, graces=True)

    worker = spawn("q --burst", "--processes", processes, call="ClosesLate")

    worker.until_journal("closing")
    worker.open()
    assert worker.end() == 0
    assert worker.journal("closed") == [["closed"]]
