"""Bytes that are no text, in any argument, option or variable: they are kept, or refused in one line with code 2."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from rqttl import Broker
from tests.cli.conftest import Run
from tests.cli.tree import ALL, LEAVES, arguments, options

pytestmark = pytest.mark.once

#: As Python reads the bytes `a\xffb` on the command line.
BAD = os.fsdecode(b"a\xffb")
#: A word for each argument that a command needs beside the one that is bad.
WORDS = {"queue": "orders", "name": "orders", "queues": "orders", "shell": "bash"}
#: Words that may have any bytes: the name of a folder that is made, a name that no command uses.
KEPT = ("demo --picture", "server --folder", " --url", " --namespace")


def _words(path: tuple[str, ...], bad: click.Parameter | None = None) -> list[str]:
    """The words of a call whose argument `bad`, if any, is bad; no argument follows it."""
    words = []
    for one in arguments(path):
        words.append(BAD if one is bad else WORDS.get(one.name or "", "1"))
        if one is bad or (bad is None and not one.required):
            break
    return words


def _calls() -> Iterator[tuple[str, list[str]]]:
    """A call for each place of a word: its name, and the words."""
    yield "command", [BAD]
    yield "unknown option", [f"--{BAD}"]
    for path in ALL:
        for option in options(path):
            if not option.is_flag:
                name = f"{' '.join(path)} {option.opts[0]}"
                yield name, [*path, option.opts[0], BAD, *(_words(path) if path in LEAVES else ())]
    for path in LEAVES:
        for argument in arguments(path):
            if (path, argument.name) != (("send",), "body"):
                yield f"{' '.join(path)} {argument.name}", [*path, *_words(path, argument)]


CALLS = {name: words for name, words in _calls() if name not in KEPT}


def test_words_that_are_no_text_are_refused_in_one_line(
    run: Run, broker: Broker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    broker.declare_queue("orders")
    broker.queue("orders").enqueue(b"x")

    results = {call: run(*words, stdin=b"") for call, words in CALLS.items()}

    assert {call: result.output for call, result in results.items() if result.exit_code != 2} == {}
    lines = {call: result.stderr.splitlines() for call, result in results.items()}
    assert {call: told for call, told in lines.items() if len(told) != 1 or not told[0].startswith("rqttl: ")} == {}
    assert {call: result.stdout for call, result in results.items() if result.stdout} == {}
    assert broker.queues() == ["orders"]


def test_a_body_keeps_its_bytes(run: Run, broker: Broker) -> None:
    broker.declare_queue("orders")

    assert run("send", "orders", BAD).exit_code == 0
    assert [one.body for one in broker.queue("orders").peek()] == [b"a\xffb"]


@pytest.mark.parametrize("url", [b"redis://a\xffb/0", b"embedded://\xff"])
def test_a_url_in_the_environment_that_is_no_text_is_refused_in_one_line(url: bytes) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "rqttl.cli", "peek", "orders"],
        env={**os.environb, b"RQTTL_URL": url},
        capture_output=True,
        check=False,
    )

    assert (result.returncode, result.stdout) == (2, b"")
    assert result.stderr.startswith(b"rqttl: url: ")
    assert result.stderr.count(b"\n") == 1
