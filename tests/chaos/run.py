"""The campaign: rounds of chaos on real servers, each judged at its end. `make chaos`.

`python -m tests.chaos.run --minutes 10 --seed 7 --nemeses kills,moves --server 7.0 --on cluster`. A round is a world of
its own: servers, queues, processes. What a seed fixes is the choice of harm and of calls, not the instant of either.
"""

import argparse
import random
import shutil
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos import judge
from tests.chaos.journal import read, timeline
from tests.chaos.judge import KINDS, Verdict, Violation
from tests.chaos.nemeses import NAMES, ON_CLIENTS, ON_SERVER, ByName
from tests.chaos.stage import Stage
from tests.servers import WHEELS, find_binary
from tests.waiting import PATIENCE

#: Seconds of one round, before its queues are emptied and its journals are judged.
ROUND = 20.0
#: Bytes that the clients write into their journals between two strikes, and seconds that they get for it at most.
DEEDS, REST = 10_000, 3.0
FIGURES = (
    "client kills",
    "server kills",
    "failovers, kill",
    "failovers, pause",
    "failovers, planned",
    "Sentinels killed",
    "Sentinels paused",
    "slot moves",
    "policy changes",
    "rate changes",
    "clock steps",
    "moves",
    "client pauses",
    "server pauses",
    "refusals",
    "refused calls",
    "cuts",
    "slow spells",
    "scripts forgotten",
    "sent",
    "stored",
    "copies",
    "delivered",
    "settled",
    "late settles",
    "dead",
    "forgot, kill",
    "forgot, pause",
    "forgot, planned",
    "forgot, between slots",
)
#: How many violations of a round are shown, and how many messages get a timeline.
SHOWN = 12


@dataclass
class Result:
    """The results of a campaign so far."""

    figures: Counter[str] = field(default_factory=Counter)
    bad: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[str, Path, list[Violation]]] = field(default_factory=list)
    rounds: int = 0


def play(
    seed: str, seconds: float, nemeses: tuple[str, ...], binary: Path, folder: Path, on: str = "server"
) -> Verdict:
    """Play one round, and judge it. Its journals and logs are in `folder` afterwards."""
    stage = Stage(binary, folder, seed, on)
    over = threading.Event()
    beside = threading.Thread(target=_harm, args=(stage, ON_CLIENTS, nemeses, over.wait, f"{seed}/clients"))
    try:
        stage.begin()
        beside.start()
        # by this thread, because a server ends with the thread that has started it
        ends = time.monotonic() + seconds
        try:
            _harm(stage, ON_SERVER[on], nemeses, lambda pause: _sleep(stage, 3 * pause, ends), f"{seed}/server")
        finally:
            over.set()
            beside.join()
        stage.end()
        for number, server in enumerate(stage.on.servers):
            shutil.copy(server.path / "redis.log", folder / f"redis-{number}.log")
    finally:
        stage.close()
    return judge.judge(read(folder))


def _sleep(stage: Stage, seconds: float, ends: float) -> bool:
    """Sleep for a while. Returns True once the round is over: its time has passed, and enough was done in it."""
    time.sleep(seconds)
    at = time.monotonic()
    return at >= ends and (at >= ends + PATIENCE or stage.has_worked())


def _rest(stage: Stage, over: Callable[[float], bool], seconds: float) -> bool:
    """Let the clients work for a while: on a slow machine until they have done something. Returns `over`."""
    before, ends = stage.deeds(), time.monotonic() + REST
    if over(seconds):
        return True
    while stage.deeds() < before + DEEDS and time.monotonic() < ends:
        if over(0.02):
            return True
    return False


def _harm(stage: Stage, kinds: ByName, nemeses: tuple[str, ...], over: Callable[[float], bool], seed: str) -> None:
    """Let one nemesis after the other strike. One that fails is a fault of the campaign, and is told as such."""
    chance = random.Random(seed)
    strikes = [strike for name in nemeses for strike in kinds.get(name, ())]
    while not _rest(stage, over, 0.05 + 0.3 * chance.random()):
        for name in stage.victims() if kinds is ON_CLIENTS else ():
            stage.check(name)
        if not strikes:
            continue
        strike = chance.choice(strikes)
        try:
            strike(stage, chance)
        except Exception as error:  # noqa: BLE001  # the round goes on, and ends as a failed one
            text = "".join(traceback.format_exception(error))[-1500:]
            stage.journal.write("unexplained", text=f"the nemesis {strike.__name__} failed: {text}")


