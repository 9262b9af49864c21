"""What the backend and its worker promise. Each `supports_…` has a test that fails when it lies."""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import django
import pytest
import redis
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import transaction
from django.test import AsyncClient, override_settings
from django.utils import timezone
from shop.tasks import LOOPS, aadd, add, closes, fails, meets

import rqttl
from rqttl import django as api
from rqttl import results
from tests.bench.measure import cost
from tests.repository import ROOT
from tests.waiting import until


def work(*words: str, **options: Any) -> list[str]:
    """Run tasks in this process until none is left; returns the lines that tasks have noted."""
    call_command("rqttl_worker", *words, **{"processes": 0, "burst": True, "retry_delay": "0s", **options})
    return Path("notes").read_text(encoding="utf-8").splitlines()


@pytest.fixture(params=[True, False], ids=["USE_TZ", "Tokyo"])
def zone(request: pytest.FixtureRequest) -> Iterator[None]:
    """Times with a zone, and without one those of the place."""
    with override_settings(USE_TZ=request.param, TIME_ZONE="UTC" if request.param else "Asia/Tokyo"):
        yield


@pytest.mark.parametrize("how", [{}, {"threads": 4}, {"asyncio": 4}], ids=str)
def test_coroutines_and_plain_tasks_run_in_threads_and_in_an_event_loop(tasks: Any, how: Any) -> None:
    LOOPS.clear()
    backend = tasks(results="1d")
    assert backend.supports_async_task
    from_a_view = asyncio.run(AsyncClient().get("/send")).content.decode().split()
    sent = [add.enqueue(1, two=2).id, aadd.enqueue(3).id, *from_a_view]

    assert sorted(work(**how)) == ["aadd 3", "aadd 3 4", "add 1 ('two', 2)", "add 1 2"]
    assert [backend.get_result(id).return_value for id in sent] == [3, 3, 3, 7]
    assert len(LOOPS) == (1 if "asyncio" in how else 2)


def test_a_task_waits_until_it_may_run(tasks: Any, zone: None) -> None:
    backend, now = tasks(results="1h"), timezone.now()
    assert backend.supports_defer
    late, early = (add.using(run_after=now + timedelta(days=days)).enqueue(days) for days in (2, -1))

    assert work() == ["add -1"]
    queue = backend.broker.queue("default")
    [waiting] = queue.scheduled()
    assert abs(waiting.until.timestamp() - time.time() - 2 * 86_400) < 60
    queue.reschedule(late.id, delay="1ms")
    until(lambda: work() == ["add -1", "add 2"])
    for sent, done in ((one, backend.get_result(one.id)) for one in (early, late)):
        assert now <= sent.enqueued_at == done.enqueued_at <= done.started_at <= done.finished_at <= timezone.now()


def test_priorities_come_before_the_order_of_queues_and_of_sending(tasks: Any) -> None:
    assert tasks().supports_priority
    for task, priority in [(t, p) for p in (-100, -1, 0, 1, 49, 50, 100) for t in (aadd, add)]:
        task.using(priority=priority).enqueue(priority)

    levels = ((50, 100), (1, 49), (0,), (-100, -1))
    assert work() == [f"{name} {p}" for level in levels for name in ("add", "aadd") for p in level]


@pytest.mark.parametrize("how", [{}, {"asyncio": 2}], ids=str)
@pytest.mark.parametrize(
    "outcomes, attempts, status, errors",
    [
        (["ValueError", "Retry", "Release", "done"], "1233", "SUCCESSFUL", 2),
        (["ValueError"] * 3, "123", "FAILED", 3),
        (["Retry", "Reject"], "12", "FAILED", 2),
        (["object"], "1", "FAILED", 1),
    ],
    ids=str,
)
def test_a_task_that_fails_runs_again_until_its_last_attempt(
    tasks: Any, how: Any, outcomes: list[str], attempts: str, status: str, errors: int
) -> None:
    backend, seen = tasks(results="1h", queue_options={"max_deliveries": 3}), list[str]()
    names = {getattr(api.signals, f"task_{name}"): name for name in ("enqueued", "started", "finished")}

    def receiver(task_result: Any, signal: Any, **_: Any) -> None:
        seen.append(f"{names[signal]} {task_result.status}")

    for signal in names:
        signal.connect(receiver)
    sent = fails.enqueue(*outcomes)
    assert backend.get_result(sent.id).status == "READY"

    lines = [line.split() for line in work(**how)]

    assert [(*line[:2], *line[3:]) for line in lines] == [
        (n, n, "RUNNING", outcome) for n, outcome in zip(attempts, outcomes, strict=True)
    ]
    result = fails.get_result(sent.id)
    assert (result.status, result.attempts, len(result.errors)) == (status, int(attempts[-1]), errors)
    assert result.enqueued_at == sent.enqueued_at <= result.started_at <= result.last_attempted_at <= result.finished_at
    assert (result.started_at < result.last_attempted_at) is (len(outcomes) > 1)
    assert {error.exception_class for error in result.errors} <= {ValueError, rqttl.Retry, rqttl.Reject}
    assert seen == ["enqueued READY", *["started RUNNING"] * len(outcomes), f"finished {status}"]
    assert ("default/dead" in backend.broker.queues()) is (status == "FAILED")


