"""The root command: lazy loading of the commands, standard streams, the exit code for each error; and completion."""

from __future__ import annotations

import ast
import inspect
import io
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from textwrap import dedent
from typing import Any, NoReturn, TextIO

import click
from click.shell_completion import get_completion_class

import rqttl
from rqttl import text
from rqttl.cli.common import errors, output, params, running
from rqttl.cli.common.settings import Settings, connecting

#: The sections of the help with their commands. The command `name` is `name` in the module `rqttl.cli.name`. A module
#: is imported when its command is needed: imports take most of the time of a short command, and of a completion.
SECTIONS = {
    "Messages": ("send", "receive", "peek", "message", "cancel", "reschedule"),
    "Queues": ("queue", "topic", "dead", "policy", "operator-policy", "explain"),
    "Deployments": ("apply", "export", "import"),
    "Operation": ("worker", "stats", "dashboard", "metrics", "doctor", "acl", "reaper", "server"),
    "More": ("demo", "completion"),
}

#: The modules and names of commands that do not stand in a module of their own name.
_PLACES = {
    "peek": ("message", "peek"),
    **{name: ("scheduled", name) for name in ("cancel", "reschedule")},
    "operator-policy": ("policy", "operator_policy"),
    "explain": ("policy", "explain"),
    "apply": ("deployment", "apply"),
    "export": ("deployment", "export"),
    "import": ("deployment", "import_group"),
    **{name: ("services", name) for name in ("metrics", "reaper", "server", "demo")},
    "completion": ("program", "completion"),
}


def _print_error(line: str, prefix: str = "rqttl: ") -> None:
    """Print a line of an error. It may hold hostile text, or the password of a URL."""
    output.note(text.escape(text.without_secrets(line)), "error", prefix)


def _restore_help(command: click.Command) -> None:
    """Read the help of a command, and of those in it, from the source: `python -OO` leaves out docstrings."""
    if sys.flags.optimize > 1 and command.callback:
        (function,) = ast.parse(dedent(inspect.getsource(inspect.unwrap(command.callback)))).body
        command.help = command.help or ast.get_docstring(function)  # type: ignore[arg-type]  # it is a function
        for inner in getattr(command, "commands", {}).values():
            _restore_help(inner)


class Program(click.Group):
    """A group whose errors are one line on stderr, and an exit code for the kind of error."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click gives it
        """The names of all commands, in the order of the help."""
        return [name for names in SECTIONS.values() for name in names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command, imported when it is needed."""
        if cmd_name not in self.list_commands(ctx):
            return None
        module, name = _PLACES.get(cmd_name, (cmd_name, cmd_name))
        command: click.Command = getattr(import_module(f"rqttl.cli.{module}"), name)
        _restore_help(command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands in their sections, with their summaries in one column."""
        width = max(map(len, self.list_commands(ctx)))
        for title, names in SECTIONS.items():
            commands = [(name, self.get_command(ctx, name)) for name in names]
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), one.get_short_help_str(60)) for name, one in commands if one])

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any) -> NoReturn:  # type: ignore[override]  # click's returns without standalone_mode
        """Run, and exit. `click.testing.CliRunner` calls this, too."""
        arguments = list(sys.argv[1:] if args is None else args)
        extra["standalone_mode"] = False
        output.LOGS_JSON.set("--log-format=json" in " ".join(arguments).replace("--log-format ", "--log-format="))
        _prepare_streams()
        _restore_help(self)
        try:
            result = super().main(arguments, prog_name or "rqttl", **extra)
            sys.stdout.flush()
        except BrokenPipeError:
            _drop(sys.stdout)
            sys.exit(errors.DONE)
        except Exception as error:  # noqa: BLE001  # explained to people, with an exit code
            sys.exit(_fail(error, debug="--debug" in arguments))
        finally:
            _flush_or_drop(sys.stdout)
            _flush_or_drop(sys.stderr)
        sys.exit(result if isinstance(result, int) else errors.DONE)

    def invoke(self, ctx: click.Context) -> Any:
        """Carry out the command. A signal or a reader that has gone is no failure, as it would be for click."""
        try:
            with running.noting(running.is_warning_of_flow):
                return super().invoke(ctx)
        except running.SignalReceived as received:
            raise errors.Refused(str(received), exit_code=128 + received.number) from received
        except KeyboardInterrupt as error:
            raise errors.Refused("interrupted", exit_code=errors.INTERRUPTED) from error
        except BrokenPipeError as error:
            _drop(sys.stdout)
            raise click.exceptions.Exit(errors.DONE) from error


def _fail(error: Exception, *, debug: bool) -> int:
    """Print the line of an error. Returns the exit code."""
    if type(error).__name__ == "NoArgsIsHelpError":  # a group without a command; click has the class since 8.2
        click.echo(str(error))
        return errors.DONE
    code, line = errors.explain(error)
    _flush_or_drop(sys.stdout)
    if code == errors.BUG and debug:
        for trace_line in traceback.format_exc().rstrip("\n").split("\n"):
            _print_error(trace_line, "")
    if line:
        _print_error(line)
    return code


def _prepare_streams() -> None:
    """Open each stream that the caller closed (`>&-`), before a socket takes its number.

    A closed stdout stays unwritable: a command that has an answer fails as on a full disk, and `receive` acks nothing.
    A character that the encoding of stdout lacks is escaped, as on stderr.
    """
    if sys.stdin is None:
        sys.stdin = Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115  # until the process ends
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w", encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  # as above
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _flush_or_drop(stream: TextIO) -> None:
    """Write the buffer of a stream, or drop it if that fails.

    The interpreter flushes both streams once more at its end. If that fails, it exits with code 120 and ours is lost.
    """
    try:
        stream.flush()
    except OSError:
        _drop(stream)


def _drop(stream: TextIO) -> None:
    """Send the buffer of a stream, and all later output, to the null device."""
    with suppress(OSError):  # a stream without a file, which the interpreter does not flush
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


@click.group(
    "rqttl",
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
    epilog="\b\nExample: rqttl send orders hello --ttl 30s",
)
@connecting
@click.version_option(rqttl.__version__, prog_name="rqttl", message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context, settings: Settings) -> None:
    """Queues on Redis whose messages live and die by a TTL.

    The Redis in use is that of --url, else that of $RQTTL_URL, else an
    embedded server that all processes of the user share.
    """
    context.obj = settings


@click.command(epilog="\b\nExample: rqttl completion bash")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), metavar="SHELL")
@params.debug_flag
def completion(shell: str) -> None:
    """Print the completion script for a SHELL: bash, zsh or fish.

    The shell then completes commands, options, their values, and the names
    of queues. The names come from the Redis in use, if it answers within a
    second.

    \b
    bash: put this line into ~/.bashrc
      eval "$(rqttl completion bash)"
    zsh: put this line into ~/.zshrc, after compinit
      eval "$(rqttl completion zsh)"
    fish: run this once
      rqttl completion fish > ~/.config/fish/completions/rqttl.fish
    """  # noqa: D301  # \\b is for click: the lines below stay lines
    completer = get_completion_class(shell)
    assert completer is not None  # noqa: S101  # click has all three
    output.answer(completer(cli, {}, "rqttl", "_RQTTL_COMPLETE").source().rstrip("\n"))
