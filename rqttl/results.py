"""Results of tasks: texts by id, each in a key of its own that Redis removes after a time.

Each lies in a slot of its own, so any number of them spreads over a cluster, and one takes one round trip.
"""

import logging
from collections.abc import Iterator
from contextlib import suppress

from rqttl.broker import Broker
from rqttl.errors import QueueNotFound, RqttlError
from rqttl.flows import single
from rqttl.flows.steps import execute
from rqttl.outages import TEMPORARY
from rqttl.protocol import replies
from rqttl.store.driver import driver_of
from rqttl.types import Death

logger = logging.getLogger("rqttl.results")

#: Seconds by which the clocks of clients and of Redis may differ.
_SKEW = 60


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
    return driver.perform(execute(lambda reply: reply and replies.data(reply), "GET", driver.keyspace.result(id)))


def deaths(broker: Broker, dead_letters: set[str], id: str, since: float) -> Iterator[Death]:
    """The latest death of a message that came into one of these queues since then, in s since 1970."""
    driver = driver_of(broker)
    after = f"{int((since - _SKEW) * 1000):013d}-000000"
    for queue in dead_letters:
        with suppress(QueueNotFound):
            views, _ = driver.perform(single.search(driver.keyspace, queue, id, scheduled=0, after=after))
            yield from (view.deaths[0] for view in views if view.deaths)
