"""300 threads wait at once, with the redis-py that is installed and with the lowest that is supported.

They do so in a process of its own: `python -m tests.process.test_many_waits <url> <kind> <threads>`. `<kind>` is
`connect`, or `default` for a client with the pool that redis-py makes by itself. It prints a line of JSON when all of
them have blocked in Redis at once, and each has got a message.
"""

import json
import os
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis

import rqttl
from tests.drivers import redis_of
from tests.process.consuming import ROOT
from tests.waiting import PATIENCE, until

pytestmark = [pytest.mark.once, pytest.mark.slow]

THREADS = 300


def wait(queue: rqttl.Queue) -> str:
    delivery = queue.receive(wait="10m", auto_ack=True)
    return delivery.body.decode() if delivery else ""


def main(url: str, kind: str, threads: int) -> dict[str, Any]:
    if kind == "connect":
        broker = rqttl.connect(url)
    else:
        broker = rqttl.Broker(redis.Redis(unix_socket_path=url.removeprefix("unix://"), socket_timeout=PATIENCE))
    waiting = threading.Semaphore(0)
    broker.events.subscribe(lambda _: waiting.release(), rqttl.WaitEvent)
    with broker, ThreadPoolExecutor(threads) as pool:
        queue = broker.declare_queue("q")
        futures = [pool.submit(wait, queue) for _ in range(threads)]
        try:
            for _ in range(threads):
                assert waiting.acquire(timeout=PATIENCE)
            until(lambda: blocked(broker) == threads)
            queue.enqueue_many([b"%d" % i for i in range(threads)])
            served = {future.result(timeout=PATIENCE) for future in futures}
        finally:
            broker.interrupt()
    return {"redis": redis.__version__, "served": len(served)}


def blocked(broker: rqttl.Broker) -> int:
    """The number of clients that block in Redis."""
    info: Any = redis_of(broker).info("clients")
    return int(info["blocked_clients"])


def wait_together(url: str, kind: str, packages: Path | None = None) -> dict[str, Any]:
    path = [str(packages)] if packages else []
    done = subprocess.run(
        [sys.executable, "-m", "tests.process.test_many_waits", url, kind, str(THREADS)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*path, str(ROOT)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def lowest(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The lowest version of redis-py that `pyproject.toml` allows, as `5.3`, and a folder that has it."""
    [version] = re.findall(r'"redis\[hiredis\]>=([0-9.]+)"', (ROOT / "pyproject.toml").read_text())
    folder = tmp_path_factory.mktemp("lowest")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), f"redis=={version}.*"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return version, folder


@pytest.mark.parametrize("kind", ["connect", "default"])
@pytest.mark.parametrize("installed", [True, False], ids=["installed", "lowest"])
def test_300_threads_wait_and_each_is_served(
    redis_url: str, lowest: tuple[str, Path], installed: bool, kind: str
) -> None:
    found = wait_together(redis_url, kind, None if installed else lowest[1])

    assert found["redis"] == redis.__version__ if installed else found["redis"].startswith(f"{lowest[0]}.")
    assert found["served"] == THREADS


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
