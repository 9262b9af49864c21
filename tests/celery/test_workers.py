"""Workers of Celery as processes: pools, kills, outages, times, dead letters, remote control and events."""

import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from subprocess import Popen
from threading import Event
from typing import Any

import pytest
from kombu.exceptions import OperationalError

from rqttl import Broker
from rqttl.celery import cancel, reschedule
from tests.celery.app import add, die, mark, send_on, twice_in_vain
from tests.celery.conftest import Start, Tell
from tests.cluster_servers import ClusterServers
from tests.ports import free_port
from tests.repository import ROOT
from tests.servers import SentinelSet, Server, server_binary
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.slow

Notes = Callable[[], list[str]]
LATE = {"ACKS_LATE": "1", "LEASE": "3", "MAX_DELIVERIES": "3"}
KILLS = int(os.environ.get("RQTTL_TEST_KILLS", "3"))
#: The tasks that a worker may have: its children times the usual multiplier of Celery.
UNACKED = 8


def bound(app: Any, task: Any) -> Any:
    """A task of the application of this process."""
    return app.tasks[task.name]


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_a_pool_does_its_work(app: Any, start: Start, notes: Notes, pool: str) -> None:
    worker = start("--pool", pool).ready()
    results = [bound(app, add).delay(number, number) for number in range(300)]
    assert [result.get(timeout=PATIENCE) for result in results] == [2 * number for number in range(300)]

    began = time.monotonic()
    later = bound(app, add).apply_async((1, 1), countdown=1)
    assert later.get(timeout=PATIENCE) == 2
    assert time.monotonic() - began >= 1
    assert bound(app, twice_in_vain).delay().get(timeout=PATIENCE) == 2
    bound(app, send_on).delay(7).get(timeout=PATIENCE)  # a child of the worker sends
    until(lambda: "end 7" in notes())

    [pong] = app.control.ping(timeout=2)
    [name] = pong
    assert pool in json.dumps(app.control.inspect(timeout=2).stats()[name]["pool"])
    app.control.add_consumer("other", reply=True, timeout=2)
    bound(app, mark).apply_async((8,), queue="other")
    until(lambda: "end 8" in notes())
    assert worker.stop() == 0
    assert "Traceback" not in worker.text


def test_remote_control_acts(app: Any, start: Start, notes: Notes) -> None:
    worker = start().ready()
    now: dict[str, Any] = {"reply": True, "timeout": PATIENCE, "limit": 1}
    app.control.pool_grow(1, **now)
    [stats] = app.control.inspect(timeout=PATIENCE, limit=1).stats().values()
    assert stats["prefetch_count"] == 12

    app.control.rate_limit(add.name, "2/s", **now)
    began, results = time.monotonic(), [bound(app, add).delay(1, number) for number in range(4)]
    assert [result.get(timeout=PATIENCE) for result in results] == [1, 2, 3, 4]
    assert time.monotonic() - began >= 1.4

    app.control.revoke("due", **now)
    for number, task_id in enumerate(["due", "later"], 1):
        bound(app, mark).apply_async((number,), countdown=number, task_id=task_id)
    until(lambda: "end 2" in notes())
    bound(app, mark).apply_async((3, 2 * PATIENCE), task_id="long")
    until(lambda: "start 3 False" in notes())
    app.control.revoke("long", terminate=True)
    assert worker.stop() == 0
    assert notes() == ["start 2 False", "end 2", "start 3 False"]


def test_a_kill_in_the_middle_of_a_task_brings_it_again(app: Any, start: Start, notes: Notes, tell: Tell) -> None:
    first = start(**LATE).ready()
    bound(app, mark).delay(1, 2)
    until(notes)
    first.kill()
    killed = time.monotonic()
    start(**LATE)
    until(lambda: "end 1" in notes())
    tell("seconds until it is done, with boot and task", round(time.monotonic() - killed, 1))
    assert notes() == ["start 1 False", "start 1 True", "end 1"]


def test_a_task_of_two_leases_comes_once(app: Any, start: Start, notes: Notes) -> None:
    start(**LATE).ready()
    bound(app, mark).delay(1, 7)
    until(lambda: "end 1" in notes())
    assert notes() == ["start 1 False", "end 1"]


