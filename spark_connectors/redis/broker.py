"""Brokers for the options of a job, and retries of their calls.

Only this module of the data source makes clients of the core. Bulk reads have their own connections (`bulk_reader`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import redis
from redis.exceptions import ConnectionError, ResponseError

from rqttl import Broker
from rqttl.errors import DataDamaged, OutcomeUnknown
from spark_connectors.errors import OutOfMemory, RefusedByRedis, Unreachable
from spark_connectors.options.options import Options
from spark_connectors.redis import connect

T = TypeVar("T")


def open_broker(options: Options) -> Broker:
    """Open a broker for one task, which closes it. Raises `Unreachable` and others after `connectRetries` attempts.

    The first connection opens here, because the core has attempts of its own. Each new connection reads the password in
    this process.
    """
    first = connect.connect(options)
    connect.with_retries(options, first.connect, first.disconnect)
    opened = [first]
    pool = redis.ConnectionPool(connection_class=lambda **_: opened.pop() if opened else connect.connect(options))
    return Broker(redis.Redis(connection_pool=pool), options.text("namespace"))


def with_retries(
    options: Options, call: Callable[[], T], *, repeatable: bool = True, command: connect.Command = ()
) -> T:
    """Make a call as `connect.with_retries` does. `command` describes it in errors.

    A call that is not `repeatable` is repeated only if Redis certainly did not run it. Without free memory for messages
    the call raises `OutOfMemory`, and `RefusedByRedis` where another program has written a key of the queue.
    """

    def attempt() -> T:
        try:
            return call()
        except OutcomeUnknown as error:
            if repeatable:
                raise ConnectionError(str(error)) from None
            raise Unreachable(f"url: {options.address}: {error}") from None
        except DataDamaged as error:
            raise RefusedByRedis(f"url: {options.address}: {error}") from None
        except ResponseError as error:
            if "OOM " in str(error) or "used memory > 'maxmemory'" in str(error):
                raise OutOfMemory(f"url: {options.address} has no memory left for messages (maxmemory)") from None
            raise

    return connect.with_retries(options, attempt, command=command)