def test_results_have_a_time_and_each_takes_one_call_of_redis(tasks: Any, client: redis.Redis) -> None:
    assert not tasks().supports_get_result
    with pytest.raises(NotImplementedError):
        add.get_result("x")
    backend = tasks(results="1h")
    assert backend.supports_get_result
    late, sent = add.using(run_after=timezone.now() + timedelta(hours=9)).enqueue(2), add.enqueue(1)
    assert 35_000_000 < client.pttl(f"rqttl:result{{{late.id}}}") <= 36_000_000
    assert work() == ["add 1"]
    key = f"rqttl:result{{{sent.id}}}"
    assert 3_500_000 < client.pttl(key) <= 3_600_000
    with client.pipeline() as pipe:
        for n in range(100_000):
            pipe.set(f"rqttl:result{{{n}}}", "{}", px=600_000)
        pipe.execute()

    assert cost(client, lambda: add.get_result(sent.id)).calls == 1
    assert add.get_result(sent.id).return_value == 1
    client.pexpire(key, 1)
    until(lambda: not client.exists(key))
    for id in (sent.id, "7", "", "}", "a b", "*"):
        with pytest.raises(api.tasks.exceptions.TaskResultDoesNotExist):
            backend.get_result(id)


def test_the_result_of_a_task_that_is_done_at_once_stays(tasks: Any, monkeypatch: Any) -> None:
    backend, enqueue = tasks(results="1h"), rqttl.Queue.enqueue
    monkeypatch.setattr(rqttl.Queue, "enqueue", lambda *a, **words: (enqueue(*a, **words), work())[0])

    assert backend.get_result(add.enqueue(1).id).return_value == 1


def test_the_result_of_a_dead_letter_is_failed_and_says_why(
    tasks: Any, zone: None, client: redis.Redis, monkeypatch: Any
) -> None:
    broker = tasks(results="1h").broker
    dead = broker.declare_queue("default/dead")
    dead.enqueue_many([rqttl.Message(b"", id=str(n)) for n in range(500)])
    monkeypatch.setattr(results, "_SKEW", 0)

    def died(sent: Any) -> list[str]:
        sent.refresh()
        assert sent.is_finished is bool(sent.finished_at) is (sent.status == "FAILED") is bool(sent.errors)
        assert sent.enqueued_at <= (sent.finished_at or timezone.now()) <= timezone.now()
        assert {error.exception_class for error in sent.errors} <= {rqttl.RqttlError}
        return [error.traceback for error in sent.errors]

    sent, urgent = add.enqueue(1), add.using(priority=100).enqueue(2)
    assert died(urgent) == []
    assert cost(client, urgent.refresh).calls == 1  # not a page more for those that died before it was sent
    broker.queue("default/urgent").receive().reject("by hand")
    queue = broker.queue("default")
    queue.update(message_ttl="1ms")
    until(lambda: queue.sweep() and died(sent))
    dead.enqueue_many([rqttl.Message(b"") for n in range(500)])
    assert (died(urgent), died(sent)) == (["rejected: by hand"], ["expired: "])

    queue.update(message_ttl=None)
    dead.redrive(reason="expired")
    assert died(sent) == []
    assert work() == ["add 1"]
    assert add.get_result(sent.id).return_value == 1


