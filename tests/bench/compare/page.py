"""The shares that `make compare PAGE=1` writes into the page *Who is it for*, with their date and their command."""

import argparse
import platform
import re
from collections.abc import Iterable
from datetime import datetime, timezone

import rqttl
from tests.bench.compare.candidates import WORKLOADS, Candidate, packages
from tests.bench.compare.figures import Runs, cell, ratio
from tests.repository import ROOT
from tests.unit.reference import between, table

PAGE = ROOT / "docs/guides/who-is-it-for.md"
RAW = "raw redis-py"
#: The columns: the workload, its figure, and what the title says beside the workload.
COLUMNS = (("single", "rate", ""), ("workers", "rate", ""), ("limited", "rate", ""), ("wake", "p50", ": time"))
#: redis-py has no workers: it does this beside them.
BESIDE = {"workers": "one"}
SHOWN = [*(workload for workload, *_ in COLUMNS), *BESIDE.values()]


def version(candidate: Candidate) -> str:
    """The pinned version of a peer, with a space before it."""
    pins = [] if candidate.environment == "rqttl" else packages(candidate.environment)
    name = candidate.name.split()[0].lower()
    return "".join(f" {found[1]}" for pin in pins if (found := re.fullmatch(rf"{name}(?:==|@)(.*)", pin)))


def shares(runs: Runs, candidates: Iterable[Candidate]) -> str:
    """The table: each figure against raw redis-py, which has the same workload in the same round."""
    rows = []
    for c in (c for c in candidates if c.name != RAW):
        found = [
            ratio(runs.get((c.name, w), ()), runs.get((RAW, BESIDE.get(w, w)), ()), field) for w, field, _ in COLUMNS
        ]
        rows.append([f"{c.name}{version(c)}", *(cell(value, ".2g") for value in found)])
    return table(["", *(WORKLOADS[workload] + more for workload, _, more in COLUMNS)], rows)


def write(runs: Runs, options: argparse.Namespace, redis: str) -> None:
    """Write the shares between their marks in the page."""
    command = f"make compare PAGE=1 MESSAGES={options.messages} ROUNDS={options.rounds}"
    said = (
        f"Measured on {datetime.now(timezone.utc):%Y-%m-%d} by `{command}`: rqttl {rqttl.__version__}, Redis {redis}, "
        f"Python {platform.python_version()}."
    )
    text = f"{said}\n\n{shares(runs, options.candidates)}\n"
    PAGE.write_text(between("shares").sub(lambda _: text, PAGE.read_text("utf-8")), "utf-8")
