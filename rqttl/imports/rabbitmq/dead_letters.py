"""Dead-letter exchanges and routing keys of RabbitMQ as target queues, if dead letters always reach the same one."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping

from rqttl.imports.names import NameTable
from rqttl.imports.notes import Notes
from rqttl.imports.rabbitmq.definitions import Binding, Setting, VHost
from rqttl.imports.source import read

_EXCHANGE, _KEY = "dead-letter-exchange", "dead-letter-routing-key"
_NO_TARGET = "no dead_letter comes of it: set one yourself"


class Unresolved(ValueError):  # named for the event, as the errors of rqttl
    """No single queue gets the dead letters. The text says why."""


class DeadLetters:
    """Finds target queues in one vhost."""

    def __init__(self, vhost: VHost, names: NameTable) -> None:
        self._vhost = vhost
        self._names = names
        self._by_source: dict[str, list[Binding]] = defaultdict(list)
        self._by_key: dict[tuple[str, str], list[Binding]] = defaultdict(list)
        self._wild: dict[str, list[tuple[re.Pattern[str], Binding]]] = defaultdict(list)
        #: The routing keys with which messages come to a queue.
        self._keys: dict[str, set[str]] = defaultdict(set)
        for binding in vhost.bindings:
            kind = vhost.exchanges.get(binding.source)
            self._by_source[binding.source].append(binding)
            self._by_key[binding.source, binding.key].append(binding)
            if kind == "topic" and {"*", "#"} & set(binding.key.split(".")):
                self._wild[binding.source].append((_topic(binding.key), binding))
            elif kind in ("direct", "topic") and binding.to_queue:
                self._keys[binding.destination].add(binding.key)

    def take(
        self, own: Mapping[str, Setting], notes: Notes, policy: Mapping[str, Setting] | None = None, queue: str = ""
    ) -> None:
        """Take the target that the settings `own` of a queue, or of a policy, name.

        For a queue, they come before those of `policy`, the one that RabbitMQ applies to it.
        """
        if _EXCHANGE not in own and _KEY not in own:
            return
        exchange, key = ((own.get(name) or (policy or {}).get(name)) for name in (_EXCHANGE, _KEY))
        if exchange is None:
            text = "it does nothing without a dead-letter exchange: set dead_letter instead"
            notes.left_out(own[_KEY].name, own[_KEY].value, text)
            return
        name = read(str, exchange.value, exchange.place)
        keys: Iterable[str | None] = (None,)
        if key:
            keys = (read(str, key.value, key.place),)
        elif queue:  # dead letters keep the keys that they came with
            keys = (queue, *sorted(self._keys[queue]))
        try:
            target, valid = self._target(name, keys, is_policy=not queue)
        except Unresolved as error:
            for setting in (own[name] for name in (_EXCHANGE, _KEY) if name in own):
                notes.left_out(setting.name, setting.value, f"{error}; {_NO_TARGET}")
            return
        option, because = "dead_letter", "the queue that gets them"
        if target == queue:
            option = "dead_letter_rejected"
            because = "it gets its own rejected messages back; RabbitMQ drops the others, because they go in a circle"
        first, *others = [own[name] for name in (_EXCHANGE, _KEY) if name in own]
        if notes.take(option, valid, first.name, first.value, because=because):
            for setting in others:
                notes.translated(setting.name, setting.value, f"part of the target {valid!r}")

    def _target(self, exchange: str, keys: Iterable[str | None], *, is_policy: bool) -> tuple[str, str]:
        """The one queue that gets messages with any of these keys, and its name in rqttl. Key `None`: with any key."""
        found: set[str] = set()
        for key in keys:
            found |= self._reached(exchange, key)
            if len(found) > 1:
                first, second, *_ = sorted(found)
                raise Unresolved(f"exchange {exchange!r} sends to several queues, such as {first!r} and {second!r}")
        if not found:
            raise Unresolved(f"exchange {exchange!r} sends messages with these routing keys to no queue of the file")
        target = found.pop()
        valid = self._names.names.get(target)
        if valid is None:
            raise Unresolved(
                f"they go to {target!r}: {self._names.refused.get(target, 'it is no queue of the import')}"
            )
        if is_policy and valid == "none":
            raise Unresolved("in a policy the target 'none' means that there is none: rename the queue")
        return target, valid

    def _reached(self, exchange: str, key: str | None) -> set[str]:
        found: set[str] = set()
        open_exchanges, seen = [exchange], {exchange}
        while open_exchanges:
            for binding in self._bindings(open_exchanges.pop(), key):
                if binding.to_queue:
                    found.add(binding.destination)
                elif binding.destination not in seen:
                    seen.add(binding.destination)
                    open_exchanges.append(binding.destination)
        return found

    def _bindings(self, exchange: str, key: str | None) -> list[Binding]:
        """The bindings of an exchange that take a key. No key: those for all keys."""
        kind = self._vhost.exchanges.get(exchange)
        if exchange == "":
            return [Binding("", key, True, key)] if key is not None and key in self._vhost.queues else []
        if kind == "fanout":
            return self._by_source[exchange]
        if kind == "direct":
            return [] if key is None else self._by_key[exchange, key]
        if kind == "topic":
            exact = self._by_key[exchange, "#" if key is None else key]
            return exact + [
                one for pattern, one in self._wild[exchange] if key is not None and pattern.fullmatch(f".{key}")
            ]
        if kind is None:
            raise Unresolved(f"exchange {exchange!r} is not in the file")
        raise Unresolved(f"exchange {exchange!r} has the type {kind!r}, which the import cannot follow")


def _topic(key: str) -> re.Pattern[str]:
    """The keys that a pattern of a topic exchange takes, with a dot before each."""
    parts = {"*": r"\.[^.]*", "#": r"(?:\.[^.]*)*"}
    return re.compile("".join(parts.get(word, rf"\.{re.escape(word)}") for word in key.split(".")), re.DOTALL)
