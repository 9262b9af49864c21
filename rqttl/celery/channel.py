"""Channels of kombu: queues, bindings, publishing, and the deliveries that threads fetch."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

from amqp.protocol import queue_declare_ok_t
from kombu.exceptions import ChannelError
from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.utils.uuid import uuid

from rqttl.celery.translation import LEVELS, decode, encode, escape, options_of, parts_of, rank
from rqttl.checks import BATCH, choice
from rqttl.consuming.handling import log_unsettled
from rqttl.delivery import LEFT, Delivery
from rqttl.errors import QueueInUse, QueueMismatch, QueueNotFound, RqttlError
from rqttl.flows import routes
from rqttl.flows.routes import Route
from rqttl.flows.steps import Recent
from rqttl.outages import TEMPORARY

logger = logging.getLogger("rqttl.celery")

#: The seconds for which matches of a direct exchange are remembered.
REMEMBERED = 5.0
_warn_once = lru_cache(logger.warning)


class Pump(threading.Thread):
    """A thread that fetches for a channel until its consumer stops. Leases are renewed until `close`."""

    def __init__(self, channel: Channel, queues: list[str], prefetch: int) -> None:
        super().__init__(name="rqttl-celery", daemon=True)
        self.channel, self.queues = channel, queues
        weights = None if rank(queues[0]) < len(LEVELS) else dict.fromkeys(queues, 1)
        consumer = channel.connection.broker.consume(queues, weights=weights, prefetch=prefetch, lease=channel.lease)
        self.consumer = consumer.__enter__()

    def run(self) -> None:
        """Hand over what comes."""
        try:
            for delivery in self.consumer:
                self.channel.arrived(delivery, self)
        except Exception as error:  # noqa: BLE001  # the thread that hands out raises it
            self.channel.failures.append(error)
            self.channel.wake()

    def stop(self) -> None:
        """Fetch no more."""
        self.consumer.stop()
        self.join()

    def close(self) -> None:
        """Send all acks."""
        try:
            self.consumer.close()
        except (*TEMPORARY, RqttlError) as error:
            logger.warning("%s: acks may be lost, then tasks come again: %s", self.consumer.queue, error)


class Channel(virtual.Channel):
    """A channel: its queues are queues of rqttl, and its bindings are routes in Redis. See `Transport`."""

    body_encoding = None

    def __init__(self, connection: Any, **arguments: Any) -> None:
        super().__init__(connection, **arguments)
        options = connection.client.transport_options
        seconds = options.get("visibility_timeout")
        self.lease = options.get("lease") or (seconds and f"{int(seconds * 1000)}ms")
        self._usual, self.wake = options.get("queue_options") or {}, connection.wake
        self._on_mismatch = choice(options.get("on_mismatch", "keep"), "on_mismatch", ("keep", "update", "raise"))
        self.forget()

    def forget(self) -> None:
        """Have no consumers and no messages."""
        self._subscriptions: dict[str, tuple[bool, Callable[[Any], object]]] = {}  # by queues in rqttl
        self._deliveries: dict[int, tuple[Delivery, Pump | None]] = {}
        self._ready: deque[int] = deque()  # what was not handed out
        self._pumps: list[Pump] = []
        self._pump: Pump | None = None  # the one that fetches
        self._stale = self._is_away = False
        self.failures: list[Exception] = []
        self._consumers.clear()
        if self._qos is not None:
            self._qos._delivered.clear()  # noqa: SLF001  # of its base class

    def prepare_queue_arguments(self, arguments: Mapping[str, Any], **options: Any) -> Any:
        return to_rabbitmq_queue_arguments(arguments or {}, **options)

    def parts(self, queue: str) -> list[str]:
        """The queues in rqttl of a queue, in the order in which they are consumed."""
        known: dict[str, list[str]] = self.connection.parts
        if queue not in known:
            several = parts_of(queue, prioritized=True)
            known[queue] = several if self.connection.broker.options(several[:1]) else several[-1:]
        return known[queue]

    def queue_declare(self, queue: str | None = None, passive: bool = False, **declared: Any) -> Any:
        queue = queue or f"amq.gen-{uuid()}"
        if passive:
            if not self.connection.broker.options([escape(queue)]):
                raise ChannelError(f"NOT_FOUND - no queue {queue!r}", (50, 10), "Channel.queue_declare", "404")
            return queue_declare_ok_t(queue, self._size(queue), 0)
        arguments = declared.get("arguments") or {}
        is_temporary = declared.get("auto_delete") or declared.get("exclusive")
        lasting = {"dead_letter": f"{escape(queue)}/dead", "max_deliveries": 20, **self._usual}
        options = options_of(queue, arguments, {"expires": "60s"} if is_temporary else lasting)
        self.connection.parts[queue] = parts_of(queue, prioritized=arguments.get("x-max-priority"))
        self._declare(queue, options)
        if not is_temporary:
            self.connection.declared[queue] = options
        return queue_declare_ok_t(queue, 0, 0)  # programs may lack the right to count

    def _declare(self, queue: str, options: Mapping[str, Any]) -> None:
        for name in self.parts(queue):
            try:
                self.connection.broker.declare_queue(name, **options)
            except QueueMismatch as error:
                if self._on_mismatch == "raise":
                    raise
                if self._on_mismatch == "update":
                    self.connection.broker.queue(name).update(**options)
                else:
                    _warn_once(f"{error}; its options stay, as `on_mismatch` says")

    def _size(self, queue: Any) -> int:
        return sum(stats.ready for stats in self.connection.broker.stats(self.parts(queue), sweep=False).values())

    def _purge(self, queue: str) -> int:
        return sum(self.connection.broker.queue(name).purge("all") for name in self.parts(queue))

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **_: Any) -> None:
        with suppress(QueueInUse):
            for name in self.parts(queue):
                with suppress(QueueNotFound):
                    self.connection.broker.queue(name).delete(if_unused=if_unused, if_empty=if_empty)
            bound = [route for route in self.connection.perform(routes.read) if route.queue == escape(queue)]
            self.connection.perform(routes.remove, bound)
            self.connection.declared.pop(queue, None)

    def exchange_declare(self, exchange: str | None = None, type: str | None = None, **options: Any) -> None:  # noqa: A002
        super().exchange_declare(exchange, choice(type or "direct", "exchange: type", self.exchange_types), **options)

    def exchange_delete(self, exchange: str, **_: Any) -> None:
        self.connection.perform(routes.remove, self.connection.perform(routes.read, exchange))
        self.state.exchanges.pop(exchange, None)

    def queue_bind(self, queue: str, exchange: Any = "", routing_key: Any = "", **_: Any) -> None:
        self.connection.perform(routes.add, Route(exchange or "amq.direct", escape(queue), routing_key or ""))

    def queue_unbind(self, queue: str, exchange: Any = "", routing_key: Any = "", **_: Any) -> None:
        self.connection.matches.clear()
        self.connection.perform(routes.remove, [Route(exchange or "amq.direct", escape(queue), routing_key or "")])

    def get_table(self, exchange: str) -> list[Any]:
        bind, found = self.typeof(exchange).prepare_bind, self.connection.perform(routes.read, exchange)
        return [bind(route.queue, exchange, route.key, None) for route in found]

    def _lookup(self, exchange: str, routing_key: str, default: str | None = None) -> list[str]:
        """The queues of a message. Matches of a direct exchange are remembered; others come and go with consumers."""
        matches: Recent[tuple[list[str], float]] = self.connection.matches
        queues, until = matches.get(f"{exchange}\0{routing_key}", ([], 0))
        if time.monotonic() >= until:
            queues = list(super()._lookup(exchange, routing_key, default))
            if exchange and queues and self.typeof(exchange).type == "direct":
                matches.put(f"{exchange}\0{routing_key}", (queues, time.monotonic() + REMEMBERED))
        return queues

    def basic_publish(self, message: dict[str, Any], exchange: str, routing_key: str, **_: Any) -> None:
        message["properties"]["delivery_info"].update(exchange=exchange, routing_key=routing_key)
        queues = self._lookup(exchange, routing_key)
        missing = [queue for queue in queues if not self._put(queue, message)]
        if missing and exchange:
            self.connection.matches.clear()
            self.connection.perform(routes.tidy, exchange)
            for queue in set(self._lookup(exchange, routing_key)).difference(queues):
                self._put(queue, message)
        elif missing:
            logger.warning("queue %s does not exist, so a message for it is dropped", routing_key)

    def _put(self, queue: str, message: dict[str, Any], **_: Any) -> bool:
        """Send to a queue. Return False if it is missing, unless it was declared here: an operator has deleted it."""
        priority, name, sent = message["properties"].get("priority") or 0, escape(queue), encode(message)
        if priority >= LEVELS[-1] and len(parts := self.parts(queue)) > 1:
            name = next(part for part, level in zip(parts, LEVELS, strict=False) if priority >= level)
        try:
            self.connection.broker.queue(name).enqueue(sent)
        except QueueNotFound:
            if (options := self.connection.declared.get(queue)) is None:
                return False
            self._declare(queue, options)
            self.connection.broker.queue(name).enqueue(sent)
        return True

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        self.qos.prefetch_count = prefetch_count
        self._make_room()

    def basic_consume(self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **_: Any) -> None:
        """Consume from the next turn of the event loop, or the next `drain_events`, on."""
        self._tag_to_queue[consumer_tag] = queue
        self._consumers.add(consumer_tag)
        self._subscriptions |= dict.fromkeys(self.parts(queue), (no_ack, callback))
        self._stale = True
        self.wake()

    def basic_cancel(self, consumer_tag: str) -> None:
        """Fetch no more. What was handed out keeps its lease until the channel is closed."""
        if consumer_tag in self._consumers:
            self._consumers.remove(consumer_tag)
            for name in self.parts(self._tag_to_queue.pop(consumer_tag)):
                self._subscriptions.pop(name, None)
            self._stop()
            all(self._settle(tag, Delivery.release) for tag in self._ready)  # no further try in an outage
            self._ready.clear()
            self._end_idle()

    def basic_ack(self, delivery_tag: int, multiple: bool = False) -> None:
        self._settle(delivery_tag, Delivery.ack)

    def basic_reject(self, delivery_tag: int, requeue: bool = False) -> None:
        self._settle(delivery_tag, (lambda delivery: delivery.nack(0)) if requeue else Delivery.reject)

    def _restore(self, message: Any) -> None:
        """Give back what is unsettled when the channel closes. In an outage there is no further try."""
        self._is_away = self._is_away or not self._settle(message.delivery_tag, Delivery.release)

    def basic_get(self, queue: str, no_ack: bool = False, **_: Any) -> Any:
        with suppress(QueueNotFound):
            while found := self.connection.broker.receive(self.parts(queue), lease=self.lease):
                if message := self._message(self.arrived(found[0], None), no_ack=no_ack):
                    return message
        return None

    def tick(self) -> None:
        """Fetch from the queues of now. Former pumps keep the leases of what is unsettled."""
        if self.failures:
            self._stop()
            raise self.failures.pop()
        if self._ready and self.qos.can_consume():
            self.wake()
        if not self._stale:
            return
        self._end_idle()
        names = sorted(self._subscriptions, key=rank)
        if self._pump is not None and self._pump.queues != names:
            self._stop()
        if self._pump is None and names and (room := self._make_room()) > 0:
            self._pump = Pump(self, names, room)
            self._pumps.append(self._pump)
            self._pump.start()
        self._stale = bool(names) and self._pump is None

    def _stop(self) -> None:
        if self._pump is not None:
            self._pump.stop()
        self._pump, self._stale = None, True

    def _end_idle(self) -> None:
        """End the former pumps whose messages are settled."""
        for pump in set(self._pumps).difference(self._holders(), [self._pump]):
            pump.close()
            self._pumps.remove(pump)

    def _holders(self) -> list[Pump | None]:
        """The pump of each unsettled message."""
        return [pump for _, pump in list(self._deliveries.values())]

    def _make_room(self) -> int:
        """Let the pump have as many messages as former pumps leave room for. Returns their number."""
        former = sum(pump not in (None, self._pump) for pump in self._holders())
        room = min(BATCH, (self.qos.prefetch_count or BATCH) - former)
        if self._pump is not None and room > 0:
            self._pump.consumer.prefetch = room
        else:
            self._stop()
        return room

    def arrived(self, delivery: Delivery, pump: Pump | None) -> int:
        """Take over a message, and return its tag."""
        tag: int = next(self._delivery_tags)
        self._deliveries[tag] = delivery, pump
        if pump is not None:
            self._ready.append(tag)
            self.wake()
        return tag

    def deliver(self) -> bool:
        """Hand out a message. Return False if there is none, or too many are unsettled."""
        while self._ready and self.qos.can_consume():
            tag = self._ready.popleft()
            no_ack, callback = self._subscriptions[self._deliveries[tag][0].queue]
            if message := self._message(tag, no_ack=no_ack):
                callback(message)
                return True
        return False

    def _message(self, tag: int, *, no_ack: bool) -> Any:
        """The message of kombu in a delivery. `None` for one that cannot be read, which dies."""
        delivery = self._deliveries[tag][0]
        try:
            payload = decode(delivery)
        except Exception as error:  # noqa: BLE001  # whatever a sender has made up
            reason = f"no message of kombu: {type(error).__name__}: {str(error)[:200]}"
            logger.error("queue %s: message %s is rejected: %s", delivery.queue, delivery.sequence, reason)
            self._settle(tag, lambda delivery: delivery.reject(reason))
            return None
        payload["properties"]["delivery_tag"] = tag
        message = self.Message(payload, channel=self)
        if no_ack:
            self._settle(tag, Delivery.ack)
        else:
            self.qos.append(message, tag)
        return message

    def _settle(self, tag: int, settle: Callable[[Delivery], object]) -> bool:
        """Settle a message; any thread may. Returns False if that met an outage: then it is left to its lease."""
        delivery, pump = self._deliveries.pop(tag, (None, None))
        self.qos._delivered.pop(tag, None)  # noqa: SLF001  # of its base class
        if delivery is None:
            return True  # it is settled
        try:
            settle(delivery)
        except (*TEMPORARY, RqttlError) as error:
            log_unsettled(delivery, error)
        if pump is not None:
            if pump is not self._pump:
                self._make_room()
                self._stale = True
            if self._ready or self._stale:
                self.wake()
        return delivery.settled != LEFT

    def close(self) -> None:
        """Send all acks, and give back what is unsettled."""
        if not self.closed:
            self._stop()
            super().close()
            self._deliveries.clear()
            self._end_idle()
