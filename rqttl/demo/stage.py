"""The play: send the calls of the day by the clock, and account for all of them at the end.

The consumers are two `rqttl worker`, which call `board`; a `rqttl reaper` moves what expires.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import rqttl
from rqttl.demo.flights import AGENTS, CONSUMERS, DAY, Day, DemoUnavailable, Flight, boarding_call
from rqttl.embedded.guard import end_with_parent
from rqttl.errors import QueueNotFound
from rqttl.flows import steps
from rqttl.protocol import replies
from rqttl.store.driver import driver_of

#: The namespace of the demo. The demo deletes everything in it.
NAMESPACE = "rqttl-demo"
#: The target of expired and rejected calls. Each queue has its own, which the first dead letter creates.
DEAD_LETTER = "{queue}/dead"
#: Variable of the environment of a consumer: the milliseconds for a call.
_HANDLING = "RQTTL_DEMO_HANDLING_MS"
#: Seconds between two looks at queues that are to change.
_LOOK = 0.05


class ProgramFailed(Exception):
    """A program of the demo ended too early, or with an error. The text names the program and the reason."""


class Counts(NamedTuple):
    """The counts of one carrier, or of all together."""

    sent: int = 0
    handled: int = 0
    expired: int = 0
    rejected: int = 0
    dead_lettered: int = 0
    waiting: int = 0


def boarding(carrier: str) -> str:
    """The queue for the boarding calls of a carrier."""
    return f"boarding.{carrier}"


def dead_letters(carrier: str) -> str:
    """The queue for the dead letters of a carrier."""
    return DEAD_LETTER.replace("{queue}", boarding(carrier))


def total(rows: Iterable[Counts]) -> Counts:
    """The sums of counts."""
    return Counts(*map(sum, zip(*rows, strict=True)))


def count(broker: rqttl.Broker, carrier: str) -> Counts:
    """The present counts of a carrier."""
    stats, dead = broker.queue(boarding(carrier)).stats(), 0
    with contextlib.suppress(QueueNotFound):  # without a dead letter there is no such queue
        dead = broker.queue(dead_letters(carrier)).stats().ready
    expired, rejected = stats.deaths.get("expired", 0), stats.deaths.get("rejected", 0)
    return Counts(stats.enqueued, stats.acked, expired, rejected, dead, stats.depth)


def disagreements(carrier: str, counts: Counts, sent: int) -> list[str]:
    """A line for each sum that does not add up. `sent` is the count of the producer."""
    ends = counts.handled + counts.expired + counts.rejected
    claims = (
        ("sent, by the producer and by the queue", sent, counts.sent),
        ("sent, and the sum of all outcomes", counts.sent, ends + counts.waiting),
        ("expired or rejected, and dead letters", counts.expired + counts.rejected, counts.dead_lettered),
        ("still waiting, and nothing", counts.waiting, 0),
    )
    return [f"{carrier}: {claim}: {left:,} is not {right:,}" for claim, left, right in claims if left != right]


@contextlib.contextmanager
def clean(broker: rqttl.Broker) -> Iterator[None]:
    """Empty the namespace before the play and after it. Raises `DemoUnavailable` if another demo is playing."""
    for name in broker.queues():
        with contextlib.suppress(QueueNotFound):
            if broker.queue(name).stats().consumers:
                raise DemoUnavailable("another demo is running on this server: wait for its end, or use another --url")
    _delete_keys(broker)
    try:
        yield
    finally:
        _delete_keys(broker)


def _delete_keys(broker: rqttl.Broker) -> None:
    driver = driver_of(broker)
    cursor: int | None = None
    while cursor != 0:
        scan = ("SCAN", cursor or 0, "MATCH", driver.keyspace.everything, "COUNT", 500)
        cursor, keys = driver.perform(steps.execute(replies.page, *scan))
        if keys:
            driver.perform(steps.execute(replies.number, "UNLINK", *keys))


def play(
    broker: rqttl.Broker, url: str | None, flights: Sequence[Flight], day: Day, watch: Callable[[int, Counts], None]
) -> tuple[dict[str, Counts], list[str]]:
    """Play the whole day. Calls `watch` with the number and the counts of each hour, as it ends.

    Returns the counts by carrier, the busiest first, and a line for each sum that does not add up. `url` is the server
    of `broker`, for the programs. Raises `ProgramFailed`.
    """
    expected = Counter(flight.carrier for flight in flights)
    carriers = [carrier for carrier, _ in expected.most_common()]
    queues = {carrier: broker.declare_queue(boarding(carrier), dead_letter=DEAD_LETTER) for carrier in carriers}
    minutes: dict[int, dict[str, list[rqttl.Message]]] = {}
    for flight in flights:
        calls = minutes.setdefault(flight.at % DAY, {}).setdefault(flight.carrier, [])
        calls.append(boarding_call(flight, day))

    def now() -> dict[str, Counts]:
        return {carrier: count(broker, carrier) for carrier in carriers}

    with _programs(url, carriers, day) as check:
        while any(queue.stats().consumers < CONSUMERS for queue in queues.values()):  # so that no call expires before
            check()
            time.sleep(_LOOK)
        started = time.monotonic()
        for minute in range(day.first, DAY):
            time.sleep(max(0.0, started + day.seconds(minute) - time.monotonic()))
            check()
            if minute > day.first and minute % 60 == 0:
                watch(minute // 60 - 1, total(now().values()))
            for carrier, messages in minutes.get(minute, {}).items():
                queues[carrier].enqueue_many(messages)
        while (counts := total((found := now()).values())).waiting:
            check()
            time.sleep(_LOOK)
        watch(DAY // 60 - 1, counts)
    return found, [line for carrier, row in found.items() for line in disagreements(carrier, row, expected[carrier])]


@contextlib.contextmanager
def _programs(url: str | None, carriers: Sequence[str], day: Day) -> Iterator[Callable[[], None]]:
    """Run the consumers and the reaper. The value is a function that raises `ProgramFailed` if one has ended."""
    redis = [*(["--url", url] if url else []), "--namespace", NAMESPACE]
    handler = ["--call", f"{__name__}:board", "--delivery", "--processes", "1", "--threads", str(AGENTS)]
    worker = ["worker", *(f"{boarding(carrier)}=1" for carrier in carriers), *handler, *redis]
    commands = {f"consumer {n}": worker for n in range(1, CONSUMERS + 1)} | {"the reaper": ["reaper", *redis]}
    with tempfile.TemporaryFile() as log, contextlib.ExitStack() as exits:
        running: dict[str, subprocess.Popen[bytes]] = {}
        for name, words in commands.items():
            program = running[name] = subprocess.Popen(
                [sys.executable, "-m", "rqttl.cli", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env={**os.environ, _HANDLING: str(day.handling_ms)},
                start_new_session=True,  # Ctrl-C is for the demo, which ends its programs
                preexec_fn=end_with_parent(),  # noqa: PLW1509  # one system call, resolved before the fork
            )
            exits.callback(program.wait)

        def check() -> None:
            for name, program in running.items():
                if program.poll() is not None:
                    log.seek(0)
                    raise ProgramFailed(f"{name} ended with exit code {program.returncode}: {last_line(log.read())}")

        try:
            yield check
        finally:
            for program in running.values():
                program.terminate()


def last_line(printed: bytes) -> str:
    """The last line that a program printed."""
    lines = printed.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no error was printed"


def board(call: rqttl.Delivery) -> None:
    """Handle a call, or reject that of a cancelled flight."""
    time.sleep(float(os.environ[_HANDLING]) / 1000)  # the work
    if call.decode()["cancelled"]:
        raise rqttl.Reject("cancelled")
