"""Every command explains itself, in 80 columns."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

import rqttl
from rqttl.cli import cli
from rqttl.cli.common import option_flags
from rqttl.options import OPTIONS
from tests.cli.tree import ALL, Path, example, flags, options, parse, stages

pytestmark = pytest.mark.once


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_help_fits_and_ends_with_an_example(path: Path) -> None:
    result = CliRunner().invoke(cli, [*path, "--help"], terminal_width=80)

    assert (result.exit_code, result.stderr) == (0, "")
    assert [line for line in result.stdout.splitlines() if len(line) > 80] == []
    assert f"\n  Example: {example(path)}\n" in result.stdout
    assert CliRunner().invoke(cli, [*path, "-h"], terminal_width=80).stdout == result.stdout


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_option_says_what_it_does(path: Path) -> None:
    assert [one.opts for one in options(path) if not one.help] == []


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_the_example_is_an_invocation_that_can_be_typed(path: Path) -> None:
    ours = [words for words in stages(example(path)) if words[0] == "rqttl"]

    assert path in [named[: len(path)] for named, _ in map(parse, ours)]


def test_every_option_of_a_queue_is_a_flag_of_declare() -> None:
    assert {f"--{name.replace('_', '-')}" for name in OPTIONS} <= flags(("queue", "declare"))


@pytest.mark.parametrize(
    "path, titles",
    [
        (
            ("queue", "declare"),
            [
                "Lifetime of messages",
                "Limits",
                "Dead letters",
                "Retries",
                "End of the queue",
                "Other options of a queue",
            ],
        ),
        (("policy", "set"), ["Lifetime of messages", "Limits"]),
        (("worker",), ["What to run", "How many", "Time and retries", "When to stop", "Observe"]),
    ],
)
def test_many_options_stand_in_sections(path: Path, titles: list[str]) -> None:
    printed = CliRunner().invoke(cli, [*path, "--help"], terminal_width=80).stdout
    found = re.findall(r"^(\w[^:\n]*):$", printed, re.MULTILINE)

    assert found[: len(titles)] == titles
    assert all(option.opts[0] in printed for option in options(path))
    assert printed.count("  --message-ttl ") == (path != ("worker",))


def test_every_option_of_a_queue_has_a_section() -> None:
    grouped = {name for names in option_flags.SECTIONS.values() for name in names}

    assert sorted(grouped) == sorted(OPTIONS)


def test_a_group_alone_shows_its_help() -> None:
    assert CliRunner().invoke(cli, []).stdout == CliRunner().invoke(cli, ["--help"]).stdout
    assert CliRunner().invoke(cli, ["queue"]).stdout == CliRunner().invoke(cli, ["queue", "--help"]).stdout


def test_the_version_is_the_version() -> None:
    assert re.fullmatch(rf"rqttl {re.escape(rqttl.__version__)}\n", CliRunner().invoke(cli, ["--version"]).stdout)
