"""Definitions of RabbitMQ. `read_definitions` reads a file of `rabbitmqctl export_definitions`."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from rqttl.errors import InvalidImport
from rqttl.imports.notes import Imported, ImportedDeployment, NameTable, Notes, namespaces, rows
from rqttl.imports.rabbitmq import definitions
from rqttl.imports.rabbitmq.definitions import Binding, Queue, Setting, VHost, settings_of
from rqttl.imports.rabbitmq.policies import TakenPolicies
from rqttl.imports.rabbitmq.topics import KEYLESS, Topics
from rqttl.imports.source import load, read
from rqttl.policies.policy import NONE
from rqttl.text import plain_whole

_LEASES = (
    "the lease of a delivery is 30s: RabbitMQ waits 30 minutes for an acknowledgement; `run` and `consume` renew "
    "leases, for other consumers set `lease`"
)
_EXCHANGE, _KEY = "dead-letter-exchange", "dead-letter-routing-key"
_LIMIT, _OVERFLOW = "delivery-limit", "overflow"
#: RabbitMQ's limit for quorum queues without one, and the version that brought it.
_DEFAULT_LIMIT, _DEFAULT_SINCE = 20, (4, 0)
_BECAUSE = (
    "RabbitMQ forgives as many failures as the limit says, and the next one ends the message; "
    "here every nack and every lost lease is a failure"
)


def read_definitions(text: str) -> Imported:
    """Read the text of a definitions file: one deployment for each vhost.

    Raises `InvalidImport`, which names the place of a fault. Each queue's options are valid for `declare_queue`, and
    each policy for `set_policy`.
    """
    table = read(dict, load(text, "definitions of RabbitMQ"), "$")
    vhosts, notes = definitions.read_vhosts(table), Notes("definitions")
    definitions.note_others(table, notes)
    if any(vhost.queues for vhost in vhosts.values()):
        notes.translated("consumer_timeout", None, _LEASES)
    valid, version = namespaces(vhosts), definitions.version(table)
    deployments = {name: _deployment(vhost, version, valid[name], notes) for name, vhost in vhosts.items()}
    return Imported(deployments, tuple(notes.found))


def _deployment(vhost: VHost, version: tuple[int, ...] | None, namespace: str, notes: Notes) -> ImportedDeployment:
    """The queues and policies of a vhost. Notes every field of each."""
    reasons = {name: _reason_against(queue) for name, queue in vhost.queues.items()}
    names = NameTable.of(name for name, reason in reasons.items() if not reason)
    topics = Topics(vhost, names)
    dead_letters = _DeadLetters(vhost, names, topics.names)

    def read_definition(definition: Mapping[str, Setting], notes: Notes) -> None:
        _take(definition, notes, "")
        dead_letters.take(definition, notes)

    policies = TakenPolicies(vhost.policies, read_definition, notes)
    operators = TakenPolicies(vhost.operator_policies, read_definition, notes)
    queues: dict[str, Mapping[str, object]] = {}
    for queue in vhost.queues.values():
        about = notes.about(f"vhost {queue.vhost!r}: queue {queue.name!r}")
        if reasons[queue.name]:
            about.lost("", None, f"the queue is not imported: {reasons[queue.name]}")
        elif name := names.take(queue.name, "queue", about):
            for key in sorted(queue.body.keys() - {"name", "vhost", "arguments"}):
                about.take_setting("rabbitmq queue", key, key, queue.body[key], f"{queue.place}.{key}")
            definition, capped = (one.applied(queue, name, about) for one in (policies, operators))
            settings = settings_of(queue.arguments, f"{queue.place}.arguments", "x-")
            if queue.kind == "quorum" and _OVERFLOW in settings and _OVERFLOW in definition:
                overflow = settings.pop(_OVERFLOW)
                text = "overflow comes from the policy, which RabbitMQ prefers for a quorum queue"
                about.translated(overflow.name, overflow.value, text)
            _take(settings, about, queue.kind)
            dead_letters.take(settings, about, definition, queue.name)
            limits = [plain_whole(place[_LIMIT].value) for place in (settings, definition, capped) if _LIMIT in place]
            if queue.kind == "quorum" and all(limit is None for limit in limits):
                _take_default_limit(version, about)
            if (options := about.queue(name)) is not None:
                queues[name] = options
    return ImportedDeployment(
        topics.add_to(queues, policies, notes), policies.as_file(), operators.as_file(), namespace
    )


def _reason_against(queue: Queue) -> str:
    """The reason why a queue is not imported, if there is one."""
    if queue.kind == "stream":
        return "rqttl has no streams: consumers read a queue once; `peek` reads without consuming"
    if queue.kind not in ("classic", "quorum"):
        return f"rqttl has no queue like the type {queue.kind!r}"
    if queue.body.get("exclusive") is True:
        return "an exclusive queue ends with its connection: a program declares one of its own, with `expires`"
    return ""


def _take(settings: Mapping[str, Setting], notes: Notes, kind: str) -> None:
    """Take each setting of a queue of a type, or of a policy (no type), or note why not. Dead letters come later."""
    for key, (name, value, place) in settings.items():
        row = rows("rabbitmq").get(key)
        if key == _OVERFLOW:
            if value == "reject-publish-dlx" and kind == "quorum":
                notes.left_out(name, value, "a quorum queue does not have it, and drops its oldest messages")
            else:
                notes.take("overflow", value, name, value)
        elif key == _LIMIT:
            limit = plain_whole(value)
            if kind not in ("", "quorum"):
                notes.left_out(name, value, f"a {kind} queue does not have it")
            elif limit is None:
                notes.left_out(name, value, "RabbitMQ ignores a value that is not a whole number")
            elif limit < 0:
                notes.translated(name, limit, "no max_deliveries: below 0 there is no limit")
            else:
                notes.take("max_deliveries", limit + 1, name, limit, because=_BECAUSE)
        elif row is None or not row.by_code:
            notes.take_setting("rabbitmq", key, name, value, place)


def _take_default_limit(version: tuple[int, ...] | None, notes: Notes) -> None:
    """Take RabbitMQ's limit for a quorum queue to which nothing gives one."""
    if version is None:
        text = "no max_deliveries: the file does not name its RabbitMQ, and since 4.0 the default is 20"
        notes.lost(_LIMIT, None, text)
    elif version >= _DEFAULT_SINCE:
        because = f"the default of RabbitMQ 4, {_DEFAULT_LIMIT}, and the failure that ends the message"
        notes.take("max_deliveries", _DEFAULT_LIMIT + 1, _LIMIT, None, because=because)


