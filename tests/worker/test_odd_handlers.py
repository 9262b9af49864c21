"""Handlers that do what handlers should not: odd exceptions, odd results, odd processes, odd ends."""

from __future__ import annotations

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

    worker = spawn(f"q --burst {words}", call=call)

    assert worker.end() == 0, worker.log()
    assert sorted(ids(worker.journal("done"))) == ["a", "b", "c"]
    descriptions = sorted((letter.deaths[0].description or "").split(":")[0] for letter in broker.queue("dead").peek())
    assert descriptions == sorted(["tests.worker.handlers.Odd", "KeyboardInterrupt", "SystemExit", "GeneratorExit"])


def test_an_error_with_a_lone_surrogate_fails_its_message_only(spawn: Spawn, broker: Broker) -> None:
    queue = broker.declare_queue("q", max_deliveries=1, dead_letter="dead")
    queue.enqueue_many(["a", "surrogate", "b"])

    worker = spawn("q --burst --processes 1", call="raises_a_surrogate")

    assert worker.end() == 0, worker.log()
    assert sorted(ids(worker.journal("done"))) == ["a", "b"]
    [letter] = broker.queue("dead").peek()
    assert letter.deaths[0].description == "ValueError: \\ud800"
    assert "ValueError: \\ud800" in worker.log()
    assert queue.stats().leased == 0


def test_an_error_that_cannot_be_reported_is_a_plain_failure(spawn: Spawn, broker: Broker) -> None:
    queue = broker.declare_queue("q", max_deliveries=1, dead_letter="dead")
    queue.enqueue("a")

    worker = spawn("q --processes 1 --threads 2 --burst", call="raises_the_unreportable")

    assert worker.end() == 0, worker.log()
    [letter] = broker.queue("dead").peek()
    assert "could not be reported" in (letter.deaths[0].description or "")


def test_the_log_has_the_whole_chain_and_the_description_the_first_part_of_a_group(
    spawn: Spawn, broker: Broker
) -> None:
    queue = broker.declare_queue("q", max_deliveries=1, dead_letter="dead")
    queue.enqueue_many(["chain", "group"] if sys.version_info >= (3, 11) else ["chain"])

    worker = spawn("q --burst", "--processes", "1", call="raises_a_chain")

    assert worker.end() == 0, worker.log()
    chain, *groups = [letter.deaths[0].description for letter in broker.queue("dead").peek()]
    assert chain == "RuntimeError: outer"
    assert "KeyError: 'inner'" in worker.log()
    assert "The above exception was the direct cause" in worker.log()
    assert "rqttl/worker/" not in worker.log()
    for group in groups:
        assert group == "ExceptionGroup: two parts (2 sub-exceptions): ValueError: first"
        assert "TypeError: second" in worker.log()


@pytest.mark.parametrize("call", ["hides_a_coroutine", "hides_a_generator"])
def test_a_result_whose_work_is_not_done_is_a_failure(spawn: Spawn, broker: Broker, call: str) -> None:
    queue = broker.declare_queue("q", max_deliveries=1, dead_letter="dead")
    queue.enqueue("a")

    worker = spawn("q --burst", "--processes", "1", call=call)

    assert worker.end() == 0, worker.log()
    [letter] = broker.queue("dead").peek()
    assert "that nobody awaited: make it async def" in (letter.deaths[0].description or "")
    assert "never awaited" not in worker.log()


@pytest.mark.parametrize("call", ["yields", "yields_async"])
def test_a_handler_that_yields_ends_the_worker_with_one_line(spawn: Spawn, queue: Queue, call: str) -> None:
    queue.enqueue("a")

    worker = spawn("q --processes 1", call=call)

    assert worker.end() == 2
    [line] = worker.log().splitlines()
    assert "one that yields" in line
    assert queue.stats().ready == 1


def test_plain_functions_beside_a_coroutine_function_do_not_block_its_loop(spawn: Spawn, queue: Queue) -> None:
    kinds = ["meets"] * 39 + ["coroutine"]
    queue.enqueue_many([Message("40", headers={"type": kind}) for kind in kinds])

    worker = spawn("q --asyncio 40 --burst --delivery", "--processes", "1", call="MIXED")

    assert worker.end() == 0, worker.log()
    assert len(worker.journal("done")) == 39


