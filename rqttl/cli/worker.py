"""`rqttl worker QUEUE...`: a worker in a process of its own; `rqttl worker ls`: the workers that live."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

import click

from rqttl import text
from rqttl.checks import MOST_WEIGHT
from rqttl.cli.common import output, params, running
from rqttl.cli.common.settings import Settings, connecting
from rqttl.types import WorkerInfo
from rqttl.units import as_size
from rqttl.worker.settings import MOST_PROCESSES, MOST_SLOTS

#: A decorator that gives a command an option.
_Option = Callable[[Any], Any]


def _number(flag: str, most: int, meaning: str, least: int = 1) -> _Option:
    kind = click.IntRange(least, most)
    return click.option(flag, type=kind, metavar="N", help=meaning)


def _time(flag: str, meaning: str, least: int = 1) -> _Option:
    return click.option(flag, type=params.duration(least), metavar="TIME", help=meaning)


_worker_flags = params.with_options(
    click.option(
        "--call",
        metavar="MODULE:NAME",
        help="Function to call with each message; MODULE: takes one of its HANDLERS, by the header type.",
    ),
    click.option("--exec", "execute", metavar="COMMAND", help="Command to run for each message, without a shell."),
    click.option("--delivery", is_flag=True, help="Call the function with the delivery, not with the value."),
    _number("--processes", MOST_PROCESSES, "Child processes; 0 = run handlers here.  [default: one a core]", 0),
    _number("--threads", MOST_SLOTS, "Messages that a process handles at a time.  [default: 1]"),
    _number("--asyncio", MOST_SLOTS, "Coroutines of a process.  [default for coroutine functions: 100]"),
    _time("--lease", "Lease of each delivery, instead of the queue's own."),
    _time("--timeout", "End a handler after this time; its message fails."),
    _number("--max-messages", 2**53, "Replace a child after so many messages."),
    click.option("--max-memory", metavar="SIZE", help="Replace a child above so much memory, such as 500M."),
    click.option(
        "--grace",
        type=params.DURATION,
        metavar="TIME",
        default="25s",
        show_default=True,
        help="Time that handlers get to end when the worker stops.",
    ),
    _time("--retry-delay", "Delay after a failure, doubled by each one.  [default: 1s]", 0),
    _time("--retry-max", "Longest delay after a failure.  [default: 10m, or a longer --retry-delay]", 0),
    click.option(
        "--retry-jitter",
        type=click.FloatRange(0, 1),
        default=0.2,
        show_default=True,
        metavar="X",
        help="Random part of the delay.",
    ),
    click.option("--burst", is_flag=True, help="End when no message is ready or at work."),
    _time("--idle-exit", "End when no message has come for this time."),
    click.option("--reaper", is_flag=True, help="Run a reaper as well."),
    click.option("--health", metavar="HOST:PORT", help="Serve /livez, /readyz and /metrics here."),
)


def _read_queues(words: Sequence[str]) -> dict[str, int | None]:
    """Read queues with their weights, such as `orders=3`. Without weights the order counts. No name has a =."""
    queues: dict[str, int | None] = {}
    for word in words:
        name, equals, number = word.partition("=")
        weight = int(number) if re.fullmatch("[1-9][0-9]{0,6}", number) else None
        if equals and (weight is None or weight > MOST_WEIGHT):
            rule = f"expected a weight from 1 to {MOST_WEIGHT} after ="
            raise click.BadParameter(f"{rule}, got {text.format_value(word)}", param_hint="QUEUE")
        if queues.setdefault(name, weight) != weight:
            raise click.BadParameter(f"{name} has two weights", param_hint="QUEUE")
    return queues


class WorkerGroup(params.SectionedCommand, click.Group):
    """A command whose first argument may be the name of an inner command: `rqttl worker ls`."""

    allow_interspersed_args = True
    sections: Mapping[str, Sequence[str]] = {
        "What to run": ("--call", "--exec", "--delivery"),
        "How many": ("--processes", "--threads", "--asyncio"),
        "Time and retries": ("--lease", "--timeout", "--retry-delay", "--retry-max", "--retry-jitter"),
        "When to stop": ("--burst", "--idle-exit", "--grace", "--max-messages", "--max-memory"),
        "Observe": ("--health", "--log-format", "--verbose", "--reaper"),
    }

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


@click.group(
    cls=WorkerGroup,
    no_args_is_help=False,
    short_help="Consume queues with a function or a command.",
    epilog="\b\nExample: rqttl worker orders=3 mails=1 --call shop.jobs:handle --processes 4",
)
@params.any_queues_argument
@_worker_flags
@running.logged
@connecting
def worker(queues: tuple[str, ...], execute: str | None, settings: Settings, **options: Any) -> None:
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

    if "" not in sys.path:
        sys.path.insert(0, "")  # the working folder, as in `python -c`
    weights = _read_queues(queues)
    missing = [] if weights else ["a QUEUE"]
    missing += [] if options["call"] or execute else ["--call or --exec"]
    if missing:
        usage = click.get_current_context().get_usage().partition(": ")[2]
        raise click.UsageError(f"usage: {usage}; missing: {', and '.join(missing)}")
    with settings.using() as broker:
        Worker(broker, weights, exec=execute, **options).run()


_WORK = (">slots", ">running", ">handled", ">failed")
COLUMNS = ("role", "host", ">pid", "queues", *_WORK, ">memory", "last claim", "started")


@worker.command("ls", short_help="List the workers and reapers that live.", epilog="\b\nExample: rqttl worker ls")
@params.utc_flag
@params.json_flag
@connecting
def list_workers(utc: bool, as_json: bool, settings: Settings) -> None:
    """List workers and reapers seen in the last 30 s.

    Memory is that of a worker and its children. The command only reads.
    """
    with settings.looking() as broker:
        workers = broker.workers()
    now = datetime.now(timezone.utc)
    if as_json:
        running = [[{"queue": queue, "id": id, "started": at} for queue, id, at in one.running] for one in workers]
        output.answer_json([asdict(one) | {"running": calls} for one, calls in zip(workers, running, strict=True)])
    elif not workers:
        output.note("no worker and no reaper runs")
    else:
        output.print_table(COLUMNS, [_row(worker, now, utc=utc) for worker in workers])


def _row(worker: WorkerInfo, now: datetime, *, utc: bool) -> list[str]:
    is_reaper = worker.role == "reaper"
    place = text.escape(worker.host), str(worker.pid), text.escape(" ".join(worker.queues), 40)
    counts = (worker.slots, len(worker.running), worker.handled, worker.failed)
    work = ["" if is_reaper else text.format_count(n) for n in counts]
    claim = "" if is_reaper else text.format_time(worker.last_claim, now, utc=utc)
    started = text.format_time(worker.started, now, utc=utc)
    return [text.escape(worker.role), *place, *work, as_size(worker.rss), claim, started]
