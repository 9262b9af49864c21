"""The examples of `deploy/spark`: the job does what it says, and the image, not built, is made of existing files."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyarrow import dataset

from rqttl import Broker
from tests.repository import ROOT
from tests.servers import Server
from tests.spark.jvm import Submitter
from tests.spark.letters import bury

SPARK = ROOT / "deploy" / "spark"
ARCHIVE, SUBMIT, DOCKERFILE = SPARK / "archive.py", SPARK / "submit.sh", SPARK / "Dockerfile"


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile, lines joined and comments left out."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(encoding="utf-8"), flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in text.splitlines() if line.strip()]


def arguments(instruction: str) -> list[str]:
    return [said for name, said in instructions() if name == instruction]


def submit(submitter: Submitter, *words: object, **changed: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(submitter.home / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = submitter.variables({"PATH": path, "SPARK_MASTER": "local[2]", **changed})
    return subprocess.run(
        [SUBMIT, *map(str, words)], cwd=submitter.folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_the_job_appends_what_came_since_its_last_run(
    submitter: Submitter, start_server: Callable[..., Server], tmp_path: Path
) -> None:
    table, password, server = tmp_path / "table", tmp_path / "password", start_server()
    password.write_text("right\n")
    words = [table, "--checkpoint", tmp_path / "state", "--url", server.url]
    words += ["--username", "spark", "--password-file", password]

    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "spark", "on", ">right", "~rqttl:*", "-@all", "+@read", "+@connection")
        bury(Broker(client), 300)
        first = submit(submitter, *words)
        bury(Broker(client), 20, first=300)
        bury(Broker(client), 5, source="mails", into="mails/dead")
        second = submit(submitter, *words)

    assert [done.returncode for done in (first, second)] == [0, 0], first.stdout + first.stderr + second.stderr
    assert [done.stdout.splitlines()[-1].split()[0] for done in (first, second)] == ["300", "25"]
    rows = dataset.dataset(table).to_table(columns=["queue", "message_id", "source"]).to_pylist()
    assert len(rows) == len({(row["queue"], row["message_id"]) for row in rows}) == 325
    assert Counter(row["source"] for row in rows) == {"orders": 320, "mails": 5}


def test_the_script_runs_in_every_shell_and_says_which_setting_it_lacks(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_MASTER"}
    environment["PYSPARK_DRIVER_PYTHON"] = sys.executable
    done = subprocess.run(["sh", SUBMIT], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode != 0
    assert "SPARK_MASTER: the master, such as yarn" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_job_takes_the_options_that_the_examples_give(tmp_path: Path) -> None:
    told = subprocess.check_output([sys.executable, ARCHIVE, "--help"], text=True, cwd=tmp_path)
    readme = (ROOT / "deploy" / "README.md").read_text(encoding="utf-8")
    examples = re.findall(r"^deploy/spark/submit.sh (.*)$|archive.py (/lake.*)$", readme, re.MULTILINE)

    given = {word for one in examples for word in shlex.split("".join(one)) if word.startswith("--")}

    assert len(examples) == 2
    assert given <= set(re.findall(r"--[\w-]+", told))


def test_the_image_copies_what_there_is_and_runs_what_it_copied() -> None:
    stages = {said.partition(" AS ")[2]: said for said in arguments("FROM")}
    copied = set()
    for said in arguments("COPY"):
        *sources, target = said.split()
        if sources[0].startswith("--from="):
            assert sources[0].removeprefix("--from=") in stages
        else:
            assert [source for source in sources if not (ROOT / source).exists()] == []
            copied.add(target)

    [entry], [command] = map(json.loads, arguments("ENTRYPOINT")), map(json.loads, arguments("CMD"))

    assert entry == ["spark-submit"]
    assert shutil.which("spark-submit", path=str(Path(sys.executable).parent)), "what pyspark installs"
    assert [word for word in command if word.startswith("/")] == [word for word in copied if word.endswith(".py")]
