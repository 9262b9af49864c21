"""Results of tasks: texts by id, each in a key of its own that Redis removes after a time.

Each lies in a slot of its own, so any number of them spreads over a cluster, and one takes one round trip.
"""

from __future__ import annotations

import logging
import re

from rqttl.broker import Broker
from rqttl.errors import RqttlError
from rqttl.flows.steps import execute
from rqttl.outages import TEMPORARY
from rqttl.protocol import replies
from rqttl.store.driver import driver_of

logger = logging.getLogger("rqttl.results")

_ID = re.compile(r"[\w-]{1,64}", re.ASCII)


def put(broker: Broker, id: str, text: str, ms: int, *, only_new: bool = False) -> None:
    """Keep a text for a time; if it is `only_new`, not in the place of another one.

    What it tells of has happened, so a failure is logged and not raised.
    """
    driver = driver_of(broker)
    try:
        driver.perform(execute(bool, "SET", driver.keyspace.result(id), text, "PX", ms, *(["NX"] if only_new else [])))
    except (*TEMPORARY, RqttlError) as error:
        logger.warning("the result of %s is not kept: %s", id, error)


def get(broker: Broker, id: str) -> bytes | None:
    """The text of an id; `None` if there is none, any more or at all."""
    driver = driver_of(broker)
    return driver.perform(execute(_found, "GET", driver.keyspace.result(id))) if _ID.fullmatch(id) else None


def _found(reply: object) -> bytes | None:
    return None if reply is None else replies.data(reply)
