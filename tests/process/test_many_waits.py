"""300 threads wait at once, with the redis-py that is installed and with the lowest that is supported."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.process.consuming import ROOT

pytestmark = [pytest.mark.once, pytest.mark.slow, pytest.mark.timeout(600)]

THREADS = 300


def wait_together(url: str, kind: str, packages: Path | None = None) -> dict[str, Any]:
    path = [str(packages)] if packages else []
    done = subprocess.run(
        [sys.executable, "-m", "tests.process.many_waits", url, kind, str(THREADS)],
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
def test_300_threads_wait_and_each_is_served(redis_url: str, kind: str) -> None:
    found = wait_together(redis_url, kind)

    assert found == {"redis": redis.__version__, "served": THREADS}


@pytest.mark.parametrize("kind", ["connect", "default"])
def test_300_threads_wait_and_each_is_served_with_the_lowest_redis_py(
    redis_url: str, lowest: tuple[str, Path], kind: str
) -> None:
    version, folder = lowest

    found = wait_together(redis_url, kind, folder)

    assert found["redis"].startswith(f"{version}.")
    assert found["served"] == THREADS
