"""Brokers for the options of a job, and retries of their calls.

Only this module of the data source makes clients of the core. Bulk reads have their own connections (`bulk_reader`).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

import redis
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ConnectionError,
    RedisError,
    ResponseError,
    TimeoutError,
)

from rqttl import Broker
from rqttl.errors import OutcomeUnknown
from spark_connectors.errors import OutOfMemory, Unreachable
from spark_connectors.options.options import Options
from spark_connectors.redis.connect import as_source_error, connect, retry_pauses

T = TypeVar("T")


def open_broker(options: Options) -> Broker:
    """Open a broker for one task, which closes it. The broker connects at its first call.

    Each new connection reads the password in this process.
    """
    pool = redis.ConnectionPool(connection_class=lambda **_: connect(options))
    return Broker(redis.Redis(connection_pool=pool), options.text("namespace"))


def with_retries(options: Options, call: Callable[[], T], *, repeatable: bool = True) -> T:
    """Make a call, and repeat it while Redis does not answer, up to `connectRetries` times.

    A call that is not `repeatable` is repeated only if Redis certainly did not run it. Refusals of Redis raise an error
    of `errors`: `OutOfMemory`, or the result of `as_source_error`.
    """
    for pause in (*retry_pauses(options), None):
        try:
            return call()
        except OutcomeUnknown as error:
            if not repeatable or pause is None:
                raise Unreachable(f"url: {options.address}: {error}") from None
        except (ConnectionError, TimeoutError, BusyLoadingError, OSError) as error:
            if pause is None or isinstance(error, AuthenticationError):
                raise as_source_error(error, options) from None
        except ResponseError as error:
            if "OOM " in str(error) or "used memory > 'maxmemory'" in str(error):
                raise OutOfMemory(f"url: {options.address} has no memory left for messages (maxmemory)") from None
            raise as_source_error(error, options) from None
        except RedisError as error:
            raise as_source_error(error, options) from None
        time.sleep(pause * random.uniform(0.5, 1))
    raise AssertionError("the last attempt returns or raises")
