"""Type checkers know the options of a queue, and accept the examples of the documentation.

All snippets go through one run of `mypy --strict`, for the oldest Python.
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections import defaultdict
from pathlib import Path

import pytest

from rqttl.option_types import OptionArguments
from rqttl.options import OPTIONS
from tests.unit.checked import said_of
from tests.unit.test_docs import ASYNCIO, README, SPARK, TESTING, blocks, files

pytestmark = pytest.mark.timeout(600)  # mypy begins without a cache
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
EXAMPLES = (README, TESTING, ASYNCIO, SPARK)


def example(document: str) -> str:
    """The Python of a document as one program."""
    return "\n".join(textwrap.dedent(block) for block in blocks(document, "python"))


def programs() -> dict[str, str]:
    """The programs to check, by file name."""
    right = {f"right_{i}.py": "".join(f"{call.format(options)}\n" for options in RIGHT) for i, call in enumerate(CALLS)}
    wrong = {f"wrong_{i}.py": "".join(f"{call.format(options)}\n" for options in WRONG) for i, call in enumerate(CALLS)}
    shown = {f"{re.sub(r'[^a-z]', '_', name.lower())}.py": example(name) for name in EXAMPLES}
    return {name: PROLOGUE + text for name, text in {**right, **wrong}.items()} | shown | files(README)


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[int, str]]:
    """The errors of mypy: for each program the line, and the text."""
    written = programs()
    said = said_of(written, tmp_path_factory, "programs")
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


def test_every_option_has_a_type_and_nothing_else_has() -> None:
    assert list(OptionArguments.__annotations__) == list(OPTIONS)


def test_no_package_is_needed_for_the_types_at_run_time() -> None:
    told = "import sys, rqttl; rqttl.OptionArguments; rqttl.Broker; print('typing_extensions' in sys.modules)"

    done = subprocess.run(
        [
            sys.executable,
            "-X",
            "frozen_modules=off",
            "-c",
            f"import sys; sys.modules['typing_extensions'] = None; import rqttl.option_types, rqttl.broker; {told}",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