def test_a_transaction_that_is_rolled_back_sends_nothing(tasks: Any) -> None:
    for on_commit, within, after in ((True, [], ["add 2"]), (False, ["add 2", "add 1", "add 3"], [])):
        tasks(on_commit=on_commit)
        with suppress(ZeroDivisionError), transaction.atomic():
            assert (add.enqueue(1).enqueued_at is None) is on_commit
            raise ZeroDivisionError
        with transaction.atomic():
            numbers = [2 if on_commit else 3]
            kept = add.enqueue(*numbers)
            numbers[0] = 9
            assert work() == within
        assert kept.enqueued_at
        assert work() == within + after


def test_a_send_that_fails_at_the_end_of_a_transaction_raises_there(tasks: Any) -> None:
    backend, ran = tasks(queue_options={"max_length": 0, "overflow": "reject-publish"}), list[str]()

    @transaction.atomic
    def sends() -> None:
        transaction.on_commit(partial(ran.append, "before"))
        add.enqueue(1)
        transaction.on_commit(partial(ran.append, "after"))
        ran.append("committed")

    with pytest.raises(rqttl.QueueFull):
        sends()
    assert ran == ["committed", "before"]
    assert backend.broker.queue("default").stats().enqueued == 0


#: Values of the header `task` that name no task, bodies that are not those of one, and fields that no task has.
NO_TASKS = ("os.system", "this.s", "shop.tasks.note", "shop.tasks.rqttl", "shop.tasks.x", "shop", "", 7)
NO_BODIES = (b"{", b"[]", b"7", b"{}", b"[" * 9_999)
NO_FIELDS: list[dict[str, Any]] = [{"priority": no} for no in ("x", 101, -101)]
NO_FIELDS += [{"args": 7}, {"kwargs": [1]}, {"queue_name": "x"}, {"enqueued_at": "x"}]


def test_what_names_no_task_is_rejected_and_nothing_is_imported(tasks: Any) -> None:
    broker = tasks().broker
    add.enqueue(1)
    queue = broker.queue("default")
    body = json.loads(queue.peek()[0].body)
    for no in (*NO_BODIES, *(json.dumps(body | wrong).encode() for wrong in NO_FIELDS)):
        queue.enqueue(no, headers={"task": "shop.tasks.add"})
    forged = {"args": ["", "done"], "errors": [{"exception_class_path": "this.s", "traceback": ""}]}
    queue.enqueue(json.dumps(body | forged).encode(), headers={"task": "shop.tasks.fails"})
    for headers in ({}, *({"task": no} for no in NO_TASKS)):
        queue.enqueue(json.dumps(body).encode(), headers=headers)

    assert work() == ["add 1", "1 1 0 RUNNING done"]

    dead = [letter.deaths[0] for letter in broker.queue("default/dead").peek(99)]
    assert {(one.reason, one.delivery_count, one.description[:7]) for one in dead} == {("rejected", 1, "no task")}
    assert len(dead) == 1 + len(NO_TASKS) + len(NO_BODIES) + len(NO_FIELDS)
    assert "this" not in sys.modules


@pytest.mark.parametrize("how", [{}, {"threads": 4}, {"asyncio": 4}], ids=str)
def test_a_thousand_tasks_beside_each_other_meet_no_stale_connection(tasks: Any, how: Any) -> None:
    backend = tasks(queue_options={"max_deliveries": 1})
    for task in (jobs := [closes] * 1_000 + [meets] * (2 if how else 0)):
        task.enqueue()

    work(**how)

    assert backend.broker.queue("default").stats().acked == len(jobs)
    assert "default/dead" not in backend.broker.queues()


@pytest.mark.parametrize(
    "told, options, word",
    [
        ("unknown OPTIONS", {"result": "1d"}, ""),
        ("results: expected", {"results": 5}, ""),
        ("ttl: expected", {"ttl": "soon"}, ""),
        ("max_deliverys", {"queue_options": {"max_deliverys": 1}}, ""),
        ("a b", {"queues": ("a b",)}, ""),
        ("TASKS.*namespace: expected", {"namespace": "a b"}, ""),
        ("DummyBackend, and .* RqttlBackend$", {"kind": f"{api.tasks.__name__}.backends.dummy.DummyBackend"}, ""),
        ("'x'", {}, "--backend=x"),
        (r"unknown queues \['other'\]; .* \['default', 'mails'\]$", {}, "other"),
        ("lease", {}, "--lease=soon"),
    ],
)
def test_wrong_settings_and_options_are_refused_by_name(tasks: Any, told: str, options: Any, word: str) -> None:
    with pytest.raises((CommandError, ImproperlyConfigured), match=told):
        work(tasks(**options) and word)


