"""The instructions of a message, on the server and in the client, against those of another revision.

    make bench-instructions BASE=c73c102
    python -m tests.bench.instructions BASE [workload ...]

Valgrind counts them, so the figures do not depend on what else the machine does. Times of Redis itself and random seeds
of its tables move them by some thousandths; a figure is the median of three rounds.
"""

import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.bench import workloads
from tests.servers import Server, find_binary

ROOT = Path(__file__).resolve().parents[2]
WORKLOADS = Path(workloads.__file__)
#: The server may take more instructions by this share, a client none beyond what is noise.
LIMITS = {"server": 0.01, "client": 0.002}
#: The function of the C library that each side calls at a mark.
MARKS = {"server": "getcwd", "client": "getppid"}


def check_out(revision: str, folder: Path) -> Path:
    """The code of a revision, in `folder`."""
    packed = subprocess.run(["git", "archive", revision, "rqttl", "lua"], cwd=ROOT, check=True, capture_output=True)
    folder.mkdir()
    subprocess.run(["tar", "-x"], cwd=folder, input=packed.stdout, check=True)
    return folder


def callgrind(side: str, folder: Path) -> list[str]:
    """The words before a command whose instructions are counted up to each mark. The counts are files of `folder`."""
    return [
        "valgrind",
        "--quiet",
        "--tool=callgrind",
        f"--dump-before={MARKS[side]}",
        f"--callgrind-out-file={folder}/%p",
    ]


def counts(folder: Path, pid: int) -> list[int]:
    """The instructions up to each mark."""
    totals = []
    for number in range(1, len(list(folder.glob(f"{pid}.*"))) + 1):
        total = re.search(r"^totals: (\d+)$", (folder / f"{pid}.{number}").read_text(), re.MULTILINE)
        totals.append(int(total[1]) if total else 0)
    return totals


def run(tree: Path, side: str, server: Server, names: Sequence[str], before: Sequence[str] = ()) -> int:
    """Run the workloads with the code of a tree. Returns the id of the process."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tree), str(ROOT))), "PYTHONHASHSEED": "0"}
    command = [*before, sys.executable, str(WORKLOADS), str(server.socket), side, *names]
    with subprocess.Popen(command, cwd=tree, env=environment) as process:
        if process.wait():
            raise SystemExit(f"the workloads failed with the code in {tree}")
        return process.pid


def count(tree: Path, side: str, names: Sequence[str], folder: Path) -> list[int]:
    """The instructions up to each mark of one side, with the code of a tree."""
    binary = find_binary("7.0")
    if binary is None:
        raise SystemExit("no redis-server 7 or later")
    folder.mkdir()
    if side == "client":
        server = Server(binary, hz=1)
        try:
            return counts(folder, run(tree, side, server, names, callgrind(side, folder)))
        finally:
            server.remove()
    wrapper = folder / "redis-server"
    wrapper.write_text(f'#!/bin/sh\nexec {" ".join(callgrind(side, folder))} {binary} "$@"\n')
    wrapper.chmod(0o700)
    server = Server(wrapper, hz=1)
    try:
        run(tree, side, server, names)
        server.stop()
        return counts(folder, server.process.pid)
    finally:
        server.remove()


def per_message(found: Sequence[int], chosen: Sequence[workloads.Workload]) -> dict[str, float]:
    """The instructions of a message of each workload: every second count is that of its work."""
    worked = found[1::2]
    if len(worked) != len(chosen) * workloads.ROUNDS:
        raise SystemExit(f"{len(found)} counts, expected {2 * len(chosen) * workloads.ROUNDS}")
    rounds = [worked[i : i + workloads.ROUNDS] for i in range(0, len(worked), workloads.ROUNDS)]
    return {one.name: statistics.median(some) / one.messages for one, some in zip(chosen, rounds, strict=True)}


def measure(
    trees: Sequence[Path], names: Sequence[str], folder: Path, sides: Iterable[str] = LIMITS
) -> dict[str, list[dict[str, float]]]:
    """The instructions of a message of each workload, by side and tree. Two programs run at a time."""
    chosen = [workload for workload in workloads.WORKLOADS if not names or workload.name in names]
    known = [[workload for workload in chosen if (tree / workload.needs).exists()] for tree in trees]

    def figures(side: str, i: int) -> dict[str, float]:
        found = count(trees[i], side, [workload.name for workload in known[i]], folder / f"{side}-{i}")
        return per_message(found, known[i])

    with ThreadPoolExecutor(2) as pool:
        runs = {side: [pool.submit(figures, side, i) for i in range(len(trees))] for side in sides}
        return {side: [run.result() for run in some] for side, some in runs.items()}


def main(base: str, *names: str) -> int:
    if shutil.which("valgrind") is None:
        raise SystemExit("no valgrind (Debian: apt-get install valgrind)")
    with tempfile.TemporaryDirectory(prefix="rqttl-instructions-") as folder:
        trees = (check_out(base, Path(folder, "tree")), ROOT)
        figures = measure(trees, names, Path(folder))
    more = False
    print(f"{'instructions per message':<42} {base[:12]:>12} {'here':>12}")
    for side, (old, new) in figures.items():
        for name, figure in new.items():
            before = old.get(name, math.nan)
            change = figure / before - 1
            missed = change > LIMITS[side]
            more = more or missed
            print(f"{side + ': ' + name:<42} {before:>12,.0f} {figure:>12,.0f} {change:>+8.1%} {'!' * missed}")
    return int(more)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    sys.exit(main(*sys.argv[1:]))