@pytest.mark.parametrize(
    "pool, how, noted",
    [
        ("prefork", signal.SIGTERM, "start end"),
        ("prefork", signal.SIGQUIT, "start start end"),
        ("threads", signal.SIGQUIT, "start end"),
        ("solo", signal.SIGQUIT, "start"),  # Celery acks what it cuts
    ],
)
def test_a_stop_gives_back_what_is_not_done(
    app: Any, start: Start, notes: Notes, pool: str, how: signal.Signals, noted: str
) -> None:
    arguments, variables = ("--concurrency", "1", "--pool", pool), {"ACKS_LATE": "1", "LEASE": "3600"}
    worker = start(*arguments, **variables).ready()
    for number in range(4):
        bound(app, mark).delay(number, 0 if number else 3)
    until(notes)
    worker.process.send_signal(how)
    worker.process.wait(PATIENCE)

    start(*arguments, **variables)
    until(lambda: {f"end {number}" for number in range(1, 4)} <= {*notes()})
    told = [[line.split()[0] for line in notes() if line.split()[1] == str(number)] for number in range(4)]
    # the task may end before a slow stop, and the pool without a look at its result, which is then not acked
    assert " ".join(told[0]) in (noted, "start end", "start end start end")
    assert told[1:] == [["start", "end"]] * 3


def test_what_kills_its_child_or_is_broken_is_a_dead_letter_and_the_worker_goes_on(
    app: Any, start: Start, notes: Notes, looker: Broker
) -> None:
    start(**LATE).ready()
    bound(app, die).delay()
    looker.queue("celery").enqueue_many([b"x"] * 3)
    bound(app, mark).delay(1)
    until(lambda: "end 1" in notes() and "celery/dead" in looker.queues())
    until(lambda: looker.queue("celery/dead").stats().ready == 4)

    deaths = [(view.headers.get("task"), view.deaths[0]) for view in looker.queue("celery/dead").peek()]
    broken = [death.description for task, death in deaths if task is None]
    assert broken == ["no message of kombu: TypeError: expected a header 'kombu' of bytes"] * 3
    assert [death.reason for task, death in deaths if task == die.name] == ["delivery_limit"]
    assert notes().count("died") == 3


def test_a_task_that_nobody_does_in_time_is_a_dead_letter_with_name_and_arguments(app: Any, looker: Broker) -> None:
    bound(app, add).apply_async((1, 2), expires=0.1, task_id="late")
    until(lambda: looker.queue("celery").stats().deaths["expired"] == 1)
    [dead] = looker.queue("celery/dead").peek()
    assert (dead.id, dead.headers["task"], json.loads(dead.body)[0]) == ("late", "tests.celery.app.add", [1, 2])


def test_tasks_that_wait_are_cancelled_and_rescheduled(app: Any, start: Start, notes: Notes, looker: Broker) -> None:
    for number in range(1, 5):
        bound(app, mark).apply_async((number,), countdown=3600, task_id=f"t{number}")
    assert cancel(app, "t1") == 1
    assert cancel(app, "t1") == cancel(app, "unknown") == reschedule(app, "t1", countdown="1s") == 0
    assert reschedule(app, "t2", countdown="0s") == 1
    assert reschedule(app, "t3", eta=datetime.now(timezone.utc)) == 1
    start().ready()

    until(lambda: {"end 2", "end 3"} <= {*notes()})
    assert [view.id for view in looker.queue("celery").peek(state="scheduled")] == ["t4"]
    assert [*app.control.inspect(timeout=2).scheduled().values()] == [[]]  # no worker has it


def test_a_pause_holds_tasks_back(app: Any, start: Start, notes: Notes, looker: Broker) -> None:
    start().ready()
    looker.queue("celery").pause()
    bound(app, mark).delay(1)
    assert app.control.ping(timeout=1)
    assert notes() == []
    looker.queue("celery").resume()
    until(lambda: "end 1" in notes())


