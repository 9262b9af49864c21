"""A broker for the options of a job, and calls that are made again until Redis answers.

The one place of the data source that makes clients of the core. Bulk reads have their own connections (`wire`).
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
from spark_connectors.redis.connect import connect, pauses, translated

T = TypeVar("T")


def open_broker(options: Options) -> Broker:
    """A broker for these options, with nothing connected yet. For one task; close it.

    The password is read whenever a connection is made, where this runs.
    """
    pool = redis.ConnectionPool(connection_class=lambda **_: connect(options))
    return Broker(redis.Redis(connection_pool=pool), options.text("namespace"))


def insist(options: Options, call: Callable[[], T], *, repeatable: bool = True) -> T:
    """The result of a call, which is made again while Redis does not answer, as `connectRetries` says.

    Where it is not `repeatable`, it is made again only if it did certainly not happen. What Redis refuses is raised as
    an error of `errors`: `OutOfMemory`, and whatever `connecting.translated` knows.
    """
    for pause in (*pauses(options), None):
        try:
            return call()
        except OutcomeUnknown as error:
            if not repeatable or pause is None:
                raise Unreachable(f"url: {options.address}: {error}") from None
        except (ConnectionError, TimeoutError, BusyLoadingError, OSError) as error:
            if pause is None or isinstance(error, AuthenticationError):
                raise translated(error, options) from None
        except ResponseError as error:
            if "OOM " in str(error) or "used memory > 'maxmemory'" in str(error):
                raise OutOfMemory(f"url: {options.address} has no memory left for messages (maxmemory)") from None
            raise translated(error, options) from None
        except RedisError as error:
            raise translated(error, options) from None
        time.sleep(pause * random.uniform(0.5, 1))
    raise AssertionError("the last attempt returns or raises")
