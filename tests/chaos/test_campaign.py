"""Bounded campaigns: real servers, real processes, real harm, and a judge that finds nothing wrong.

Each round has a fixed seed, which fixes the choice of harm. `make chaos` plays longer ones.
"""

import os
import random
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.chaos import run
from tests.chaos.cast import QUEUES
from tests.chaos.nemeses import NAMES, ON_SERVER
from tests.chaos.stage import ENOUGH, Stage
from tests.chaos.wire import FAULTS, Wire
from tests.servers import Server, server_binary
from tests.waiting import PATIENCE

#: What harms servers that have replicas.
HARM = ("failovers, kill", "failovers, pause", "failovers, planned", "slot moves")
SERIES = os.environ.get("RQTTL_TEST_REDIS", "7.0")
#: What one round is about, its servers and its seconds. On Valkey there is one round with everything.
Round = tuple[str, str, tuple[str, ...], float]
ROUNDS: dict[str, list[Round]] = {
    "7.0": [
        ("kills and pauses", "server", ("kills", "pauses"), 4.0),
        ("refusals and bad lines", "server", ("refusals", "network", "scripts", "clock"), 5.0),
        ("kills behind Sentinel", "sentinel", ("kills", "network"), 2.0),
        ("pauses in a cluster", "cluster", ("pauses",), 2.0),
        ("moves and planned failovers", "cluster", ("moves", "failover", "network"), 3.0),
    ],
    "valkey": [("everything", "server", NAMES["server"], 8.0), ("failovers", "sentinel", ("failover",), 2.0)],
}


@pytest.fixture
def binary() -> Path:
    return server_binary(SERIES)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name, on, nemeses, seconds", ROUNDS[SERIES], ids=[name for name, *_ in ROUNDS[SERIES]])
def test_no_promise_breaks_under_harm(
    binary: Path, name: str, on: str, nemeses: tuple[str, ...], seconds: float, tmp_path: Path
) -> None:
    verdict = run.play(f"ci-{name}", seconds, nemeses, binary, tmp_path, on)

    assert verdict.violations == [], f"journals and logs: {tmp_path}"
    assert min(verdict.figures[figure] for figure in ("stored", "delivered", "settled")) >= ENOUGH
    assert on == "server" or any(verdict.figures[harm] for harm in HARM)


def steal(stage: Stage, chance: random.Random) -> None:
    """Remove messages behind the back of everybody, as no nemesis may: enough that some of them were not handled."""
    with stage.on.client() as admin:
        stolen = 0
        while stolen < 20:
            stolen += sum(admin.xtrim(f"rqttl:{{{queue.name}}}:log", maxlen=0, approximate=False) for queue in QUEUES)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_round_in_which_messages_are_stolen_is_a_failed_one(
    binary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stolen, has_worked = threading.Event(), Stage.has_worked

    def theft(stage: Stage, chance: random.Random) -> None:
        steal(stage, chance)
        stolen.set()

    monkeypatch.setitem(ON_SERVER["server"], "theft", (theft,))
    monkeypatch.setattr(Stage, "has_worked", lambda stage: stolen.is_set() and has_worked(stage))
    monkeypatch.setattr("tests.chaos.stage.PATIENCE", 5.0)  # the queues cannot be emptied any more

    verdict = run.play("theft", 2.0, ("theft",), binary, tmp_path)

    assert verdict.bad["lost"] > 0


@pytest.fixture
def wire(server: Server) -> Iterator[Wire]:
    wire = Wire(server.socket, "7")
    yield wire
    wire.close()


@pytest.fixture
def client(wire: Wire) -> Iterator[redis.Redis]:
    with redis.Redis("127.0.0.1", wire.port, socket_timeout=PATIENCE, retry=Retry(NoBackoff(), 0)) as client:
        yield client


def test_every_fault_befalls_a_bad_line_and_it_recovers(wire: Wire, client: redis.Redis) -> None:
    body = b"x" * 1_000_000
    assert (client.echo(body), wire.faults) == (body, {})
    wire.rate = 0.5
    for _ in range(10_000):
        with suppress(redis.ConnectionError, redis.TimeoutError):
            assert client.echo("here") == b"here"
        if set(wire.faults) == set(FAULTS):
            break
    wire.rate = 0.0
    with suppress(redis.ConnectionError, redis.TimeoutError):  # of a connection that a fault still holds
        client.ping()

    assert set(wire.faults) == set(FAULTS)
    assert client.echo("back") == b"back"
