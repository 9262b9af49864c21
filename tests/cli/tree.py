"""All commands of the command line. Tests of conventions run for each of them."""

import re
import shlex
from collections.abc import Iterator

import click

from rqttl.cli import cli

CommandPath = tuple[str, ...]


def children(command: click.Command) -> dict[str, click.Command]:
    """The commands of a group, in the order of its help; none for a command that is no group."""
    if not isinstance(command, click.Group):
        return {}
    context = click.Context(command)
    found = {name: command.get_command(context, name) for name in command.list_commands(context)}
    return {name: child for name, child in found.items() if child is not None}


def walk(command: click.Command, *path: str) -> Iterator[CommandPath]:
    yield path
    for name, child in children(command).items():
        yield from walk(child, *path, name)


def found(path: CommandPath) -> click.Command:
    command: click.Command = cli
    for name in path:
        command = children(command)[name]
    return command


def does_work(command: click.Command) -> bool:
    """Return True unless a command is only a group of others. `rqttl worker` is a group that takes arguments, too."""
    return not isinstance(command, click.Group) or any(isinstance(one, click.Argument) for one in command.params)


#: Every command, groups included; and those that do the work.
ALL = list(walk(cli))
LEAVES = [path for path in ALL if does_work(found(path))]


def options(path: CommandPath) -> list[click.Option]:
    return [one for one in found(path).params if isinstance(one, click.Option)]


def arguments(path: CommandPath) -> list[click.Argument]:
    return [one for one in found(path).params if isinstance(one, click.Argument)]


def flags(path: CommandPath) -> set[str]:
    return {flag for one in options(path) for flag in (*one.opts, *one.secondary_opts)}


def stages(line: str) -> Iterator[list[str]]:
    """Every program call in a shell line, without comments and redirections."""
    for part in line.split("|"):
        if words := [word for word in shlex.split(part, comments=True) if not re.match(r"[<>]", word)]:
            yield words


def example(path: CommandPath) -> str:
    """The invocation that the help of a command shows."""
    epilog = found(path).epilog or ""
    assert epilog.startswith("\b\nExample: ")  # which click does not fold
    return epilog.removeprefix("\b\nExample: ")


def parse(words: list[str]) -> tuple[CommandPath, click.Context]:
    """The command of an invocation, with its arguments read. Raises `click.UsageError` for wrong ones."""
    assert words[0] == "rqttl"
    command: click.Command = cli
    path: CommandPath = ()
    context = click.Context(cli, info_name="rqttl", **cli.context_settings)
    rest = words[1:]
    while rest and rest[0] in children(command):
        name = rest.pop(0)
        command, path, outer = children(command)[name], (*path, name), context
        context = click.Context(command, outer, info_name=name)
    return path, command.make_context(path[-1] if path else "rqttl", rest, parent=context.parent)