def test_workers_outlive_kills_of_redis(
    app_of: Callable[[str], Any], start: Start, notes: Notes, start_server: Callable[..., Server]
) -> None:
    server = start_server(appendonly="yes", appendfsync="always")
    app = app_of(server.url)
    worker = start(**LATE, BROKER=server.url, BACKEND="cache+memory://").ready()
    for number in range(3):
        bound(app, mark).delay(number, 0.2)
        server.kill() if number % 2 else server.stop()
        server.start()
    until(lambda: {f"end {number}" for number in range(3)} <= {*notes()})
    assert worker.text.count(" ready.") == 1
    assert worker.stop() == 0


def send_steadily(task: Any, stop: Event, first: int) -> tuple[list[str], int, float]:
    """Send 50 tasks a second. Returns the numbers of those that Redis has, how many it may have, and the seconds."""
    sent: list[str] = []
    doubtful, began = 0, time.monotonic()
    while not stop.wait(max(0.0, began + (len(sent) + doubtful) / 50 - time.monotonic())):
        number = first + 4 * (len(sent) + doubtful)
        try:
            task.apply_async((number, 0.005), retry=False)
            sent.append(str(number))
        except OperationalError:
            doubtful += 1
    return sent, doubtful, time.monotonic() - began


@pytest.mark.timeout(3600)
def test_kills_of_workers_and_of_redis_lose_no_task_and_bring_again_what_was_unacked(
    app_of: Callable[[str], Any],
    start: Start,
    environment: dict[str, str],
    start_server: Callable[..., Server],
    tell: Tell,
) -> None:
    server, chance = start_server(appendonly="yes", appendfsync="always"), random.Random(KILLS)
    variables = {"ACKS_LATE": "1", "LEASE": "5", "BROKER": server.url, "BACKEND": "cache+memory://"}
    tell("kills of workers", KILLS)
    tell("kills of Redis", len(range(2, KILLS, 5)))
    stop, killed, workers = Event(), set(), [start(**variables) for _ in range(2)]
    with ThreadPoolExecutor(4) as pool:
        task = bound(app_of(server.url), mark)
        senders = [pool.submit(send_steadily, task, stop, first) for first in range(4)]
        try:
            for kill in range(KILLS):
                victim, enough = workers.pop(0), chance.randint(5, 200)
                until(partial(lambda worker, enough: worker.text.count(" received") > enough, victim, enough))
                victim.kill()
                killed.add(victim.process.pid)
                workers.append(start(**variables))
                if kill % 5 == 2:
                    with server.down():
                        pass
        finally:
            stop.set()
    several, doubtful, seconds = zip(*(sender.result() for sender in senders), strict=True)
    sent = [number for numbers in several for number in numbers]

    def runs(what: str) -> list[tuple[str, str]]:
        """The numbers and processes in the notes of starts or ends."""
        lines = [line.split() for line in Path(environment["NOTES"]).read_text().splitlines()]
        return [(words[1], words[-1]) for words in lines if words[0] == what]

    with suppress(TimeoutError):
        until(lambda: {number for number, _ in runs("end")}.issuperset(sent))
    lost = {*sent}.difference(number for number, _ in runs("end"))
    tell("tasks sent", len(sent))
    tell("tasks a second", round(len(sent) / max(seconds)))
    tell("tasks that Redis may have, too", sum(doubtful))
    tell("tasks lost", len(lost))
    assert not lost
    assert [worker.stop() for worker in workers] == [0, 0]
    children, starts, ended = defaultdict(list), defaultdict(list), {*runs("end")}
    for number, child in runs("start"):
        children[child].append(number)
        starts[number].append(child)
    last = {
        (number, child)
        for child, numbers in children.items()
        if int(child.partition("/")[0]) in killed
        for number in numbers[-UNACKED:]
    }
    again = {(number, child) for number, by in starts.items() for child in by[:-1]}
    tell("runs that were cut, and came again", len((again & last) - ended))
    tell("runs whose ack was on its way, and came again", len(again & last & ended))
    tell("other runs that came again", len(again - last))
    assert again <= last


