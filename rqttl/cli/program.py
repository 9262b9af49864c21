"""The root command: lazy loading of the commands, and the exit code for each error."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

import click

import rqttl
from rqttl import text
from rqttl.cli import streams
from rqttl.cli.common import errors, exits, terminal
from rqttl.cli.common.logs import warnings_as_notes
from rqttl.cli.common.settings import Settings, connecting, help_alone

#: The sections of the help with their commands. The command `name` is `name` in the module `rqttl.cli.name`. A module
#: is imported when its command is needed: imports take most of the time of a short command, and of a completion.
SECTIONS = {
    "Messages": ("send", "receive", "peek", "message"),
    "Queues": ("queue", "dead", "policy", "operator-policy", "explain"),
    "Deployments": ("apply", "export", "import"),
    "Operation": ("worker", "stats", "metrics", "doctor", "reaper", "server"),
    "More": ("demo", "completion"),
}


#: The modules and names of commands that do not stand in a module of their own name.
_PLACES = {
    "operator-policy": ("policy", "operator_policy"),
    "apply": ("deployment", "apply"),
    "export": ("deployment", "export"),
    "import": ("deployment", "import_group"),
}


class _CtrlC(Exception):
    """Ctrl-C, hidden from click, which would print an empty line."""


class _ReaderGone(Exception):
    """The reader of our output has seen enough. Hidden from click, for which that is a failure."""


def _print_error(line: str, columns: int | None = None) -> None:
    """Print a line of an error, folded at words to `columns`. It may hold hostile text, or the password of a URL."""
    line = text.escape(text.without_secrets(line))
    if columns is not None:
        line = terminal.wrap_words(line, columns)
    with suppress(OSError):  # without a stderr there is still the exit code
        print(line, file=sys.stderr)  # noqa: T201  # the one place that prints errors


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
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands in their sections, with their summaries in one column."""
        width = max(map(len, self.list_commands(ctx)))
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), self._summary(ctx, name)) for name in names])

    def _summary(self, ctx: click.Context, name: str) -> str:
        command = self.get_command(ctx, name)
        return command.get_short_help_str(60) if command else ""

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any) -> NoReturn:  # type: ignore[override]  # click's returns without standalone_mode
        """Run, and exit. `click.testing.CliRunner` calls this, too."""
        arguments = list(sys.argv[1:] if args is None else args)
        extra["standalone_mode"] = False
        streams.prepare()
        try:
            result = super().main(arguments, prog_name or "rqttl", **extra)
            sys.stdout.flush()
        except (_ReaderGone, BrokenPipeError):
            streams.drop(sys.stdout)
            sys.exit(exits.DONE)
        except _CtrlC:
            _print_error("rqttl: interrupted")
            sys.exit(exits.INTERRUPTED)
        except Exception as error:  # noqa: BLE001  # explained to people, with an exit code
            code, line = errors.explain(error)
            streams.flush_or_drop(sys.stdout)
            if code == exits.BUG and "--debug" in arguments:
                for trace_line in traceback.format_exc().rstrip("\n").split("\n"):
                    _print_error(trace_line)
            if line:
                _print_error(f"rqttl: {line}", terminal.columns_of(sys.stderr))
            sys.exit(code)
        finally:
            streams.flush_or_drop(sys.stdout)
            streams.flush_or_drop(sys.stderr)
        sys.exit(result if isinstance(result, int) else exits.DONE)

    def invoke(self, ctx: click.Context) -> Any:
        """Carry out the command."""
        try:
            with warnings_as_notes():
                return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise _CtrlC from error
        except BrokenPipeError as error:
            raise _ReaderGone from error


@click.group(
    "rqttl",
    cls=Program,
    invoke_without_command=True,
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
    help_alone(context)
