"""Brokers for the options of a job, and retries of their calls.

Only this module of the data source makes clients of the core. Bulk reads have their own connections (`bulk_reader`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import redis
from redis.exceptions import ConnectionError, ResponseError

from rqttl import Broker
from rqttl.errors import DataDamaged, InvalidInput, OutcomeUnknown
from rqttl.store.cluster import Seeds
from spark_connectors.errors import InvalidOption, OutOfMemory, RefusedByRedis, Unreachable
from spark_connectors.options.options import Options
from spark_connectors.redis import connect

T = TypeVar("T")

#: The core's own patience with Sentinel and on a cluster. `connectRetries` says how often it is tried again.
_PATIENCE = "1s"


def open_broker(options: Options) -> Broker:
    """Open a broker for one task, which closes it. Raises `Unreachable` and others after `connectRetries` attempts.

    To one server or service the first connection opens here, because the core has attempts of its own. Each new
    connection reads the password in this process.
    """
    address, namespace = options.address, options.text("namespace")
    if address.is_cluster:

        def of_node(*, host: str, port: int, socket_timeout: float, **_: object) -> Any:
            return connect.connect(options, place=(host, port), timeout=socket_timeout)

        (host, port), timeout = address.places[0], options.number("socketTimeout") / 1000
        pool = redis.ConnectionPool(of_node, host=host, port=port, socket_timeout=timeout)
        return Broker(Seeds(pool, address.places), namespace, patience=_PATIENCE)
    service = connect.service_of(options)
    first = connect.connect(options, service=service)
    connect.with_retries(options, first.connect, first.disconnect)
    opened = [first]
    pool = redis.ConnectionPool(lambda **_: opened.pop() if opened else connect.connect(options, service=service))
    if service is not None:
        # the broker knows a service by it, and closes it
        pool.connection_kwargs["service"] = service
    patience = _PATIENCE if service else None
    return Broker(redis.Redis(connection_pool=pool), namespace, patience=patience, slotted=address.slotted)


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
        except InvalidInput as error:
            # the topology is another one than the address says
            raise (InvalidOption(str(error)) if str(error).startswith("url: ") else error) from None
        except DataDamaged as error:
            raise RefusedByRedis(f"url: {options.address}: {error}") from None
        except ResponseError as error:
            if "OOM " in str(error) or "used memory > 'maxmemory'" in str(error):
                raise OutOfMemory(f"url: {options.address} has no memory left for messages (maxmemory)") from None
            raise

    return connect.with_retries(options, attempt, command=command)
