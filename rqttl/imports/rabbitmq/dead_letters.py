"""Dead-letter exchanges and routing keys of RabbitMQ as target queues."""

from __future__ import annotations

from collections.abc import Mapping

from rqttl.imports.names import NameTable
from rqttl.imports.rabbitmq.definitions import VHost
from rqttl.imports.rabbitmq.routing import Router, Unresolved
from rqttl.imports.rabbitmq.settings import SourceSetting
from rqttl.imports.report import Collector
from rqttl.imports.source import read_text

_EXCHANGE, _KEY = "dead-letter-exchange", "dead-letter-routing-key"
_NO_TARGET = "no dead_letter comes of it: set one yourself"


class DeadLetters:
    """Finds target queues in one vhost."""

    def __init__(self, vhost: VHost, names: NameTable) -> None:
        self._router = Router(vhost)
        self._names = names

    def of_queue(
        self, queue: str, own: Mapping[str, SourceSetting], policy: Mapping[str, SourceSetting], out: Collector
    ) -> None:
        """Take the target of a queue. An argument comes before the key of `policy`, the one that RabbitMQ applies."""
        if _EXCHANGE not in own and _KEY not in own:
            return
        exchange, key = own.get(_EXCHANGE, policy.get(_EXCHANGE)), own.get(_KEY, policy.get(_KEY))
        if exchange is None:
            out.left_out(own[_KEY].name, own[_KEY].value, "it does nothing without a dead-letter exchange")
            return
        name = read_text(exchange.value, exchange.place)
        try:
            if key is None:
                target = self._router.target_of_queue(name, queue)
            else:
                target = self._router.target(name, read_text(key.value, key.place))
        except Unresolved as error:
            self._note(own, out, f"{error}; {_NO_TARGET}")
            return
        because = "the queue that gets them" if key else "the queue that gets them, by the routing keys in the file"
        self._take(target, queue, own, out, because)

    def of_policy(self, definition: Mapping[str, SourceSetting], out: Collector) -> None:
        """Take the target of a policy, if it is the same for every queue."""
        exchange, key = definition.get(_EXCHANGE), definition.get(_KEY)
        if exchange is None:
            if key is not None:
                out.left_out(key.name, key.value, "a policy has no exchange for it: set dead_letter instead")
            return
        name = read_text(exchange.value, exchange.place)
        try:
            target = self._router.target(name, None if key is None else read_text(key.value, key.place))
        except Unresolved as error:
            self._note(definition, out, f"{error}; {_NO_TARGET}")
            return
        self._take(target, "", definition, out, "the queue that gets them")

    def _take(self, target: str, queue: str, own: Mapping[str, SourceSetting], out: Collector, because: str) -> None:
        valid = self._names.names.get(target)
        if valid is None:
            reason = self._names.refused.get(target, "it is no queue of the import")
            self._note(own, out, f"they go to {target!r}: {reason}; {_NO_TARGET}")
            return
        if not queue and valid == "none":
            self._note(own, out, "in a policy the target 'none' means that there is none: rename the queue")
            return
        first, *others = [own[name] for name in (_EXCHANGE, _KEY) if name in own]
        if target == queue:
            because = "it gets its own rejected messages back; RabbitMQ drops the others, because they go in a circle"
            taken = out.take("dead_letter_rejected", valid, first.name, first.value, because=because)
        else:
            taken = out.take("dead_letter", valid, first.name, first.value, because=because)
        for setting in others if taken else ():
            out.translated(setting.name, setting.value, f"part of the target {valid!r}")

    @staticmethod
    def _note(own: Mapping[str, SourceSetting], out: Collector, text: str) -> None:
        for name in (_EXCHANGE, _KEY):
            if name in own:
                out.left_out(own[name].name, own[name].value, text)
