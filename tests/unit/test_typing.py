"""Type checkers know the options of a queue, and accept the examples of the documentation.

All snippets go through one run of `mypy --strict`, for the oldest Python.
"""

import os
import re
import subprocess
import sys
import textwrap
from collections import defaultdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal, get_args

import pytest

import rqttl
from tests.repository import ROOT
from tests.unit.test_docs import ASYNCIO, README, SPARK, TESTING, blocks, files
from tests.unit.test_wheel import made_once

PROLOGUE = """
from datetime import timedelta

import rqttl
from rqttl.testing import fake_broker

broker = rqttl.connect()
orders = broker.queue("orders")
fake = fake_broker()
options: rqttl.OptionArguments = {"max_length": 3, "message_ttl": "60s"}
"""
RIGHT = [
    "max_length=3",
    "max_length=None",
    'message_ttl="60s"',
    "message_ttl=timedelta(minutes=1)",
    "message_ttl=0",
    "never_expire=True",
    'overflow="reject-publish"',
    'dead_letter="{queue}/dead"',
    'dead_letter_expired=""',
    "**options",
    "**orders.options().as_arguments()",
]
#: Options that mypy refuses, and what it says of each.
WRONG = {
    "max_lenght=3": 'Unexpected keyword argument "max_lenght"',
    'max_length="3"': 'Argument "max_length" to "{}" of "{}" has incompatible type "str"; expected "int | None"',
    "max_length=1.5": 'Argument "max_length" to "{}" of "{}" has incompatible type "float"; expected "int | None"',
    "message_ttl=60": 'Argument "message_ttl" to "{}" of "{}" has incompatible type "Literal[60]"; expected "timedelta',
    "lease=1.5": 'Argument "lease" to "{}" of "{}" has incompatible type "float"',
    'never_expire="no"': 'Argument "never_expire" to "{}" of "{}" has incompatible type "str"; expected "bool | None"',
    'overflow="drop-tail"': 'Argument "overflow" to "{}" of "{}" has incompatible type "Literal[\'drop-tail\']"',
    "dead_letter=5": 'Argument "dead_letter" to "{}" of "{}" has incompatible type "int"; expected "str | None"',
}
#: The calls that take options, with the names that mypy has for them.
CALLS = {
    'broker.declare_queue("q", {})': ("declare_queue", "Broker"),
    'fake.declare_queue("q", {})': ("declare_queue", "Broker"),
    "orders.update({})": ("update", "Queue"),
    "orders.preview_update({})": ("preview_update", "Queue"),
}
UNITS_PROLOGUE = """
from datetime import datetime, timedelta, timezone

import rqttl
from rqttl.reaper import Reaper
from rqttl.testing import fake_broker

broker = fake_broker()
queue = broker.declare_queue("q")
delivery = queue.receive_many(1)[0]
ttl: rqttl.Duration = "60s"
until: rqttl.Instant = "2026-11-21T10:00Z"
headers: dict[str, rqttl.Header] = {"region": "eu", "retries": 3}
seconds: int = 60
"""
DURATIONS = [
    'queue.enqueue(b"x", ttl={})',
    'rqttl.Message(b"x", ttl={})',
    "queue.receive({})",
    "queue.receive(lease={})",
    "queue.receive_many(5, wait={})",
    "queue.receive_many(5, lease={})",
    "queue.consume(lease={})",
    "queue.consume(wait={})",
    "delivery.nack({})",
    "delivery.renew({})",
    "queue.nack_many([delivery], delay={})",
    "queue.renew_many([delivery], lease={})",
    'queue.enqueue_many([b"x"], duplicate_window={})',
    "broker.clock.advance({})",
    "Reaper(broker, scan_period={})",
]
INSTANTS = ['queue.enqueue(b"x", expires_at={})', 'rqttl.Message(b"x", expires_at={})', "broker.clock.set({})"]

RIGHT_UNITS = [
    *[call.format(one) for call in DURATIONS for one in ("ttl", '"1500ms"', "timedelta(seconds=1)", "0")],
    *[call.format(one) for call in INSTANTS for one in ("until", "1795255200000", "datetime.now(timezone.utc)")],
    'queue.enqueue(b"x", headers=headers)',
]
WRONG_UNITS = [
    *[call.format(one) for call in DURATIONS for one in ("60", "1.5", "seconds")],
    *[call.format(one) for call in INSTANTS for one in ("60.0", "timedelta(seconds=1)")],
]
EXAMPLES = (README, TESTING, ASYNCIO, SPARK)


