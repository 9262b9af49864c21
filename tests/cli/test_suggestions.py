"""An unknown command has a suggestion, also if other tools have a command of that name."""

from __future__ import annotations

import pytest

from rqttl.cli.common import suggestions
from tests.cli.conftest import Run
from tests.cli.test_errors import failed
from tests.cli.tree import ALL, LEAVES

pytestmark = pytest.mark.once

MEANT = [
    ("create", "queue declare"),
    ("rm", "queue delete"),
    ("ls", "queue ls"),
    ("show", "queue show"),
    ("purge", "queue purge"),
    ("publish", "send"),
    ("Publish", "send"),
    ("pubish", "send"),
    ("consume", "receive"),
    ("retry", "dead redrive"),
    ("dlq", "dead"),
    ("version", "--version"),
    ("queue create", "queue declare"),
    ("queue rm", "queue delete"),
    ("queue list", "queue ls"),
    ("queue publish", "rqttl send"),
    ("dead requeue", "dead redrive"),
    ("dead rm", "dead purge"),
    ("message get", "message show"),
]


@pytest.mark.parametrize("typed, target", MEANT)
def test_a_synonym_is_answered_with_the_command(run: Run, typed: str, target: str) -> None:
    *group, word = typed.split()
    see = " ".join(("rqttl", *group))

    line = failed(run(*typed.split(), "x"), 2).replace("`cli", "`rqttl")

    assert line == f"no such command {word!r}; did you mean `{target}`? (see `{see} --help`)"


@pytest.mark.parametrize("typed", ["frobnicate", "queue frobnicate", "message rm"])
def test_an_unlike_word_has_no_suggestion(run: Run, typed: str) -> None:
    assert "did you mean" not in failed(run(*typed.split()), 2)


@pytest.mark.parametrize(
    "typed, hint",
    [
        ("queue declare q --ttl 5s", "did you mean --message-ttl?"),
        ("queue declare q --dlq dead", "did you mean --dead-letter?"),
        ("queue declare q --delay 5s", "did you mean --redelivery-delay?"),
        ("queue declare q --priority 5", "there are no priorities: use a queue for each"),
        ("queue declare q --durable", "every queue is stored, and `rqttl doctor` says what a crash of Redis can lose"),
        ("queue declare q --mesage-ttl 5s", "did you mean --message-ttl?"),
        ("worker q --concurrency 5", "did you mean --threads?"),
    ],
)
def test_a_flag_of_another_tool_is_answered_with_ours(run: Run, typed: str, hint: str) -> None:
    flag = next(word for word in typed.split() if word.startswith("--"))

    assert failed(run(*typed.split()), 2).startswith(f"no such option {flag!r}; {hint} (see ")


def test_an_unlike_flag_has_no_suggestion(run: Run) -> None:
    assert failed(run("send", "q", "--delay", "5s"), 2) == "no such option '--delay' (see `rqttl send --help`)"


def test_every_suggestion_is_a_command_or_an_option_of_the_root() -> None:
    paths = {" ".join(path) for path in ALL}
    suggested = {" ".join(one for one in path.split() if not one.startswith("--")) for path in suggestions._WORDS}

    assert suggested <= paths


def test_every_command_is_what_some_word_means() -> None:
    assert {" ".join(path) for path in LEAVES} <= set(suggestions._WORDS)