def test_a_plain_function_beside_a_coroutine_function_is_ended_after_its_time(
    spawn: Spawn, queue: Queue, tmp_path: Path
) -> None:
    queue.enqueue(Message("sleep", id="sleep", headers={"type": "too_long"}))
    late.prepare(tmp_path, limited="sleep")

    worker = spawn("q --processes 1 --timeout 300ms --retry-delay 0 --burst --delivery", call="MIXED")

    assert worker.end() == 0, worker.log()
    assert worker.journal("begun") == [["begun", "sleep", "1"], ["begun", "sleep", "2"]]
    assert "took longer than 0.3 s" in worker.log()


@pytest.mark.parametrize("processes", ["0", "1"])
def test_a_forked_process_that_returns_does_not_end_the_work_of_its_parent(
    spawn: Spawn, broker: Broker, processes: str
) -> None:
    queue = broker.declare_queue("q", dead_letter="dead")
    queue.enqueue("a")

    worker = spawn("q --burst", "--processes", processes, call="forks")

    assert worker.end() == 0, worker.log()
    assert [letter.deaths[0].description for letter in broker.queue("dead").peek()] == ["after the end of the copy"]
    assert queue.stats().acked == 0


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


def test_long_words_do_not_keep_a_message_from_its_death(spawn: Spawn, broker: Broker) -> None:
    broker.declare_queue("q", dead_letter="dead").enqueue("x")

    worker = spawn("q --burst", "--processes", "1", call="rejects_long")

    assert worker.end() == 0, worker.log()
    [letter] = broker.queue("dead").peek()
    assert letter.deaths[0].reason == "rejected"


def test_words_of_a_settle_are_checked_in_the_handler(spawn: Spawn, broker: Broker) -> None:
    broker.declare_queue("q", dead_letter="dead").enqueue("a")

    worker = spawn("q --burst --delivery", "--processes", "1", call="rejects_by_hand")

    assert worker.end() == 0, worker.log()
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
    worker = spawn("q --processes 1 --burst", "--exec", f'{sys.executable} -c "{noise}"')

    assert worker.end() == 0, worker.log()
    [letter] = broker.queue("dead").peek()
    assert letter.deaths[0].reason == ("rejected" if code == "65" else "delivery_limit")
    assert (letter.deaths[0].description or "").endswith("\ufffd the cause")


def test_the_close_of_an_async_class_runs_in_the_loop_of_its_coroutines(
    spawn: Spawn, queue: Queue, tmp_path: Path
) -> None:
    queue.enqueue_many(["a", "b", "c"])
    late.prepare(tmp_path, graces=True)

    worker = spawn("q --asyncio 1 --burst", "--processes", "1", call="CountingInLoop")

    assert worker.end() == 0
    assert [event[0] for event in worker.journal()] == ["made", "done", "done", "done", "closed"]
    assert worker.journal("closed") == [["closed", "True"]]


@pytest.mark.parametrize("processes", ["0", "1"])
def test_a_close_may_take_its_time(spawn: Spawn, queue: Queue, tmp_path: Path, processes: str) -> None:
    queue.enqueue("a")
    late.prepare(tmp_path, graces=True)

    worker = spawn("q --burst", "--processes", processes, call="ClosesLate")

    worker.until_journal("closing")
    worker.open()
    assert worker.end() == 0
    assert worker.journal("closed") == [["closed"]]


def test_a_plain_class_with_an_async_close_ends_the_worker_with_one_line(spawn: Spawn, queue: Queue) -> None:
    queue.enqueue("a")

    worker = spawn("q", "--processes", "1", call="ClosesWrongly")

    assert worker.end() == 2
    [line] = worker.log().splitlines()
    assert line.endswith("`close` is a coroutine function, and the handler is none [invalid_input]")
    assert queue.stats().delivered == 0
