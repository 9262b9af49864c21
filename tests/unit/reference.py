"""The reference of the command line and of its errors, made from the code."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator

import click

from rqttl import RqttlError, errors
from rqttl.cli.common.exits import exit_code
from rqttl.cli.common.option_text import flag
from rqttl.cli.program import SECTIONS, cli
from rqttl.options import OPTIONS
from tests.cli import tree

#: Options that are explained once, unless a command gives them another meaning.
COMMON = ("--json", "--utc", "--yes", "--dry-run", "--url", "--namespace", "--debug", "--help")
_DEFAULT = re.compile(r"\s*\[default: (.*)\]$")


def table(columns: list[str], rows: list[list[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *([cell.replace("|", r"\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def prose(text: str) -> str:
    """Text of a help as Markdown: stars are stars."""
    return text.replace("*", r"\*")


# Errors


def public_errors() -> list[type[RqttlError]]:
    found = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, RqttlError)]
    return [one for one in found if one is not RqttlError]


def errors_table() -> str:
    rows = []
    for one in public_errors():
        when, what_to_do = (" ".join(part.split()) for part in (one.__doc__ or "").split("\n\n"))
        rows.append([f"`{one.code}`", f"`{one.__name__}`", str(exit_code(one)), when, what_to_do])
    return table(["code", "error", "exit", "when", "what to do"], rows)


# Commands


def context_of(path: tree.Path) -> click.Context:
    """The context in which a command would run, so that it knows its whole name."""
    context = click.Context(cli, info_name="rqttl", **cli.context_settings)
    for end in range(1, len(path) + 1):
        context = click.Context(tree.found(path[:end]), context, info_name=path[end - 1])
    return context


def spelled(option: click.Option, context: click.Context) -> str:
    names = [*sorted(option.opts, key=len), *option.secondary_opts]
    value = "" if option.is_flag else f" {option.make_metavar(context)}"
    return ", ".join(f"`{name}{value}`" for name in names)


def meaning(option: click.Option, context: click.Context) -> tuple[str, str]:
    """Return the meaning of an option, and its default."""
    said = option.help or ""
    if found := _DEFAULT.search(said):
        return prose(said[: found.start()]), found[1]
    default = option.get_help_extra(context).get("default", "")
    return prose(said), default


def is_common(option: click.Option) -> bool:
    return any(one in COMMON and option.help == common()[one].help for one in option.opts)


def common() -> dict[str, click.Option]:
    """The options that are explained once, as most commands have them."""
    having = [("dead", "purge"), ()]
    params = [one for path in having for one in tree.found(path).get_params(context_of(path))]
    found = {name: one for one in params if isinstance(one, click.Option) for name in one.opts}
    return {name: found[name] for name in COMMON}


def common_table() -> str:
    context = context_of(())
    return table(
        ["option", "meaning", "default"], [[spelled(one, context), *meaning(one, context)] for one in common().values()]
    )


def paragraphs(said: str) -> Iterator[str]:
    for part in inspect.cleandoc(said).split("\n\n"):
        if part.startswith("\b\n"):
            yield f"```text\n{part[2:]}\n```"
        else:
            yield textwrap.fill(prose(" ".join(part.split())), 120, break_long_words=False, break_on_hyphens=False)


def described(path: tree.Path) -> Iterator[str]:
    """The reference of a command: its call, its meaning, its options, an example."""
    command, context = tree.found(path), context_of(path)
    yield f"#### {' '.join(('rqttl', *path))}"
    yield f"```text\n{' '.join([context.command_path, *command.collect_usage_pieces(context)])}\n```"
    yield from paragraphs(command.help or "")
    of_queues = {flag(name) for name in OPTIONS}
    if path == ("queue", "declare") or not of_queues <= tree.flags(path):
        of_queues = set()
    own = [one for one in tree.options(path) if not is_common(one) and not of_queues & set(one.opts)]
    rows = [[spelled(one, context), *meaning(one, context)] for one in own]
    if of_queues:
        rows.insert(0, ["options of a queue", "As of `rqttl queue declare`.", ""])
    if rows:
        yield table(["option", "meaning", "default"], rows)
    shared = [
        f"`{name}`" for name in COMMON[:-1] if any(name in one.opts and is_common(one) for one in tree.options(path))
    ]
    yield f"Also {', '.join(shared)}."
    yield f"```sh\n{tree.example(path)}\n```"


def commands_reference() -> str:
    parts: list[str] = []
    for title, names in SECTIONS.items():
        parts.append(f"### {title}")
        for name in names:
            for path in tree.walk(tree.found((name,)), name):
                parts += described(path) if path in tree.LEAVES else []
    return "\n" + "\n\n".join(parts) + "\n"
