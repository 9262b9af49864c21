"""Settings of every command: the Redis to use, and the namespace in it."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

import rqttl
from rqttl import text
from rqttl.cli.common import output
from rqttl.cli.common.errors import Refused, explain_redis
from rqttl.cli.common.params import F, debug_flag, with_options
from rqttl.errors import QueueForwards, QueueNotFound

if TYPE_CHECKING:
    from rqttl.broker import Broker

namespace_option = click.option("--namespace", metavar="NAME", help="Prefix of all keys in Redis.  [default: rqttl]")
_OPTIONS = (
    click.option(
        "--url",
        metavar="URL",
        help="Redis to use: redis://, rediss://, unix://, redis+sentinel://HOST,HOST/SERVICE, "
        "redis+cluster://HOST,HOST, embedded:///folder.",
    ),
    namespace_option,
    debug_flag,
    click.pass_context,
)


#: The patience of a command that only looks, on a cluster: two time-outs.
GLANCE = "500ms"


@dataclass(frozen=True)
class Settings:
    """The URL of Redis, and the prefix of the keys."""

    url: str | None = None
    namespace: str = "rqttl"

    def connect(self, patience: timedelta | None = None, glance: str | None = None) -> Broker:
        """A broker, which its user closes. A note names the server if the user named none. See `using`."""
        broker = rqttl.connect(named_server(self.url), namespace=self.namespace, patience=patience or None)
        from rqttl.broker import fail_fast  # slow to load

        return fail_fast(broker, short, looks=bool(glance)) if (short := glance or patience) else broker

    def looking(self) -> AbstractContextManager[Broker]:
        """See `using`. A command that only looks does not wait for a node of a cluster that is away."""
        return self.using(glance=GLANCE)

    @contextmanager
    def using(self, patience: timedelta | None = None, glance: str | None = None) -> Iterator[Broker]:
        """A broker, closed at the end. An error for a missing queue names an existing one with nearly the same name.

        Calls are made again for `patience`, for `glance` on a cluster, or as long as usual.
        """
        with self.connect(patience, glance) as broker:
            try:
                yield broker
            except QueueForwards:
                raise  # the queue exists
            except QueueNotFound as error:
                from redis.exceptions import RedisError  # slow to load, as the next one

                from rqttl.broker import fail_fast

                error.namespace, near = self.namespace, None
                with suppress(RedisError):  # it is only a hint, and no node is worth a wait for it
                    near = text.nearest(error.queue, fail_fast(broker).queues(), 0.75)
                if not near:
                    raise
                hint = f"queue {error.queue!r} does not exist{error.place}; did you mean {near}?"
                raise Refused(hint, error.code) from error
            except Exception as error:
                explanation = explain_redis(error, broker)
                if explanation is None:
                    raise
                raise Refused(explanation[1], exit_code=explanation[0]) from error


def named_server(url: str | None) -> str:
    """The URL to use. A note names the folder of the embedded server if the user named no server.

    `RQTTL_URL=embedded://` names it, so there is no note then.
    """
    given = url or os.environ.get("RQTTL_URL")
    if given:
        return given
    from rqttl.embedded.folder import SCHEME, locate

    folder = text.escape(str(locate(None)))
    output.note(f"using the embedded server in {folder}: no --url is given, and $RQTTL_URL is not set")
    return SCHEME


def connecting(command: F) -> F:
    """Give a command `--url`, `--namespace`, `--debug`, all also allowed before its name, and pass it `settings`."""

    @functools.wraps(command)
    def connected(context: click.Context, *args: Any, url: str | None, namespace: str | None, **options: Any) -> Any:
        settings = context.obj or Settings()
        if url is not None:
            settings = replace(settings, url=url)
        if namespace is not None:
            settings = replace(settings, namespace=namespace)
        own = settings.namespace != Settings.namespace
        output.NAMESPACE.set(f"--namespace {settings.namespace} " if own else "")
        return command(*args, settings=settings, **options)

    return with_options(*_OPTIONS)(connected)  # type: ignore[return-value]  # for click, the caller, it is the same
