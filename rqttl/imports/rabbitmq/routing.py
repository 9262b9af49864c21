"""The queue that a dead letter of RabbitMQ reaches: through exchanges and bindings, if it is always the same one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from rqttl.imports.rabbitmq.definitions import Binding, VHost

#: Steps for all dead-letter exchanges of a vhost: a file of hostile patterns must not take long.
_MAX_STEPS = 5_000_000


class Unresolved(ValueError):  # named for the event, as the errors of rqttl
    """No single queue gets the dead letters. The text says why."""


class Several(Unresolved):
    """Several queues get the dead letters."""

    def __init__(self, exchange: str, queues: list[str]) -> None:
        super().__init__(f"exchange {exchange!r} sends to several queues, such as {queues[0]!r} and {queues[1]!r}")


@dataclass
class _Node:
    """A word of the patterns of a topic exchange: the next words, and the destinations of patterns that end here."""

    words: dict[str, _Node] = field(default_factory=dict)
    ends: list[Binding] = field(default_factory=list)


class _Table:
    """The bindings of one exchange."""

    def __init__(self, kind: str, bindings: Iterable[Binding]) -> None:
        self.kind = kind
        self.all: list[Binding] = []
        self.by_key: dict[str, list[Binding]] = defaultdict(list)
        self.root = _Node()
        for binding in bindings:
            self.all.append(binding)
            self.by_key[binding.key].append(binding)
            if kind == "topic":
                self._add(binding)

    def _add(self, binding: Binding) -> None:
        node = self.root
        for word in binding.key.split("."):
            node = node.words.setdefault(word, _Node())
        node.ends.append(binding)

    def matching(self, key: str | None) -> Iterator[Binding | None]:
        """The bindings that take a key, with `None` for each step of work between them. No key: those for all keys."""
        if self.kind == "fanout":
            yield from self.all
        elif self.kind == "direct":
            yield from self.by_key.get(key, ()) if key is not None else ()
        elif key is None:
            yield from self.by_key.get("#", ())
        else:
            yield from self._of_topic(key)

    def _of_topic(self, key: str) -> Iterator[Binding | None]:
        words = key.split(".")
        seen: set[tuple[int, int]] = set()
        open_nodes = [(self.root, 0)]
        while open_nodes:
            node, place = open_nodes.pop()
            yield None
            if (id(node), place) in seen:
                continue
            seen.add((id(node), place))
            if place == len(words):
                yield from node.ends
            else:
                after = [node.words.get(words[place]), node.words.get("*")]
                open_nodes += [(child, place + 1) for child in after if child]
            any_words = node.words.get("#")
            if any_words:
                open_nodes += [(any_words, later) for later in range(place, len(words) + 1)]


class Router:
    """Resolves dead-letter exchanges of one vhost."""

    def __init__(self, vhost: VHost) -> None:
        self._vhost = vhost
        self._sources: dict[str, list[Binding]] = defaultdict(list)
        self._into: dict[str, list[Binding]] = defaultdict(list)
        for binding in vhost.bindings:
            self._sources[binding.source].append(binding)
            if binding.to_queue:
                self._into[binding.destination].append(binding)
        self._tables: dict[str, _Table] = {}
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
        keys = {b.key for b in self._into.get(queue, ()) if self._kind(b.source) in ("direct", "topic")}
        yield from sorted(key for key in keys if key != queue and not {"*", "#"} & set(key.split(".")))

    def _kind(self, exchange: str) -> str | None:
        known = self._vhost.exchanges.get(exchange)
        return known.kind if known else None

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
        kind = self._kind(exchange)
        if kind is None:
            raise Unresolved(f"exchange {exchange!r} is not in the file")
        if kind not in ("direct", "fanout", "topic"):
            raise Unresolved(f"exchange {exchange!r} has the type {kind!r}, which the import cannot follow")
        if exchange not in self._tables:
            self._tables[exchange] = _Table(kind, self._sources.get(exchange, ()))
        for binding in self._tables[exchange].matching(key):
            self._steps -= 1
            if self._steps < 0:
                raise Unresolved("the file has too many bindings to follow")
            if binding:
                yield binding.destination, binding.to_queue
