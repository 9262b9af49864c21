"""Compare rqttl with other queues on Redis in one run: `make compare`."""

import argparse
import itertools
import sys
import time
from contextlib import suppress

from tests.bench.compare.candidates import CANDIDATES, WORKLOADS, Candidate, prepared
from tests.bench.compare.figures import Run, goals, table
from tests.bench.compare.page import SHOWN, write
from tests.bench.compare.running import Bench
from tests.bench.measure import running_server

Found = dict[tuple[str, str], list[Run]]
Absent = dict[tuple[str, str], str]


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.compare", description=__doc__)
    names = {c.name.lower().replace(" ", "-"): c for c in CANDIDATES}
    parser.add_argument("--peers", nargs="*", choices=[*names], default=[*names], help="with rqttl; all by default")
    parser.add_argument("--workloads", nargs="+", choices=[*WORKLOADS], default=[*WORKLOADS])
    parser.add_argument("--messages", type=int, default=10_000, help="of rqttl and redis-py; a peer gets a fifth")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--wakings", type=int, default=100, help="of each round")
    parser.add_argument("--idle-seconds", type=float, default=60.0)
    parser.add_argument("--page", action="store_true", help="write the shares of docs/guides/who-is-it-for.md anew")
    options = parser.parse_args(arguments)
    if options.page and (options.peers != [*names] or options.workloads != [*WORKLOADS]):
        parser.error("--page: with all peers, and without --workloads")
    options.workloads = [*SHOWN] if options.page else options.workloads
    if options.messages < 100 or options.rounds < 1 or options.wakings < 1 or options.idle_seconds <= 0:
        parser.error("--messages: at least 100; --rounds and --wakings: at least 1; --idle-seconds: above 0")
    options.candidates = [c for name, c in names.items() if name in options.peers or name == "rqttl"]
    return options


def measure(bench: Bench, options: argparse.Namespace, candidates: list[Candidate], absent: Absent) -> Found:
    """All runs: the candidates in turn, round by round. A candidate that fails is left out of the other rounds."""
    found: Found = {}
    turns = itertools.product(options.workloads, range(1, options.rounds + 1), candidates)
    with suppress(KeyboardInterrupt):  # the tables hold the runs before
        for workload, turn, c in turns:
            if workload not in c.workloads or (c.name, workload) in absent:
                continue
            began = time.monotonic()
            try:
                run = bench.run(c, workload, options.messages, options.wakings)
            except RuntimeError as failure:
                absent[c.name, workload] = str(failure)
                found.pop((c.name, workload), None)
            else:
                found.setdefault((c.name, workload), []).append(run)
            took = time.monotonic() - began
            print(f"{workload} {turn}/{options.rounds} {c.name}: {took:.0f} s", file=sys.stderr, flush=True)
    return found


def main(arguments: list[str] | None = None) -> None:
    """Install what is missing, measure, and print both tables. With `--page`, write the shares into the page."""
    options = parsed(arguments)
    interpreters = {name: prepared(name) for name in dict.fromkeys(c.environment for c in options.candidates)}
    present = [c for c in options.candidates if interpreters[c.environment]]
    absent: Absent = {
        (c.name, workload): "not installed"
        for c in options.candidates
        if c not in present
        for workload in options.workloads
        if workload in c.workloads
    }
    with running_server() as server, Bench(server, interpreters, options.idle_seconds) as bench:
        found = measure(bench, options, present, absent)
    print("\n".join([*table(found, options.candidates, absent), *goals(found)]))
    if options.page:
        write(found, options, ".".join(map(str, server.version)))


if __name__ == "__main__":
    main()
