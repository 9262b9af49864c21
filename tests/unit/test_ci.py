"""`.ci/run`: its environment has only the variables that it needs, and no others of the machine."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.repository import ROOT

#: Writes down its arguments and its environment, and does nothing else.
MAKE = '#!/bin/sh\necho "make $*" >>"$HOME/calls"\nenv -0 >"$HOME/environment"\n'
NEEDED = {
    "PIP_INDEX_URL": "https://index.invalid/simple",
    "PIP_FIND_LINKS": "/wheels",
    "HTTPS_PROXY": "http://proxy.invalid:3128",
    "https_proxy": "http://proxy.invalid:3129",
    "no_proxy": "a value with spaces, 'quotes' and\na second line",
    "SSL_CERT_FILE": "/certificates.pem",
    "REQUESTS_CA_BUNDLE": "/certificates.pem",
    "PYTHON": "python3",
}
ODD = {
    "PYTHONUNBUFFERED": "1",
    "PYTHONPATH": "/elsewhere",
    "RQTTL_URL": "redis://elsewhere.invalid",
    "RQTTL_TEST_REDIS": "6.2",
    "JAVA_HOME": "/elsewhere",
    "COLUMNS": "20",
    "NO_COLOR": "1",
    "LC_ALL": "tr_TR.UTF-8",
    "MAKEFLAGS": "-n",
    "PIPELINE": "1",
}
#: What a shell sets by itself.
OF_THE_SHELL = {"PWD", "OLDPWD", "SHLVL", "_"}


def run(home: Path, *arguments: str, **environment: str) -> dict[str, str]:
    """Run `.ci/run` with a `make` that does nothing; the environment of the last call of it."""
    programs = home / "bin"
    programs.mkdir()
    (programs / "make").write_text(MAKE)
    (programs / "make").chmod(0o700)
    own = {"HOME": str(home), "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run([ROOT / ".ci/run", *arguments], env={**own, **environment}, check=True)
    lines = (home / "environment").read_text().rstrip("\0").split("\0")
    return {name: value for name, _, value in (line.partition("=") for line in lines) if name not in OF_THE_SHELL}


def test_a_run_keeps_what_it_needs_and_drops_the_rest(tmp_path: Path) -> None:
    kept = run(tmp_path, **NEEDED, **ODD)

    assert kept.pop("PATH").startswith(f"{tmp_path}/bin{os.pathsep}")
    assert kept == {**NEEDED, "HOME": str(tmp_path), "CI": "true"}


def test_a_run_sets_up_checks_and_tests_once(tmp_path: Path) -> None:
    run(tmp_path)

    assert (tmp_path / "calls").read_text() == "make setup\nmake check test\n"


@pytest.mark.parametrize("given, set_to", [("", "true"), ("yes", "yes")])
def test_a_run_has_ci_set(tmp_path: Path, given: str, set_to: str) -> None:
    assert run(tmp_path, CI=given)["CI"] == set_to


@pytest.mark.parametrize("target", ["test", "check"])
def test_the_server_is_installed_before_the_first_test_runs(target: str) -> None:
    plan = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    assert "setup server" in plan.partition("pytest")[0]
