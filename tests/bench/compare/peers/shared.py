"""The parts of all programs: arguments, the empty handler, and the dialogue of a producer with the harness.

A producer prints `ready`, works after a line on stdin, prints `done`, and ends at the end of stdin. In the mode `ping`
each line is one message with the time in it.
"""

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

BATCH, TASKS = 100, 100
TEXT = "x" * 200
SOCKET = os.environ.get("COMPARE_SOCKET", "")
URL = f"unix://{SOCKET}"
SHAPE = os.environ.get("COMPARE_SHAPE", "")
STAMPS = os.environ.get("COMPARE_STAMPS", "")
_log = Path(STAMPS).open("a", buffering=1) if STAMPS else None  # noqa: SIM115 - open until the process ends


def handle(body: str) -> None:
    """Do nothing; in the workload `wake`, write down the nanoseconds since the message was sent."""
    if _log:
        _log.write(f"{time.monotonic_ns() - int(body[:20])}\n")


def stamped() -> str:
    """A body with the time."""
    return f"{time.monotonic_ns():020d}".ljust(200, "x")


def _say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def produce(
    mode: str, count: int, single: Callable[[str], object], batch: Callable[[Sequence[str]], object] | None = None
) -> None:
    """Send the messages of a mode. Without `batch`, a fill sends one by one."""
    single(stamped())
    _say("ready")
    if mode == "ping":
        for _ in sys.stdin:
            single(stamped())
        return
    sys.stdin.readline()
    if batch and mode in ("batch", "fill"):
        for _ in range(count // BATCH):
            batch([TEXT] * BATCH)
    else:
        for _ in range(count):
            single(TEXT)
    _say("done")
    sys.stdin.readline()


async def produce_async(
    mode: str,
    count: int,
    single: Callable[[str], Awaitable[Any]],
    batch: Callable[[Sequence[str]], Awaitable[Any]] | None = None,
) -> None:
    """Do the same in a loop. The mode `tasks`, and a fill without `batch`, send from 100 tasks."""
    await single(stamped())
    _say("ready")
    if mode == "ping":
        while await asyncio.to_thread(sys.stdin.readline):
            await single(stamped())
        return
    sys.stdin.readline()

    async def send(number: int) -> None:
        for _ in range(number):
            await single(TEXT)

    if batch and mode in ("batch", "fill"):
        for _ in range(count // BATCH):
            await batch([TEXT] * BATCH)
    elif mode in ("tasks", "fill"):
        await asyncio.gather(*[send(count // TASKS) for _ in range(TASKS)])
    else:
        await send(count)
    _say("done")
    sys.stdin.readline()


def run(send: Callable[[str, int], Any], consume: Callable[[str], Any]) -> None:
    """Play the role of the command line, in a mode or shape; a coroutine runs in a loop."""
    role, mode, count = sys.argv[1:]
    work = send(mode, int(count)) if role == "produce" else consume(mode)
    if asyncio.iscoroutine(work):
        asyncio.run(work)


def become(module: str, *words: str) -> None:
    """Replace this process by a command line program of the environment."""
    os.execv(sys.executable, [sys.executable, "-m", module, *words])  # noqa: S606 - no shell