def campaign(
    minutes: float, seed: int, nemeses: tuple[str, ...], binary: Path, seconds: float = ROUND, on: str = "server"
) -> Result:
    """Play rounds for so many minutes. The folder of a round that failed stays."""
    result, ends = Result(), time.monotonic() + minutes * 60
    while time.monotonic() < ends:
        name = f"{seed}.{result.rounds}"
        folder = Path(tempfile.mkdtemp(prefix=f"rqttl-chaos-{name}-"))
        verdict = play(name, min(seconds, max(2.0, ends - time.monotonic())), nemeses, binary, folder, on)
        note(result, name, verdict, folder)
    return result


def note(result: Result, name: str, verdict: Verdict, folder: Path) -> None:
    """Add the verdict on a round; keep its folder if it failed."""
    result.rounds += 1
    result.figures += verdict.figures
    result.bad += verdict.bad
    if not verdict.violations:
        shutil.rmtree(folder)
        return
    result.failures.append((name, folder, verdict.violations))
    lines = [f"{one.kind}: {one.id} {one.text}" for one in verdict.violations]
    (folder / "violations.txt").write_text("\n".join(lines) + "\n")
    events = read(folder)
    for one in [one for one in verdict.violations if one.id][:SHOWN]:
        (folder / f"timeline-{one.id}.txt").write_text(timeline(events, one.id))


def table(result: Result, seed: int, server: str) -> str:
    """The figures of a campaign, and what was wrong, as text."""
    rows = [("seed", str(seed)), ("server", server), ("rounds", str(result.rounds))]
    rows += [(name, f"{result.figures[name]:,}") for name in FIGURES]
    rows += [(name, f"{result.bad[name]:,}") for name in KINDS]
    text = "\n".join(f"{name:<22}{value:>12}" for name, value in rows)
    for name, folder, violations in result.failures:
        text += f"\n\nround {name}: {len(violations)} violations; journals, logs and timelines: {folder}"
        for one in _first_of_each(violations):
            text += f"\n  {one.kind}: {one.id} {one.text[:400]}"
    return text


def _first_of_each(violations: list[Violation]) -> list[Violation]:
    """Some violations, as different as possible."""
    seen: Counter[tuple[str, str]] = Counter()
    found = []
    for one in violations:
        likeness = one.kind, one.text.partition(":")[2][:60]
        seen[likeness] += 1
        if seen[likeness] <= 2:
            found.append(one)
    return found[:SHOWN]


def main(arguments: list[str] | None = None) -> int:
    """Play a campaign from the command line. Returns 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.run", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0, help="how long (default 2)")
    parser.add_argument("--seed", type=int, default=None, help="fixes the choices (default: by chance)")
    parser.add_argument("--on", choices=NAMES, default="server", help="which servers (default server: one)")
    parser.add_argument("--nemeses", help=f"which harm, of {', '.join(NAMES['cluster'])}, refusals (default all)")
    parser.add_argument("--server", choices=("7.0", *WHEELS), default="7.0", help="which redis-server (default 7.0)")
    parser.add_argument("--round", type=float, default=ROUND, help=f"seconds of one round (default {ROUND:g})")
    given = parser.parse_args(arguments)
    names = NAMES[given.on]
    nemeses = tuple(given.nemeses.split(",")) if given.nemeses else names
    if unknown := set(nemeses) - set(names):
        parser.error(f"--nemeses: expected some of {', '.join(names)}, got {', '.join(sorted(unknown))}")
    binary = find_binary(given.server)
    if binary is None:
        parser.error(f"--server {given.server}: there is no such redis-server: `make setup` says what to install")
    seed = random.randrange(1_000_000) if given.seed is None else given.seed
    result = campaign(given.minutes, seed, nemeses, binary, given.round, given.on)
    sys.stdout.write(table(result, seed, f"{given.server} {given.on}") + "\n")
    return 1 if result.failures else 0


if __name__ == "__main__":
    sys.exit(main())