def test_flower_reads_the_events(app: Any, start: Start, environment: dict[str, str]) -> None:
    port = free_port()
    command = shlex.split(f"{sys.executable} -m celery -A tests.celery.app flower --address=127.0.0.1 --port={port}")
    with Popen(command, env={**environment, "FLOWER_UNAUTHENTICATED_API": "true"}, start_new_session=True) as flower:
        try:
            start(EVENTS="1").ready()

            def seen(what: str) -> Any:
                with (
                    suppress(OSError),
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/api/{what}", timeout=20) as page,
                ):
                    return json.load(page)

            until(lambda: seen("workers?refresh=1"))
            result = bound(app, add).delay(2, 3)
            until(lambda: (seen("tasks") or {}).get(result.id, {}).get("state") == "SUCCESS")
        finally:
            flower.terminate()
            flower.wait(PATIENCE)


def test_the_guide_works_as_it_says(redis_url: str, tmp_path: Path) -> None:
    guide = (ROOT / "docs/guides/celery.md").read_text(encoding="utf-8")
    servers = {"redis://localhost:6379/0": redis_url, "redis://localhost:6379/1": f"redis+socket{redis_url[4:]}"}
    for name, text in re.findall(r"^```python\n# (\S+)\n(.*?)^```", guide, re.MULTILINE | re.DOTALL):
        (tmp_path / name).write_text(re.sub(r"redis://localhost:6379/\d", lambda found: servers[found[0]], text))
    command = rf"{sys.executable} "
    _, typed = re.findall(r"^```bash\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    worker, *lines = re.sub("^python ", command, typed, flags=re.MULTILINE).splitlines()
    with Popen(shlex.split(worker), cwd=tmp_path, start_new_session=True) as process:
        try:
            for line, told in zip(lines, [*lines[1:], ""], strict=True):
                if not line.startswith("#> "):
                    done = subprocess.run(shlex.split(line), cwd=tmp_path, capture_output=True, text=True, check=True)
                    assert done.stdout.strip() == (told[3:] if told.startswith("#> ") else "")
        finally:
            process.terminate()
            process.wait(PATIENCE)
    assert "redis-sentinel" in (tmp_path / "celeryconfig.py").read_text()
    subprocess.run([sys.executable, "-c", "import celeryconfig"], cwd=tmp_path, check=True)


def test_the_example_works(environment: dict[str, str], redis_url: str, start: Start, looker: Broker) -> None:
    command = [sys.executable, "-m", "examples.celery_app"]
    environment = {**environment, "RQTTL_URL": redis_url}
    sent = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    worker = start(APP="examples.celery_app", RQTTL_URL=redis_url).ready()
    until(lambda: {"shipped item 7", "shipped item 8"} <= {*re.findall(r"shipped item \d+", worker.text)})
    until(lambda: looker.queue("celery").stats().depth == 0)

    assert sent.stdout == "cancelled 1\n"
    dead = looker.queue("celery/dead").peek()
    assert sorted((json.loads(one.body)[0], one.deaths[0].reason) for one in dead) == [
        ([0], "rejected"),
        ([10], "expired"),
    ]
    assert worker.stop() == 0


@pytest.mark.parametrize("kind", ["cluster", "sentinel"])
def test_a_cluster_and_sentinels(
    app_of: Callable[[str], Any], start: Start, notes: Notes, launch: Callable[..., Server], kind: str
) -> None:
    servers: Any = ClusterServers(launch) if kind == "cluster" else SentinelSet(server_binary("7.0"))
    try:
        url = f"rqttl+{servers.url()}" if kind == "cluster" else servers.url().replace("+", "-", 1)
        app = app_of(url)
        worker = start(**LATE, BROKER=url, BACKEND="cache+memory://", EVENTS="1").ready()
        for number in range(2):
            for each in range(5):
                bound(app, mark).apply_async((10 * number + each,), countdown=each // 4)
            until(partial(lambda ends: ends <= {*notes()}, {f"end {10 * number + each}" for each in range(5)}))
            until(lambda: app.control.ping(timeout=3))  # what comes within a failover may be lost
            if kind == "sentinel" and number == 0:
                servers.fail_over(servers.primary())
        assert worker.stop() == 0
    finally:
        servers.remove()
