"""Exchanges of RabbitMQ as topics, and bindings as filters of the subject, which is the routing key, or of headers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from rqttl.errors import InvalidInput
from rqttl.filters import SUBJECT, Filter
from rqttl.imports.notes import NameTable, Notes, rows
from rqttl.imports.rabbitmq.definitions import Binding, VHost
from rqttl.imports.rabbitmq.policies import TakenPolicies
from rqttl.imports.routes import UNMATCHED, Routes
from rqttl.text import format_value

#: Types of exchanges that ignore the routing key.
KEYLESS = ("fanout", "headers")
_ALTERNATE = "alternate-exchange"
_TO_EXCHANGE = "a queue that both exchanges reach would get messages twice: bind the queues of the other one yourself"


class Topics:
    """The exchanges of a vhost that become topics. Those that every vhost has do if they have bindings."""

    def __init__(self, vhost: VHost, queues: NameTable) -> None:
        self._vhost, self._queues = vhost, queues
        used = {binding.source for binding in vhost.bindings}
        self._exchanges = {name: one for name, one in vhost.exchanges.items() if "name" in one or name in used}
        fitting = (name for name, one in self._exchanges.items() if one["type"] in (*KEYLESS, "direct", "topic"))
        self.names = NameTable.of(fitting, taken=queues.names.values())
        self._routes = Routes(self.names.names.values())

    def add_to(
        self, queues: Mapping[str, Mapping[str, object]], policies: TakenPolicies, notes: Notes
    ) -> dict[str, Mapping[str, object]]:
        """The queues of the import, and the topics with their bindings. Notes each exchange and each binding."""
        vhost = f"vhost {self._vhost.name!r}"
        for name in self._exchanges:
            self._exchange(name, policies, notes.about(f"{vhost}: exchange {name!r}"))
        for one in self._vhost.bindings:
            self._bind(one, notes.about(f"{vhost}: binding of {one.source!r} to {one.destination!r} by {one.key!r}"))
        return self._routes.deployed(queues)

    def _exchange(self, name: str, policies: TakenPolicies, notes: Notes) -> None:
        exchange, table = self._exchanges[name], rows("rabbitmq object")
        if name not in {**self.names.names, **self.names.refused}:
            notes.lost("", None, table.get(exchange["type"], table["exchanges"]).text)
        elif topic := self.names.take(name, "exchange", notes):
            for key, value in sorted({**exchange, **exchange["arguments"]}.items()):
                if key not in ("name", "vhost", "type", "arguments", _ALTERNATE):
                    notes.take_setting("rabbitmq exchange", key, key, value, "")
            alternate = {**policies.of_exchange(name), **exchange["arguments"]}.get(_ALTERNATE)
            if target := self.names.names.get(str(alternate)):
                self._routes.bind(topic, target, lambda: UNMATCHED, notes, _ALTERNATE, alternate)
            elif alternate is not None:
                notes.lost(_ALTERNATE, alternate, "it is not a topic of the import")

    def _bind(self, binding: Binding, notes: Notes) -> None:
        topic, queue = self.names.names.get(binding.source), self._queues.names.get(binding.destination)
        if topic and queue and binding.to_queue:
            setting = "arguments" if binding.arguments else ""
            self._routes.bind(topic, queue, partial(self._filter, binding), notes, setting, binding.arguments or None)
        else:
            reason = f"its {'queue' if topic else 'exchange'} is not imported" if binding.to_queue else _TO_EXCHANGE
            notes.lost("", None, f"the binding is not imported: {reason}")

    def _filter(self, binding: Binding) -> Filter:
        """The filter of a binding. A message that was sent without a routing key has no subject."""
        kind, words = self._exchanges[binding.source]["type"], set(binding.key.split("."))
        if kind == "headers":
            return _headers(binding.arguments)
        if kind == "fanout" or (kind == "topic" and words == {"#"}):
            return None
        if kind == "topic" and words & {"*", "#"}:
            return binding.key
        return {SUBJECT: [binding.key] if binding.key else {"exists": False}}


def _headers(arguments: Mapping[str, object]) -> Filter:
    match = arguments.get("x-match", "all")
    rules = [
        {name: {"exists": True} if value is None else [value]}
        for name, value in arguments.items()
        if name != "x-match" and (str(match).endswith("-with-x") or not name.startswith("x-"))
    ]
    if match in ("all", "all-with-x"):
        return {name: condition for rule in rules for name, condition in rule.items()}
    if match in ("any", "any-with-x") and rules:
        return rules
    raise InvalidInput(f"expected x-match all, or any of at least one header, got {format_value(match)}")
