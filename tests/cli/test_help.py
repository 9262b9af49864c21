"""Every command explains itself, in 80 columns."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

import rqttl
from rqttl.cli import cli
from rqttl.options import OPTIONS


def commands(command: click.Command, *path: str) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from commands(child, *path, name)


ALL = list(commands(cli))


def found(path: tuple[str, ...]) -> click.Command:
    command: click.Command = cli
    for name in path:
        assert isinstance(command, click.Group)
        command = command.commands[name]
    return command


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_help_fits_and_ends_with_an_example(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(cli, [*path, "--help"], terminal_width=80)

    assert (result.exit_code, result.stderr) == (0, "")
    assert [line for line in result.stdout.splitlines() if len(line) > 80] == []
    assert f"Example: rqttl {' '.join(path)}" in result.stdout
    assert CliRunner().invoke(cli, [*path, "-h"], terminal_width=80).stdout == result.stdout


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_option_says_what_it_does(path: tuple[str, ...]) -> None:
    options = [one for one in found(path).params if isinstance(one, click.Option)]

    assert [one.opts for one in options if not one.help] == []


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_the_summary_of_a_command_is_not_cut_off(path: tuple[str, ...]) -> None:
    assert not found(path).get_short_help_str(60).endswith("...")


@pytest.mark.parametrize("path", [("queue", "declare"), ("queue", "ls"), ("queue", "show"), ("send",), ("receive",)])
def test_what_prints_an_answer_can_print_json(path: tuple[str, ...]) -> None:
    assert "--json" in [name for one in found(path).params for name in one.opts]


def test_every_option_of_a_queue_is_a_flag_of_declare() -> None:
    flags = {name for one in found(("queue", "declare")).params for name in one.opts}

    assert {f"--{name.replace('_', '-')}" for name in OPTIONS} <= flags


def test_a_group_alone_shows_its_help() -> None:
    assert CliRunner().invoke(cli, []).stdout == CliRunner().invoke(cli, ["--help"]).stdout
    assert CliRunner().invoke(cli, ["queue"]).stdout == CliRunner().invoke(cli, ["queue", "--help"]).stdout


def test_the_version_is_the_version() -> None:
    assert re.fullmatch(rf"rqttl {re.escape(rqttl.__version__)}\n", CliRunner().invoke(cli, ["--version"]).stdout)