def example(document: str) -> str:
    """The Python of a document as one program."""
    return "\n".join(textwrap.dedent(block) for block in blocks(document, "python"))


def programs() -> dict[str, str]:
    """The programs to check, by file name."""
    right = {f"right_{i}.py": "".join(f"{call.format(options)}\n" for options in RIGHT) for i, call in enumerate(CALLS)}
    wrong = {f"wrong_{i}.py": "".join(f"{call.format(options)}\n" for options in WRONG) for i, call in enumerate(CALLS)}
    shown = {f"{re.sub(r'[^a-z]', '_', name.lower())}.py": example(name) for name in EXAMPLES}
    units = {"right_units.py": RIGHT_UNITS, "wrong_units.py": WRONG_UNITS}
    return {
        **{name: PROLOGUE + text for name, text in {**right, **wrong}.items()},
        **{name: UNITS_PROLOGUE + "\n".join(calls) for name, calls in units.items()},
        **shown,
        **files(README),
    }


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[int, str]]:
    """The errors of `mypy --strict`: for each program the line, and the text. One process of a run asks for all."""
    written = programs()

    def make(folder: Path) -> None:
        for file, text in written.items():
            (folder / file).write_text(text, encoding="utf-8")
        options = ("--strict", "--no-error-summary", "--hide-error-context", "--config-file=", "--python-version=3.10")
        cache = f"--cache-dir={ROOT / '.mypy_cache' / 'programs'}"
        command = [sys.executable, "-m", "mypy", *options, cache, "--scripts-are-modules", *written]
        environment = {**os.environ, "MYPYPATH": str(ROOT)}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert (done.returncode in (0, 1), done.stderr) == (True, "")
        (folder / "said").write_text(done.stdout, encoding="utf-8")

    said = (made_once(tmp_path_factory, "programs", make) / "said").read_text(encoding="utf-8")
    errors: dict[str, dict[int, str]] = defaultdict(dict)
    for path, line, text in re.findall(r"^(.+?\.py):(\d+): error: (.*)$", said, re.MULTILINE):
        errors[Path(path).name].setdefault(int(line), text)
    assert set(errors) <= set(written), said
    return errors


@pytest.mark.parametrize("i", range(len(CALLS)), ids=list(CALLS))
def test_right_options_pass_and_wrong_ones_are_errors(i: int, said: dict[str, dict[int, str]]) -> None:
    first = PROLOGUE.count("\n") + 1
    names = list(CALLS.values())[i]

    assert said.get(f"right_{i}.py", {}) == {}
    wrong = said[f"wrong_{i}.py"]
    assert [
        (written, wrong.get(first + n))
        for n, (written, text) in enumerate(WRONG.items())
        if not wrong.get(first + n, "").startswith(text.format(*names))
    ] == []


@pytest.mark.parametrize("document", EXAMPLES)
def test_the_python_examples_pass_a_strict_type_checker(document: str, said: dict[str, dict[int, str]]) -> None:
    program = example(document).splitlines()
    errors = said.get(f"{re.sub(r'[^a-z]', '_', document.lower())}.py", {})

    assert program
    assert {program[line - 1]: text for line, text in errors.items()} == {}
    assert [said[name] for name in files(document) if name in said] == []


def test_no_package_is_needed_for_the_types_at_run_time() -> None:
    without = "import sys; sys.modules['typing_extensions'] = None; import rqttl; rqttl.OptionArguments; rqttl.Broker"

    subprocess.run([sys.executable, "-c", without], check=True)


def test_only_a_value_with_a_unit_is_taken_for_a_duration_or_an_instant(said: dict[str, dict[int, str]]) -> None:
    first, wrong = UNITS_PROLOGUE.count("\n") + 1, said["wrong_units.py"]

    assert said.get("right_units.py", {}) == {}
    assert [call for n, call in enumerate(WRONG_UNITS) if "incompatible type" not in wrong.get(first + n, "")] == []


def test_the_names_for_annotations_are_public_and_hold_the_documented_types() -> None:
    assert {"Duration", "Instant", "Header"} <= set(rqttl.__all__)
    assert set(get_args(rqttl.Duration)) == {timedelta, str, Literal[0]}
    assert set(get_args(rqttl.Instant)) == {datetime, str, int}
    assert set(get_args(rqttl.Header)) == {str, bytes, int, float, bool, type(None)}
