"""Who is there: five consumers of one queue, of every kind, each in a process of its own."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from rqttl import Broker
from rqttl.inspector.message_view import holder
from tests.process.consuming import ROOT, Process
from tests.waiting import until

pytestmark = [pytest.mark.once, pytest.mark.slow]

SERVICE = """
import asyncio, sys, rqttl

async def handle(delivery):
    print("begun", flush=True)
    await asyncio.sleep(3600)

async def main():
    async with rqttl.connect_async(sys.argv[1]) as broker:
        await broker.queue("q").run(handle, 2, prefetch=3)

asyncio.run(main())
"""


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def program(stack: ExitStack, *command: str) -> int:
    """Start a Python program, and return its pid."""
    process = subprocess.Popen([sys.executable, *command], cwd=ROOT, stdout=subprocess.DEVNULL)
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process.pid


def test_consumers_of_every_kind_are_named_with_their_numbers(
    broker: Broker, redis_url: str, spawn: Callable[..., Process], stack: ExitStack, tmp_path: Path
) -> None:
    queue = broker.declare_queue("q", lease="1h")
    service = tmp_path / "service.py"
    service.write_text(SERVICE)

    def numbers() -> dict[int, tuple[str, str, int, int]]:
        return {one.pid: (one.role, one.program, one.prefetch, one.in_flight) for one in queue.consumers()}

    def give(count: int) -> None:
        """Let the newest consumer take so many messages; all others are full."""
        queue.enqueue_many([3600] * count)
        until(lambda: queue.stats().ready == 0)

    runs = []
    for _ in range(2):
        runs.append(spawn("run"))
        give(4)  # that is all it takes
    asyncio = program(stack, str(service), redis_url)
    give(3)
    handler = ("--call", "time:sleep", "--processes", "0")
    worker = program(stack, "-m", "rqttl", "worker", "q", *handler, "--url", redis_url)
    until(lambda: numbers().get(worker) == ("worker", "rqttl worker", 1, 0))
    give(1)
    follower = program(stack, "-m", "rqttl", "receive", "q", "--follow", "--url", redis_url)
    dead, living = (process._process.pid for process in runs)
    expected = {
        **dict.fromkeys((dead, living), ("consumer", "tests.process.consuming", 4, 4)),
        asyncio: ("consumer", "service.py", 3, 3),
        worker: ("worker", "rqttl worker", 1, 1),
        follower: ("consumer", "rqttl receive", 100, 0),
    }

    until(lambda: numbers() == expected)
    consumers = queue.consumers()
    for message in queue.peek():
        held = holder(message, consumers)
        assert held is not None
        assert held.holds(message)
    assert [one.pid for one in consumers if one.oldest is None] == [follower]

    runs[0].kill()
    del expected[dead]
    until(lambda: numbers() == expected)
