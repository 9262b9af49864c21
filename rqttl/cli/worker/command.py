"""`rqttl worker QUEUE...`: a worker in a process of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import click

from rqttl.cli.common.logs import logging_to_stderr
from rqttl.cli.common.params import SectionedCommand, any_queues_argument
from rqttl.cli.common.settings import Settings, connecting
from rqttl.cli.worker.flags import SECTIONS, read_queues, worker_flags
from rqttl.cli.worker.ls import list_workers


class WorkerGroup(SectionedCommand, click.Group):
    """A command whose first argument may be the name of an inner command: `rqttl worker ls`."""

    allow_interspersed_args = True
    sections = SECTIONS

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Leave the arguments of an inner command to it."""
        if args and args[0] in self.commands:
            ctx.invoked_subcommand, ctx.args = args[0], args[1:]
            return ctx.args
        return click.Command.parse_args(self, ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections, then the inner commands."""
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)

    def invoke(self, ctx: click.Context) -> Any:
        """Carry out the command, or the inner one."""
        name = ctx.invoked_subcommand
        if name is None:
            return click.Command.invoke(self, ctx)
        inner = self.commands[name]
        with inner.make_context(name, list(ctx.args), parent=ctx) as context:
            return inner.invoke(context)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Show the usage of the command itself."""
        return click.Command.collect_usage_pieces(self, ctx)


def _check_complete(queues: Collection[str], *handlers: object) -> None:
    """Raise `click.UsageError` with the usage if the words name no queue or no handler."""
    missing = [] if queues else ["a QUEUE (or --queues-file)"]
    missing += [] if any(handlers) else ["--call or --exec"]
    if missing:
        usage = click.get_current_context().get_usage().partition(": ")[2]
        raise click.UsageError(f"usage: {usage}; missing: {', and '.join(missing)}")


@click.group(
    cls=WorkerGroup,
    no_args_is_help=False,
    short_help="Consume queues with a function or a command.",
    epilog="\b\nExample: rqttl worker orders=3 mails=1 --call shop.jobs:handle --processes 4",
)
@any_queues_argument
@worker_flags
@connecting
def worker(
    queues: tuple[str, ...],
    queues_file: Path | None,
    execute: str | None,
    log_format: str,
    verbose: bool,
    settings: Settings,
    **options: Any,
) -> None:
    """Consume queues: call a function, or run a command, for each message.

    A QUEUE is a name or a pattern (with *, ? and [...]), in strict order;
    or all have a weight, such as orders=3, and share the worker by it. The
    worker holds the leases; the handlers run in child processes.

    A function gets the decoded value. A message is done when the function
    returns; rqttl.Reject, rqttl.Retry and rqttl.Release decide otherwise;
    any other exception is a failure, and the message comes again. A class is
    made once in each child, and its close() is called at the end.

    A command gets the body on stdin and RQTTL_ID, RQTTL_QUEUE,
    RQTTL_DELIVERY and RQTTL_HEADER_... in the environment. Exit code 0:
    done; 65: reject; 75: try again later; any other one: a failure, described
    by the end of stderr.

    SIGTERM, SIGHUP or Ctrl-C ends a worker: it gives back messages that no
    handler has begun, and waits for the others for --grace. A second signal
    ends it at once. SIGTSTP ends only the fetching.

    A command that has to end, at its --timeout or with the worker, gets
    SIGTERM, and SIGKILL 5 s later (or after its lease, if that is shorter).
    A third signal to the worker kills it at once.
    """
    from rqttl.worker.worker import Worker

    if os.getcwd() not in sys.path:  # noqa: PTH109  # as in `python -m`
        sys.path.insert(0, os.getcwd())  # noqa: PTH109  # as above
    weights = read_queues(queues, queues_file)
    _check_complete(weights, options["call"], execute)
    with settings.using() as broker, logging_to_stderr(log_format, verbose=verbose):
        Worker(broker, weights, exec=execute, **options).run()


worker.add_command(list_workers)