class _Unresolved(ValueError):  # named for the event, as the errors of rqttl
    """No single queue, and no topic, gets the dead letters. The text says why."""


class _DeadLetters:
    """Finds target queues and topics in one vhost."""

    def __init__(self, vhost: VHost, names: NameTable, topics: NameTable) -> None:
        self._vhost = vhost
        self._names, self._topics = names, topics
        self._by_source: dict[str, list[Binding]] = defaultdict(list)
        self._by_key: dict[tuple[str, str], list[Binding]] = defaultdict(list)
        self._wild: dict[str, list[tuple[re.Pattern[str], Binding]]] = defaultdict(list)
        #: The routing keys with which messages come to a queue.
        self._keys: dict[str, set[str]] = defaultdict(set)
        for binding in vhost.bindings:
            kind = self._kind(binding.source)
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
        given = [own[name] for name in (_EXCHANGE, _KEY) if name in own]
        if not given:
            return
        exchange, key = ((own.get(name) or (policy or {}).get(name)) for name in (_EXCHANGE, _KEY))
        if exchange is None:
            text = "it does nothing without a dead-letter exchange: set dead_letter instead"
            notes.left_out(own[_KEY].name, own[_KEY].value, text)
            return
        keys: Sequence[str | None] = (None,)
        try:
            name = read(str, exchange.value, exchange.place)
            if key:
                keys = (read(str, key.value, key.place),)
            elif queue:  # dead letters keep the keys that they came with
                keys = (queue, *sorted(self._keys[queue]))
            keeps_key = not key or self._kind(name) in KEYLESS
            target, valid = self._target(name, keys, is_policy=not queue, keeps_key=keeps_key)
        except (_Unresolved, InvalidImport) as error:
            for setting in given:
                notes.lost(setting.name, setting.value, f"{error}; no dead_letter comes of it: set one yourself")
            return
        option, because = "dead_letter", "the queue or the topic that gets them"
        if target == queue:
            option = "dead_letter_rejected"
            because = "it gets its own rejected messages back; RabbitMQ drops the others, because they go in a circle"
        first, *others = given
        if notes.take(option, valid, first.name, first.value, because=because):
            for setting in others:
                notes.translated(setting.name, setting.value, f"part of the target {valid!r}")

    def _kind(self, exchange: str) -> str | None:
        kind: str | None = self._vhost.exchanges.get(exchange, {}).get("type")
        return kind

    def _target(
        self, exchange: str, keys: Sequence[str | None], *, is_policy: bool, keeps_key: bool
    ) -> tuple[str, str]:
        """The one queue that gets messages with any of these keys, and its name in rqttl. Key `None`: with any key.

        If there are several, it is the topic, whose filters look at the keys of the letters.
        """
        topic = self._topics.names.get(exchange) if keeps_key and exchange != NONE else None
        if topic and self._kind(exchange) == "headers":
            return exchange, topic
        found = set[str]().union(*(self._ends(exchange, key) for key in keys))
        reached = {one.destination for one in self._by_source[exchange]} if found and keys[0] is None else found
        # a letter that nobody sent by an exchange has no subject: only bindings for all keys take it
        if topic and len(reached) > 1 and self._ends(exchange, keys[0]) <= self._ends(exchange, None):
            return exchange, topic
        if len(found) > 1:
            first, second, *_ = sorted(found)
            raise _Unresolved(f"exchange {exchange!r} sends to several queues, such as {first!r} and {second!r}")
        if not found:
            raise _Unresolved(f"exchange {exchange!r} sends messages with these routing keys to no queue of the file")
        target = found.pop()
        valid = self._names.names.get(target)
        if valid is None:
            why = self._names.refused.get(target, "it is not a queue of the import")
            raise _Unresolved(f"they go to {target!r}: {why}")
        if is_policy and valid == NONE:
            raise _Unresolved("in a policy the target 'none' means that there is none: rename the queue")
        return target, valid

    def _ends(self, exchange: str, key: str | None) -> set[str]:
        """The queues that get messages with a key. No key: those that get all messages."""
        bindings = self._bindings(exchange, key)
        if not all(one.to_queue for one in bindings):
            raise _Unresolved(f"exchange {exchange!r} sends to another exchange: it is not followed")
        return {one.destination for one in bindings}

    def _bindings(self, exchange: str, key: str | None) -> list[Binding]:
        """The bindings of an exchange that take a key. No key: those for all keys."""
        kind = self._kind(exchange)
        if exchange == "":
            return [Binding("", key, True, key, {})] if key is not None and key in self._vhost.queues else []
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
            raise _Unresolved(f"exchange {exchange!r} is not in the file")
        raise _Unresolved(f"exchange {exchange!r} has the type {kind!r}, which the import cannot follow")


def _topic(key: str) -> re.Pattern[str]:
    """The keys that a pattern of a topic exchange takes, with a dot before each."""
    parts = {"*": r"\.[^.]*", "#": r"(?:\.[^.]*)*"}
    return re.compile("".join(parts.get(word, rf"\.{re.escape(word)}") for word in key.split(".")), re.DOTALL)
