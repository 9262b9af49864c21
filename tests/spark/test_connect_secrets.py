"""Over Spark Connect, a password from a file is nowhere. Spark itself writes one in an option into its event log."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rqttl import Broker
from tests.servers import Server
from tests.spark.jvm import settings
from tests.spark.letters import bury
from tests.spark.test_secrets import PASSWORD, giving, traces

PROGRAM = """
import json, pathlib, sys
from pyspark.sql import SparkSession

folder = pathlib.Path(sys.argv[1])
builder = SparkSession.builder.remote("local[1]")
conf = {"eventLog.enabled": "true", "eventLog.dir": str(folder / "events"), "eventLog.compress": "false",
        "local.dir": str(folder / "local"), "sql.warehouse.dir": str(folder / "warehouse"), "ui.enabled": "false"}
for name, value in conf.items():
    builder = builder.config(f"spark.{name}", value)
spark = builder.getOrCreate()
letters = spark.read.format("rqttl").options(**json.loads((folder / "options.json").read_text())).load()
print(letters.count(), "letters")
spark.stop()
"""


@pytest.fixture
def connects_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One process at a time: a server of Spark Connect that `remote("local[1]")` starts has always the port 15002."""
    with (tmp_path_factory.getbasetemp().parent / "spark-connect.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.mark.slow
@pytest.mark.timeout(1_200)  # a time for the other process, and one for this
@pytest.mark.usefixtures("connects_port")
@pytest.mark.parametrize("way, exposed", [("passwordFile", False), ("password", True)])
def test_only_a_password_in_an_option_is_in_the_event_log_and_a_warning_says_so(
    way: str, exposed: bool, java: None, start_server: Callable[..., Server], tmp_path: Path
) -> None:
    server = start_server()
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "reader", "on", f">{PASSWORD}", "~*", "&*", "+@all")
        bury(Broker(client), 100)
    (tmp_path / "events").mkdir()
    (tmp_path / "options.json").write_text(json.dumps(giving(way, server.url, tmp_path)))
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path)],
        capture_output=True,
        check=False,
        text=True,
        timeout=500,
        env={**os.environ, **settings(tmp_path)},
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "100 letters" in done.stdout
    logs = [path.read_bytes() for path in (tmp_path / "events").rglob("*") if path.is_file()]
    assert any(b"SparkListenerConnectOperationStarted" in log for log in logs)
    assert any(traces(log) for log in logs) == exposed
    assert not traces(done.stdout + done.stderr)
    assert ("passwordFile and passwordEnv avoid both" in done.stderr) == exposed
