"""The pure parts of the comparison with other queues."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.compare import candidates as environments
from tests.bench.compare.candidates import CANDIDATES, WORKLOADS
from tests.bench.compare.figures import (
    GOALS,
    Goal,
    Run,
    percentile,
)


@pytest.mark.parametrize("share, value", [(0.5, 50), (0.99, 99), (1, 100), (0.001, 1)])
def test_a_percentile_is_a_value_that_was_measured(share: float, value: int) -> None:
    assert percentile(range(100, 0, -1), share) == value


def test_a_goal_compares_round_by_round_with_the_best_candidate() -> None:
    goal = Goal("", "one", ">= 2", ("SAQ", "RQ"), "one async")
    runs = {
        ("rqttl", "one"): [Run(rate=10), Run(rate=30), Run(rate=40)],
        ("RQ", "one"): [Run(rate=1), Run(rate=2), Run(rate=2)],
        ("SAQ", "async"): [Run(rate=10), Run(rate=10), Run(rate=10)],
    }

    assert goal.reached(runs) == 3


def test_goals_name_candidates_and_workloads_that_exist() -> None:
    have = {(c.name, workload) for c in CANDIDATES for workload in c.workloads}

    for goal in GOALS:
        assert goal.workload in WORKLOADS
        others = {(name, w) for name in goal.others for w in (goal.against or goal.workload).split()}
        assert others & have, goal.title


def test_each_program_exists_and_each_package_is_pinned() -> None:
    folder = Path(environments.HERE, "peers")

    assert all((folder / c.program).is_file() for c in CANDIDATES)
    for name in {c.environment for c in CANDIDATES} - {"rqttl"}:
        separator = "@" if name == "node" else "=="
        assert all(separator in package for package in environments.packages(name))
