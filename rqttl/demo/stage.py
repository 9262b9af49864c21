"""The play: send the calls of the day by the clock, account for all of them at the end, and let Spark count the dead.

The consumers are two `rqttl worker`, which call `board`; a `rqttl reaper` moves what expires.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import rqttl
from rqttl.broker import wipe
from rqttl.demo.flights import AGENTS, CONSUMERS, DAY, Day, Flight, boarding_call
from rqttl.embedded.folder import SCHEME, folder_of
from rqttl.embedded.guard import end_with_parent
from rqttl.embedded.server import find
from rqttl.errors import QueueNotFound

#: The namespace of the demo. The demo deletes everything in it.
NAMESPACE = "rqttl-demo"
#: The target of expired and rejected calls. Each queue has its own, which the first dead letter creates.
DEAD_LETTER = "{queue}/dead"
#: Variable of the environment of a consumer: the milliseconds for a call.
_HANDLING = "RQTTL_DEMO_HANDLING_MS"
#: Seconds between two looks at queues that are to change.
_LOOK = 0.05
#: Ctrl-C is for the demo, which ends its programs, and a killed demo ends them, too.
_ENDED_WITH_THE_DEMO: dict[str, Any] = {"start_new_session": True, "preexec_fn": end_with_parent()}


class ProgramFailed(Exception):
    """A program of the demo ended too early, or with an error."""


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
    dead = counts.expired + counts.rejected
    return unequal(
        carrier,
        ("sent, by the producer and by the queue", sent, counts.sent),
        ("sent, and the sum of all outcomes", counts.sent, counts.handled + dead),
        ("expired or rejected, and dead letters", dead, counts.dead_lettered),
    )


def unequal(carrier: str, *pairs: tuple[str, int, int]) -> list[str]:
    """A line for each pair of numbers that should be equal, and are not."""
    return [f"{carrier}: {what}: {left:,} is not {right:,}" for what, left, right in pairs if left != right]


@contextlib.contextmanager
def clean(broker: rqttl.Broker) -> Iterator[None]:
    """Empty the namespace before the play and after it."""
    wipe(broker)
    try:
        yield
    finally:
        wipe(broker)


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
    handler = ["--call", f"{__name__}:board", "--delivery", "--processes", "1", "--threads", str(AGENTS)]
    worker = _rqttl(url, "worker", *(f"{boarding(carrier)}=1" for carrier in carriers), *handler)
    options: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.DEVNULL,
        "env": {**os.environ, _HANDLING: str(day.handling_ms)},
        **_ENDED_WITH_THE_DEMO,
    }
    with tempfile.TemporaryFile() as log, contextlib.ExitStack() as exits:
        running = [
            exits.enter_context(subprocess.Popen(words, stderr=log, **options))
            for words in [worker] * CONSUMERS + [_rqttl(url, "reaper")]
        ]

        def check() -> None:
            for program in running:
                if program.poll() is not None:
                    log.seek(0)
                    raise ProgramFailed(f"a program ended with code {program.returncode}: {_last_line(log.read())}")

        try:
            yield check
        finally:
            for program in running:
                program.terminate()


def _rqttl(url: str | None, *words: str) -> list[str]:
    return [sys.executable, "-m", "rqttl.cli", *words, *(["--url", url] if url else []), "--namespace", NAMESPACE]


def show_dead_letters(url: str | None, carrier: str) -> None:
    """Print an expired and a rejected call of a carrier with their histories, on stderr."""
    for reason in ("expired", "rejected"):
        words = ("dead", "show", dead_letters(carrier), "--reason", reason, "--limit", "1")
        sys.stderr.write(f"\n$ rqttl {' '.join(words)}\n")
        sys.stderr.flush()
        subprocess.run(_rqttl(url, *words), stdout=sys.stderr, check=False)


def ask_spark(url: str | None) -> dict[str, Any]:
    """Let Spark count the dead letters on the server of `rqttl.connect(url)`, by carrier and hour.

    Spark runs in `spark_connectors.demo_report`, a process of its own, because rqttl does not import the data source.
    An embedded server must be running already. The answer names what is missing. Raises `ProgramFailed`.
    """
    url = url or os.environ.get("RQTTL_URL") or SCHEME
    url = find(folder_of(url)) or url if url.startswith(SCHEME) else url
    options = {"url": url, "namespace": NAMESPACE, "queuePattern": dead_letters("*")}
    with tempfile.TemporaryDirectory(prefix="rqttl-demo-", ignore_cleanup_errors=True) as folder:
        program = subprocess.run(
            [sys.executable, "-m", "spark_connectors.demo_report"],
            input=json.dumps({"options": options, "folder": folder}).encode(),
            capture_output=True,
            check=False,
            **_ENDED_WITH_THE_DEMO,
        )
    if program.returncode:
        raise ProgramFailed(f"the Spark report failed: {_last_line(program.stderr)}")
    answer: dict[str, Any] = json.loads(program.stdout)
    return answer


def _last_line(printed: bytes) -> str:
    """The last line that a program printed."""
    lines = printed.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no error was printed"


def board(call: rqttl.Delivery) -> None:
    """Handle a call, or reject that of a cancelled flight."""
    time.sleep(float(os.environ[_HANDLING]) / 1000)  # the work
    if call.decode()["cancelled"]:
        raise rqttl.Reject("cancelled")
