"""What commands have in common: which Redis, which namespace, options that several of them take."""

from __future__ import annotations

import difflib
import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

import rqttl
from rqttl import codec, units
from rqttl.cli.common import output, text
from rqttl.cli.common.queue_names import complete_queues
from rqttl.errors import InvalidDuration, InvalidName, QueueNotFound
from rqttl.keys import check_queue_name

if TYPE_CHECKING:
    from rqttl.broker import Broker

F = TypeVar("F", bound=Callable[..., Any])


CONNECTION = (
    ("--url", "URL", "Redis to use: redis://, rediss://, unix://, embedded:///folder."),
    ("--namespace", "NAME", "What its keys begin with.  [default: rqttl]"),
)
#: `Program.main` looks for the flag among the arguments.
debug_flag = click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of a bug.")


@dataclass(frozen=True)
class Settings:
    """Which Redis, and which queues in it."""

    url: str | None = None
    namespace: str = "rqttl"

    def connect(self) -> Broker:
        """A broker; to be closed by its user. Tells which server it is on if none was named."""
        note_default_server(self.url)
        return rqttl.connect(self.url, namespace=self.namespace)

    @contextmanager
    def using(self) -> Iterator[Broker]:
        """A broker, closed at the end. Where a queue is not found, say which one with nearly the same name there is."""
        with self.connect() as broker:
            try:
                yield broker
            except QueueNotFound as error:
                from rqttl.cli.common.errors import Refused  # which reads options as this module does

                near = difflib.get_close_matches(error.queue, broker.queues(), n=1, cutoff=0.75)
                if not near:
                    raise
                raise Refused(f"queue {error.queue!r} does not exist; did you mean {near[0]}?", error.code) from error
            except Exception as error:
                from rqttl._driver import driver_of  # it takes long, and a broker has needed it
                from rqttl.cli.common import errors, redis_errors

                told = redis_errors.explain(error, driver_of(broker).store)
                if told is None:
                    raise
                raise errors.Explained(*told) from error


def note_default_server(url: str | None) -> None:
    """Tell people that the embedded server is used, and where its data is, unless they have named a server.

    `RQTTL_URL=embedded://` names it, so nothing is told then.
    """
    if url or os.environ.get("RQTTL_URL"):
        return
    from rqttl import embedded

    folder, home = str(embedded.locate(None)), os.path.expanduser("~")  # noqa: PTH111  # `Path` raises without a home
    short = home.startswith(os.sep) and folder.startswith(f"{home}{os.sep}")
    place = f"~{folder[len(home) :]}" if short else folder
    output.note(f"using the embedded server in {text.visible(place)}: no --url is given, and $RQTTL_URL is not set")


def connecting(command: F) -> F:
    """Give a command `--url`, `--namespace`, `--debug`, all also allowed before its name, and pass it `settings`."""

    @functools.wraps(command)
    def connected(context: click.Context, *args: Any, url: str | None, namespace: str | None, **options: Any) -> Any:
        settings = context.obj or Settings()
        if url is not None:
            settings = replace(settings, url=url)
        if namespace is not None:
            settings = replace(settings, namespace=namespace)
        return command(*args, settings=settings, **options)

    decorated: Any = click.pass_context(connected)
    decorated = debug_flag(decorated)
    for name, metavar, meaning in reversed(CONNECTION):
        decorated = click.option(name, metavar=metavar, help=meaning)(decorated)
    return decorated  # type: ignore[no-any-return]  # for whoever calls it, which is click, it is the same


def read_duration(context: click.Context, option: click.Parameter, value: str | None) -> timedelta | None:
    """A duration such as 30s, 5m, 1500ms. For `callback`."""
    if value is None:
        return None
    try:
        return units.as_timedelta(units.duration(value, "duration"))
    except InvalidDuration as error:
        raise click.BadParameter(str(error).removeprefix("duration: "), context, option) from None


def read_ids(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Check the id of a message, or each of several: a search for another one could find nothing. For `callback`."""
    return _each(codec.check_id, context, parameter, value)


def read_names(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Check the name of a queue, or each of several, as `read_ids` does. For `callback`."""
    return _each(check_queue_name, context, parameter, value)


def _each(check: Callable[[str], object], context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    for word in (value,) if isinstance(value, str) else value or ():
        try:
            check(word)
        except InvalidName as error:
            rule = str(error).partition(": ")[2]
            raise click.BadParameter(rule, context, parameter) from None
    return value


def help_alone(context: click.Context) -> None:
    """Show the help of a group that was called without a command."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


queue_argument = click.argument("queue", shell_complete=complete_queues)
#: For functions in a module that has a command `queue`.
queue_name_argument = click.argument("name", metavar="QUEUE", shell_complete=complete_queues)
queues_argument = click.argument("queues", metavar="QUEUE...", nargs=-1, required=True, shell_complete=complete_queues)
#: None means all of them.
any_queues_argument = click.argument("queues", metavar="[QUEUE]...", nargs=-1, shell_complete=complete_queues)
json_flag = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
utc_flag = click.option("--utc", is_flag=True, help="Show times exactly, not as ages.")