def test_checks_name_the_server_its_eviction_and_queues_with_other_options(tasks: Any, start_server: Any) -> None:
    broker = tasks().broker
    broker.declare_queue("default/high", max_deliveries=3)
    one = start_server(**{"maxmemory-policy": "allkeys-lru", "maxmemory": "900mb"})

    assert "max_deliveries: requested 10, declared 3" in str([*tasks().check()])
    assert broker.queues() == ["default/high"]  # a check makes none
    told = str([*tasks(url=one.url).check()])
    assert "memory policy: " in told
    assert "cannot be asked" not in told
    one.kill()
    assert "cannot be asked" in str([*tasks(url=one.url).check()])


@pytest.mark.parametrize(
    "last, error", [("done", ""), ("dies", "delivery_limit: the child process was ended by SIGKILL")]
)
def test_a_task_whose_process_is_killed_runs_again_as_its_second_attempt(tasks: Any, last: str, error: str) -> None:
    backend = tasks(results="1h", queue_options={"max_deliveries": 2})
    sent = fails.enqueue("dies", last)
    with subprocess.Popen(
        [sys.executable, "-m", "django", "rqttl_worker", "--processes=1", "--retry-delay=0s", "--retry-jitter=0.5"]
    ) as worker:
        until(lambda: backend.get_result(sent.id).is_finished or worker.poll() is not None)
        worker.terminate()

    assert worker.returncode == 0
    assert Path("notes").read_text() == f"1 1 0 RUNNING dies\n2 2 0 RUNNING {last}\n"
    result = backend.get_result(sent.id)
    assert (result.status, result.attempts, len({*result.worker_ids})) == ("FAILED" if error else "SUCCESSFUL", 2, 2)
    assert "".join(one.traceback for one in result.errors) == error


def test_the_example_works(redis_url: str) -> None:
    code = """if True:
        from django.core.management import call_command
        from django.test import Client
        ids = [Client().get(f"/order/{item}").json()["id"] for item in (7, 0)]
        call_command("rqttl_worker", burst=True, processes=1)
        print(*(Client().get(f"/state/{id}").content.decode() for id in ids), sep="\\n")
    """
    shell = [sys.executable, "-m", "django", "shell", "--settings=examples.django_project.settings", "-v0", "-c", code]
    env = {**os.environ, "RQTTL_URL": redis_url, "PYTHONPATH": str(ROOT)}
    good, bad = map(json.loads, subprocess.check_output(shell, cwd=ROOT, text=True, env=env).splitlines()[-2:])

    assert good == {"status": "SUCCESSFUL", "errors": []}
    assert (bad["status"], "no such item" in bad["errors"][0], len(bad["errors"])) == ("FAILED", True, 1)
    with rqttl.connect(redis_url) as broker:
        assert broker.queue("default/dead").stats().ready == 1


def test_the_guide_runs_from_the_top(redis_url: str, tmp_path: Path) -> None:
    package = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"
    run: Any = {"cwd": tmp_path, "text": True}
    run["env"] = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "RQTTL_URL": redis_url}
    guide, told = (ROOT / "docs/guides/django.md").read_text(encoding="utf-8"), ""
    for language, text in re.findall(r"^```(\w+)\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL):
        if language == "python":
            more = 'INSTALLED_APPS += ["django_tasks"]\n' if "INSTALLED_APPS" in text and "_" in package else ""
            with (tmp_path / text.split()[1]).open("a") as file:
                file.write(text.replace("django.tasks", package) + more)
        for line in re.findall(r"^(?!pip |#> ).*(?:\n#> .*)*", text, re.MULTILINE) if language == "bash" else ():
            command, *expected = line.split("\n#> ")
            told += (printed := subprocess.check_output(["bash", "-c", command], **run))
            assert not expected or printed.splitlines() == expected
    assert "FileNotFoundError" in told
    subprocess.run([sys.executable, "manage.py", "shell", "-c", "import shop.views"], check=True, **run)
    with rqttl.connect(redis_url) as broker:
        [dan] = broker.queue("default/urgent").peek()
        assert dan.body.startswith(b'{"args": ["Dan"], "kwargs": {}, "enqueued_at": "')
        assert [broker.queue(name).stats().ready for name in ("mails", "default")] == [1, 0]
