"""The queue that a dead letter of RabbitMQ reaches: through exchanges and bindings, if it is always the same one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import lru_cache

from rqttl.imports.rabbitmq.definitions import Binding, VHost

#: Steps for all dead-letter exchanges of a vhost: a file of hostile patterns must not take long.
_MAX_STEPS = 1_000_000
_MAX_WORDS = 100


class Unresolved(ValueError):  # named for the event, as the errors of rqttl
    """No single queue gets the dead letters. The text says why."""


class Several(Unresolved):
    """Several queues get the dead letters."""

    def __init__(self, exchange: str, queues: list[str]) -> None:
        super().__init__(f"exchange {exchange!r} sends to several queues, such as {queues[0]!r} and {queues[1]!r}")


@lru_cache(maxsize=10_000)
def _takes(pattern: tuple[str, ...], words: tuple[str, ...]) -> bool:
    """True if the words of a pattern of a topic exchange match those of a key."""
    if len(pattern) + len(words) > _MAX_WORDS:
        raise Unresolved("the file has routing keys with too many words to follow")
    if not pattern:
        return not words
    if pattern[0] == "#":
        return _takes(pattern[1:], words) or (bool(words) and _takes(pattern, words[1:]))
    return bool(words) and pattern[0] in ("*", words[0]) and _takes(pattern[1:], words[1:])


class Router:
    """Resolves dead-letter exchanges of one vhost."""

    def __init__(self, vhost: VHost) -> None:
        self._vhost = vhost
        self._by_key: dict[tuple[str, str], list[Binding]] = defaultdict(list)
        self._patterns: dict[str, list[Binding]] = defaultdict(list)
        self._sources: dict[str, list[Binding]] = defaultdict(list)
        self._into: dict[str, list[Binding]] = defaultdict(list)
        for binding in vhost.bindings:
            self._sources[binding.source].append(binding)
            self._by_key[binding.source, binding.key].append(binding)
            if {"*", "#"} & set(binding.key.split(".")):
                self._patterns[binding.source].append(binding)
            if binding.to_queue:
                self._into[binding.destination].append(binding)
        self._known: dict[tuple[str, str | None], str | Unresolved] = {}
        self._steps = _MAX_STEPS

    def target(self, exchange: str, key: str | None) -> str:
        """The one queue that gets messages with this key. Without a key: with any key. Raises `Unresolved`."""
        if (exchange, key) not in self._known:
            try:
                self._known[exchange, key] = self._resolve(exchange, key)
            except Unresolved as error:
                self._known[exchange, key] = error
        known = self._known[exchange, key]
        if isinstance(known, Unresolved):
            raise known
        return known

    def target_of_queue(self, exchange: str, queue: str) -> str:
        """The one queue that gets the dead letters of a queue without a dead-letter routing key. Raises `Unresolved`.

        Such dead letters keep the keys that they came with: the queue's own name, or the key of one of its bindings.
        """
        try:
            return self.target(exchange, None)
        except Several:
            raise
        except Unresolved as error:
            reason = error
        targets: set[str] = set()
        for key in self._keys_of(queue):
            try:
                targets.add(self.target(exchange, key))
            except Several:
                raise
            except Unresolved:
                continue  # RabbitMQ drops dead letters with this key
        if not targets:
            raise reason
        if len(targets) > 1:
            raise Several(exchange, sorted(targets))
        return targets.pop()

    def _keys_of(self, queue: str) -> Iterator[str]:
        yield queue
        keys = {b.key for b in self._into.get(queue, ()) if self._vhost.exchanges.get(b.source) in ("direct", "topic")}
        yield from sorted(key for key in keys if key != queue and not {"*", "#"} & set(key.split(".")))

    def _resolve(self, exchange: str, key: str | None) -> str:
        targets: list[str] = []
        open_exchanges, seen = [exchange], {exchange}
        while open_exchanges:
            for name, is_queue in self._destinations(open_exchanges.pop(), key):
                if is_queue and name not in targets:
                    targets.append(name)
                elif not is_queue and name not in seen:
                    seen.add(name)
                    open_exchanges.append(name)
                if len(targets) > 1:
                    raise Several(exchange, sorted(targets))
        if not targets:
            sent = "messages with their own routing keys" if key is None else f"the routing key {key!r}"
            raise Unresolved(f"exchange {exchange!r} sends {sent} to no queue of the file")
        return targets[0]

    def _destinations(self, exchange: str, key: str | None) -> Iterator[tuple[str, bool]]:
        if exchange == "":
            if key is not None and key in self._vhost.queues:
                yield key, True
            return
        kind = self._vhost.exchanges.get(exchange)
        if kind is None:
            raise Unresolved(f"exchange {exchange!r} is not in the file")
        if kind not in ("direct", "fanout", "topic"):
            raise Unresolved(f"exchange {exchange!r} has the type {kind!r}, which the import cannot follow")
        for binding in self._matching(exchange, kind, key):
            self._steps -= 1
            if self._steps < 0:
                raise Unresolved("the file has too many bindings to follow")
            yield binding.destination, binding.to_queue

    def _matching(self, exchange: str, kind: str, key: str | None) -> Iterable[Binding]:
        """The bindings of an exchange that take a key. No key: those for all keys."""
        if kind == "fanout":
            return self._sources[exchange]
        if key is None:
            return self._by_key[exchange, "#"] if kind == "topic" else ()
        exact = self._by_key[exchange, key]
        if kind == "direct" or "*" in key or "#" in key:
            return exact
        patterns = self._patterns[exchange]
        self._steps -= len(patterns)
        words = tuple(key.split("."))
        return [*exact, *(one for one in patterns if _takes(tuple(one.key.split(".")), words))]
