"""The wheel where nothing else is: each extra, the first steps of the README on each Python, and the container."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.release.environments import installed, kept, python, run, wheel
from tests.repository import ROOT
from tests.unit.test_docs import _FILE, fenced, told, typed

pytestmark = pytest.mark.slow

#: What each extra is there for.
EXTRAS = {
    "": "import rqttl, spark_connectors, rqttl.cli, rqttl.aio, rqttl.reaper, rqttl.worker, rqttl.inspector",
    "celery": "import rqttl.celery, celery",
    "dashboard": "import uvicorn, rqttl.dashboard.application as one; one.application",
    "demo": "import matplotlib; from rqttl.demo import flights as f; assert f.read_flights(f.data_folder(), 500)",
    "dev": "import build, fakeredis, grpc, hypothesis, importlinter, mypy, pyspark, pytest, uvloop, yaml, zstandard",
    "django": "from django.conf import settings as s; s.configure(INSTALLED_APPS=['rqttl.django']); "
    "import django; django.setup(); from rqttl.django import RqttlBackend as B; B('x', {})",
    "embedded": "import rqttl; rqttl.connect().declare_queue('orders').enqueue(b'x')",
    "import": "import rqttl.imports.artemis, defusedxml",
    "metrics": "import rqttl.metrics, rqttl.metrics.collecting, prometheus_client",
    "otel": "import rqttl.telemetry, rqttl.telemetry.instrumentor as i; i.RqttlInstrumentor().instrument()",
    "spark": "import pyspark_rqttl, spark_connectors.source",
    "testing": "from rqttl.testing import fake_broker; fake_broker().declare_queue('orders').enqueue(b'x')",
    "yaml": "import rqttl.deployments, yaml",
}


@pytest.mark.parametrize("extra", sorted(EXTRAS, reverse=True))
def test_each_extra_installs_into_an_empty_environment_and_works(extra: str, tmp_path: Path) -> None:
    programs = installed(tmp_path / "empty", f"{wheel()}[{extra}]" if extra else wheel())

    run(programs / "python", "-I", "-c", EXTRAS[extra], cwd=tmp_path, RQTTL_HOME=tmp_path / "home")


def test_no_extra_is_left_out() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    [extras] = re.findall(r"^\[project.optional-dependencies\]\n(.*?)^\[", project, re.MULTILINE | re.DOTALL)

    assert sorted(["", *re.findall(r"^(\w+) = \[", extras, re.MULTILINE)]) == sorted(EXTRAS)


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13", "3.14"])
def test_the_first_steps_of_the_readme_run_from_the_wheel(version: str, tmp_path: Path) -> None:
    if (program := python(version)) is None:
        pytest.skip(f"this machine has no Python {version}")
    folder = tmp_path / "first"
    folder.mkdir()
    programs = installed(tmp_path / "empty", f"{wheel()}[embedded,testing]", "pytest", python=program)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    [steps] = re.findall(r"^## First steps\n(.*?)^## ", readme, re.MULTILINE | re.DOTALL)
    settings = {**kept(), "PATH": f"{programs}:/usr/bin:/bin", "RQTTL_HOME": str(tmp_path / "home")}

    checked = 0
    for language, text in fenced("README.md"):
        if text not in steps or language not in ("python", "sh"):
            continue
        if file := _FILE.match(text):
            (folder / file[1]).write_text(text)
        for line, expected in typed(text) if language == "sh" else ():
            words = ["bash", "-euo", "pipefail", "-c", line]
            done = subprocess.run(words, cwd=folder, env=settings, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"Python {version}: {line}\n{done.stdout}\n{done.stderr}"
            assert not expected or told(done.stdout) == told("\n".join(expected))
            checked += bool(expected)
    assert checked >= 4


#: The programs of the image, and what each of them serves.
SERVED = {
    "reaper --health": "/livez",
    "worker orders --call builtins:print --health": "/livez",
    "metrics --listen": "/metrics",
    "dashboard --listen": "/livez",
}


def test_the_steps_of_the_container_run_in_a_folder_and_its_programs_write_nothing(
    tmp_path: Path, redis_url: str
) -> None:
    text = (ROOT / "deploy" / "Containerfile").read_text(encoding="utf-8").replace("\\\n", "")
    steps = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    source, target = tmp_path / "source", tmp_path / "opt" / "rqttl"
    shutil.copytree(ROOT / "build" / "dist" / "first", source)
    (home := tmp_path / "home").mkdir()
    (tmp_path / "opt").mkdir()

    assert ["COPY", ". /source"] in steps
    for what, rest in steps:
        if what == "RUN":
            here = rest.replace("/opt/rqttl", str(target)).replace("/source", str(source))
            run("bash", "-euc", here, cwd=tmp_path)
    [entry] = [json.loads(rest) for what, rest in steps if what == "ENTRYPOINT"]
    [command] = [json.loads(rest) for what, rest in steps if what == "CMD"]
    [settings] = [dict(word.split("=") for word in rest.split()) for what, rest in steps if what == "ENV"]
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}

    assert ["COPY", "--from=build /opt/rqttl /opt/rqttl"] in steps
    assert [rest for what, rest in steps if what == "USER"] == ["65532:65532"]
    assert entry == ["rqttl"]
    told = {**settings, "PATH": str(target / "bin"), "HOME": str(home), "TMPDIR": str(home), "RQTTL_URL": redis_url}
    program = target / "bin" / entry[0]
    assert b"Example: rqttl" in subprocess.run([program, *command], env=told, capture_output=True, check=True).stdout
    subprocess.run([program, "queue", "declare", "orders"], env=told, capture_output=True, check=True)
    for words, path in SERVED.items():
        line = [program, *words.split(), "127.0.0.1:0"]
        with subprocess.Popen(line, cwd=home, env=told, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr
            places = (re.search(r"127\.0\.0\.1:\d+", text) for text in process.stderr)
            try:
                with urlopen(f"http://{next(place[0] for place in places if place)}{path}") as answer:
                    assert answer.read()
            finally:
                process.terminate()
            process.stderr.read()
        assert process.returncode == 0, words
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
