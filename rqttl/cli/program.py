"""The root command: what all commands share, and what becomes of errors."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

import click

import rqttl
from rqttl.cli.common import errors, output, streams, text
from rqttl.cli.common.settings import Settings, connecting, help_alone

#: The sections of the help with their commands. `name` is `name` in the module `rqttl.cli.name`, which is imported when
#: the command is needed: starting takes most of the time of a short command, and of a completion.
SECTIONS = {
    "Messages": ("send", "receive", "peek", "message"),
    "Queues": ("queue", "dead"),
    "Operation": ("stats", "doctor", "reaper", "server"),
    "More": ("demo", "completion"),
}


class _Interrupted(Exception):
    """Ctrl-C, kept from click, which would print an empty line."""


class _ReaderGone(Exception):
    """Whoever read our output has seen enough; kept from click, for which that is a failure."""


def _tell(line: str, columns: int | None = None) -> None:
    """A line of an error, which may name what somebody else has made up, or a URL; folded at words to `columns`."""
    said = text.visible(text.without_secrets(line))
    if columns is not None:
        said = text.folded_at_words(said, columns)
    with suppress(OSError):  # where it cannot be told, there is still the exit code
        print(said, file=sys.stderr)  # noqa: T201  # this is where errors are told


class Program(click.Group):
    """A group whose errors are one line on stderr, and an exit code that says what kind of error it was."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click gives it
        """The names of all commands, in the order of the help."""
        return [name for names in SECTIONS.values() for name in names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command, imported when it is asked for."""
        if cmd_name not in self.list_commands(ctx):
            return None
        command: click.Command = getattr(import_module(f"rqttl.cli.{cmd_name}"), cmd_name)
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
        """Run, and exit. `click.testing.CliRunner` comes in here too."""
        given = list(sys.argv[1:] if args is None else args)
        extra["standalone_mode"] = False
        streams.prepare()
        if "_RQTTL_COMPLETE" in os.environ:
            import_module("rqttl.cli.completion")  # brings our way to complete for bash; the rest is click's
        try:
            result = super().main(given, prog_name or "rqttl", **extra)
            sys.stdout.flush()
        except (_ReaderGone, BrokenPipeError):
            streams.drop(sys.stdout)
            sys.exit(errors.DONE)
        except _Interrupted:
            _tell("rqttl: interrupted")
            sys.exit(errors.INTERRUPTED)
        except Exception as error:  # noqa: BLE001  # explained to people, with an exit code
            code, line = errors.explain(error)
            streams.flush_or_drop(sys.stdout)
            if code == errors.BUG and "--debug" in given:
                for told in traceback.format_exc().rstrip("\n").split("\n"):
                    _tell(told)
            if line:
                _tell(f"rqttl: {line}", output.columns_of(sys.stderr))
            sys.exit(code)
        finally:
            streams.flush_or_drop(sys.stdout)
            streams.flush_or_drop(sys.stderr)
        sys.exit(result if isinstance(result, int) else errors.DONE)

    def invoke(self, ctx: click.Context) -> Any:
        """Carry out the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise _Interrupted from error
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

    Which Redis: --url, else $RQTTL_URL, else an embedded server that all
    processes of the user share.
    """
    context.obj = settings
    help_alone(context)
