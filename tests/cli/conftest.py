"""The command line within this process, against the shared server."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from rqttl.cli import cli

Run = Callable[..., Result]


@pytest.fixture
def run(redis_url: str) -> Run:
    """`run("queue", "ls", stdin=b"")`: the result has `stdout`, `stderr` and `exit_code`."""

    def call(*arguments: str | bytes, stdin: bytes | None = None) -> Result:
        return CliRunner(env={"RQTTL_URL": redis_url}).invoke(cli, arguments, input=stdin)  # type: ignore[arg-type]  # bytes are what the system gives

    return call
