"""The asyncio classes and their sync twins. A method of an asyncio class without a docstring gets that of its twin.

So each docstring is written once. The two interfaces import nothing of each other; this module imports both.
"""

from __future__ import annotations

from collections.abc import Mapping

from rqttl import broker, consumer, delivery, queue
from rqttl.aio.broker import AsyncBroker, connect_async
from rqttl.aio.consumer import AsyncConsumer
from rqttl.aio.delivery import AsyncDelivery
from rqttl.aio.queue import AsyncQueue

#: Each asyncio class and its sync twin.
TWINS: Mapping[type, type] = {
    AsyncBroker: broker.Broker,
    AsyncQueue: queue.Queue,
    AsyncConsumer: consumer.Consumer,
    AsyncDelivery: delivery.Delivery,
}
#: Methods with another name in asyncio classes.
RENAMED = {
    "aclose": "close",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
}


def _share_docstrings() -> None:
    connect_async.__doc__ = connect_async.__doc__ or broker.connect.__doc__
    for asynchronous, sync in TWINS.items():
        for name, member in vars(asynchronous).items():
            if getattr(member, "__doc__", "") is None:
                twin = vars(sync).get(RENAMED.get(name, name))
                member.__doc__ = None if twin is None else twin.__doc__


_share_docstrings()

__all__ = ["RENAMED", "TWINS", "AsyncBroker", "AsyncConsumer", "AsyncDelivery", "AsyncQueue", "connect_async"]
