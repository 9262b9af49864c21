"""Exchanges of RabbitMQ as topics, and bindings as filters of the subject, which is the routing key, or of headers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from rqttl.errors import InvalidInput
from rqttl.filters import SUBJECT, Filter
from rqttl.imports.notes import NameTable, Notes, rows
from rqttl.imports.rabbitmq.definitions import Binding, VHost
from rqttl.imports.rabbitmq.policies import TakenPolicies
from rqttl.imports.routes import Routes, one_of
from rqttl.text import format_value

#: Types of exchanges that ignore the routing key.
KEYLESS = ("fanout", "headers")
_ALTERNATE = "alternate-exchange"
_TO_EXCHANGE = "a queue that both exchanges reach would get messages twice: bind the queues of the other one yourself"


class Topics:
    """The exchanges of a vhost that become topics. Those that every vhost has do if they have bindings."""

    def __init__(self, vhost: VHost, queues: NameTable) -> None:
        self._vhost, self._queues, self._routes = vhost, queues, Routes()
        used = {binding.source for binding in vhost.bindings}
        self._exchanges = {name: one for name, one in vhost.exchanges.items() if one.body or name in used}
        fitting = (name for name, one in self._exchanges.items() if one.kind in (*KEYLESS, "direct", "topic"))
        self.names = NameTable.of(fitting, taken=queues.names.values())

    def add_to(
        self, queues: Mapping[str, Mapping[str, object]], policies: TakenPolicies, notes: Notes
    ) -> dict[str, Mapping[str, object]]:
        """The queues of the import, and the topics with their bindings. Notes each exchange and each binding."""
        subject = f"vhost {self._vhost.name!r}: exchange {{!r}}"
        for name in self._exchanges:
            self._exchange(name, policies, notes.about(subject.format(name)))
        for one in self._vhost.bindings:
            ends = f"{one.source!r} to {one.destination!r} by {one.key!r}"
            self._bind(one, notes.about(f"vhost {self._vhost.name!r}: binding of {ends}"))
        for name, topic in self.names.names.items():
            alternate = self._exchanges[name].arguments.get(_ALTERNATE, policies.of_exchange(name).get(_ALTERNATE))
            if target := self.names.names.get(str(alternate)):
                self._routes.bind(topic, target, notes.about(subject.format(name)), _ALTERNATE, alternate, _unmatched)
            elif alternate is not None:
                notes.about(subject.format(name)).lost(_ALTERNATE, alternate, "it is not a topic of the import")
        return self._routes.deployed({**queues, **{topic: {} for topic in self.names.names.values()}})

    def _exchange(self, name: str, policies: TakenPolicies, notes: Notes) -> None:
        exchange, table = self._exchanges[name], rows("rabbitmq object")
        if name not in {**self.names.names, **self.names.refused}:
            notes.lost("", None, table.get(exchange.kind, table["exchanges"]).text)
        elif topic := self.names.take(name, "exchange", notes):
            self._routes.add_topic(topic)
            for key in sorted(exchange.body.keys() - {"name", "vhost", "type", "arguments"}):
                notes.take_setting("rabbitmq exchange", key, key, exchange.body[key], "")
            for key in sorted(exchange.arguments.keys() - {_ALTERNATE}):
                notes.left_out(key, exchange.arguments[key], "an exchange of these types has no such argument")
            policies.note_topic(topic, notes)

    def _bind(self, binding: Binding, notes: Notes) -> None:
        topic, queue = self.names.names.get(binding.source), self._queues.names.get(binding.destination)
        if topic is None or queue is None or not binding.to_queue:
            reason = _TO_EXCHANGE if not binding.to_queue else f"its {'queue' if topic else 'exchange'} is not imported"
            notes.lost("", None, f"the binding is not imported: {reason}")
            return
        kind = self._exchanges[binding.source].kind
        setting, value = ("arguments", binding.arguments) if kind == "headers" else ("routing_key", binding.key)
        self._routes.bind(topic, queue, notes, setting, value, partial(_filter, kind, binding))


def _unmatched() -> Filter:
    return {"unmatched": True}


def _filter(kind: str, binding: Binding) -> Filter:
    """The filter of a binding. A message that was sent without a routing key has no subject."""
    if kind == "fanout":
        return None
    if kind == "headers":
        return _headers(binding.arguments)
    words = set(binding.key.split("."))
    if kind == "topic" and words & {"*", "#"}:
        return None if words == {"#"} else binding.key
    return one_of(SUBJECT, [binding.key]) if binding.key else {SUBJECT: {"exists": False}}


def _headers(arguments: Mapping[str, object]) -> Filter:
    match = arguments.get("x-match", "all")
    if match not in ("all", "any", "all-with-x", "any-with-x"):
        raise InvalidInput(f"x-match: expected all or any, got {format_value(match)}")
    rules = [
        {name: {"exists": True}} if value is None else one_of(name, [value])
        for name, value in arguments.items()
        if name != "x-match" and (str(match).endswith("-x") or not name.startswith("x-"))
    ]
    return rules if str(match).startswith("any") else {name: rule[name] for rule in rules for name in rule}
