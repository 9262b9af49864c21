"""Flows that publish: a message to a topic becomes a copy in each bound queue whose filter it matches.

The client finds these queues, under the version of the topic. One script stores all copies of a message or none, if the
topic and the queues still have the options that the client knows; else the client looks again. So a change of bindings
acts on every call that begins after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter

from rqttl.errors import NotReplicated, QueueFull, QueueNotFound
from rqttl.filters import Rule
from rqttl.flows.messages import Stored, in_batches, of_answer, receipt, roomy
from rqttl.flows.policies import warn_of_failover
from rqttl.flows.steps import OUTDATED, Flow, GetConfig, dispatch
from rqttl.flows.sweeping import config_if_exists
from rqttl.options import DURABILITIES
from rqttl.protocol import codec, commands
from rqttl.protocol.commands import BATCH, BATCH_BYTES, READ_BYTES, Options, QueueConfig, Refused
from rqttl.protocol.keys import Keyspace
from rqttl.text import plain_text
from rqttl.types import Header, Message, Receipt

#: What one call stores at most: copies in so many queues, so many copies, and so many bytes of copies.
QUEUES, COPIES, COPY_BYTES = 100, 1_000, READ_BYTES
#: How often a call passes on what waits at the topic, before its messages wait there, too.
ROUNDS = 4

_NO_HEADERS: Mapping[str, Header] = {}
_ANSWERED = frozenset((*OUTDATED, "full", "behind"))


def publish(
    keyspace: Keyspace, config: QueueConfig, messages: Sequence[Message | object], window: int
) -> Flow[list[Receipt | QueueFull]]:
    """Send messages to a topic, in order. See `messages.enqueue`.

    Those that cannot be passed on now wait in the log of the topic: while it is paused, if others wait there that stay,
    and if one call cannot store all copies.
    """
    return (yield from _Publication(keyspace, config, messages, window).run())


def pass_on(_: Keyspace, topic: str) -> Flow[bool]:
    """Pass on the messages that wait in the log of a topic. Returns False if some stay."""
    yield GetConfig(topic)
    return False


class _Publication:
    """One call of `publish`, as far as it has come."""

    def __init__(
        self, keyspace: Keyspace, config: QueueConfig, messages: Sequence[Message | object], window: int
    ) -> None:
        self._keyspace, self._config, self._window = keyspace, config, window
        self._packed = [commands.pack(message) for message in messages]
        of = [message if isinstance(message, Message) else None for message in messages]
        self._headers = [(one and codec.headers_of(one)) or _NO_HEADERS for one in of]
        self._ids = [(one and one.id and plain_text(one.id)) or "" for one in of]
        self._sizes = [len(envelope.id) + len(envelope.extras) + len(body) for envelope, body in self._packed]
        self._results: list[Receipt | QueueFull] = []
        #: The messages that a full queue has refused, by their places.
        self._refused: dict[int, QueueFull] = {}
        self._rounds = 0

    def run(self) -> Flow[list[Receipt | QueueFull]]:
        """Send all messages."""
        self._config = yield from roomy(self._config, max((len(body) for _, body in self._packed), default=0))
        while (place := len(self._results)) < len(self._packed):
            if place in self._refused:
                self._results.append(self._refused[place])
            elif not self._config.passes_on or self._config.options.paused or self._rounds == ROUNDS:
                yield from self._let_wait(len(self._packed))
            else:
                yield from self._send(place)
        return self._results

    def _send(self, place: int) -> Flow[None]:
        """Send as many messages from `place` on as one call stores; or learn why it does not."""
        end = min([other for other in self._refused if other > place], default=place + BATCH)
        found = [self._config.bindings.find(headers) for headers in self._headers[place : min(end, place + BATCH)]]
        count = fitting(found, self._sizes[place:])
        queues = yield from self._look_up({name for names in found[:count] for name in names})
        if queues is None:
            return
        order = _in_order(queues) if count else None
        if order is None:
            yield from self._let_wait(place + 1)
            yield from pass_on(self._keyspace, self._config.name)
            return
        numbers: dict[str, list[int]] = {name: [] for name in queues}
        for number, names in enumerate(found[:count], 1):
            for name in names:
                numbers[name].append(number)
        copies = [(queues[name], numbers[name] if len(numbers[name]) < count else ()) for name in order]
        packed = self._packed[place : place + count]
        command = commands.publish(self._config, copies, packed, window=self._window)
        answer = yield from dispatch(command, _ANSWERED)
        if type(answer) is not Refused:
            strongest = max((self._config, *queues.values()), key=_durability)
            self._note(of_answer(self._config, answer), strongest)
        elif answer.code == "full":
            name, limit = answer.details[0].decode(), answer.details[1].decode()
            self._refuse(found[:count], place, int(answer.details[2]) - 1, queues[name], limit)
        elif answer.code == "behind":
            self._rounds = self._rounds + 1 if (yield from pass_on(self._keyspace, self._config.name)) else ROUNDS
        else:
            yield from self._look_again([name.decode() for name in answer.details if answer.code == "stale"])

    def _refuse(self, found: Sequence[Sequence[str]], place: int, first: int, queue: QueueConfig, limit: str) -> None:
        """Note that a full queue has refused the message `first` of those from `place` on.

        The later ones for it would be refused, too, unless one takes less room or is a duplicate.
        """
        all_alike = limit == "max_length" and not (self._window or self._config.window or queue.window)
        for number, names in enumerate(found[first:] if all_alike else found[first : first + 1], place + first):
            if queue.name in names:
                self._refused[number] = QueueFull(queue.name, limit, queue.options.number(limit) or 0)

    def _let_wait(self, end: int) -> Flow[None]:
        """Store the next messages, those before the place `end`, in the log of the topic."""
        place = len(self._results)
        stored = yield from in_batches(self._config, self._packed[place:end], self._window)
        for one in stored:
            self._note(one, one[0])

    def _note(self, stored: Stored, strongest: QueueConfig) -> None:
        """Take the results of a call. Raises `NotReplicated` where a queue has `strongest` durability, in vain."""
        config, results, why = stored
        place = len(self._results)
        self._results += map(receipt, [config] * len(results), results, self._ids[place:])
        if why:
            durability = str(strongest.options.durability)
            raise NotReplicated(strongest.name, durability, why, self._results, place)

    def _look_up(self, names: set[str]) -> Flow[dict[str, QueueConfig] | None]:
        """The configs of bound queues; `None` after one that is gone, whose binding goes, too."""
        configs: dict[str, QueueConfig] = {}
        for name in sorted(names):
            try:
                configs[name] = yield GetConfig(name)
            except QueueNotFound:
                yield from self._look_again([name])
                return None
        return configs

    def _look_again(self, names: Sequence[str]) -> Flow[None]:
        """Learn what has changed: bound queues, or the topic itself. Raises `QueueNotFound` if the topic is gone."""
        for name in names:
            try:
                yield GetConfig(name, fresh=True)
            except QueueNotFound:
                yield from unbind_gone(self._keyspace, self._config.name, name)
        self._config = yield GetConfig(self._config.name, fresh=True)


def _durability(config: QueueConfig) -> int:
    return DURABILITIES.index(str(config.options.durability))


def fitting(found: Sequence[Sequence[str]], sizes: Sequence[int]) -> int:
    """The number of the first messages, of these sizes and for these queues, that one call stores."""
    queues: set[str] = set()
    copies = copied = sent = 0
    for number, (names, size) in enumerate(zip(found, sizes, strict=False)):
        queues.update(names)
        copies, copied, sent = copies + len(names), copied + len(names) * size, sent + size
        too_many = len(queues) > QUEUES or copies > COPIES or (copies > 1 and copied > COPY_BYTES)
        if too_many or (number and sent > BATCH_BYTES):
            return number
    return len(found)


def _in_order(queues: Mapping[str, QueueConfig]) -> list[str] | None:
    """The queues, each one behind those in which its arrivals may bury. `None` if these are a circle."""
    if not any(config.buries_into for config in queues.values()):
        return list(queues)
    targets = {name: sorted(config.buries_into & queues.keys()) for name, config in queues.items()}
    try:
        return list(TopologicalSorter(targets).static_order())
    except CycleError:
        return None


# Bindings


def rebind(keyspace: Keyspace, config: QueueConfig, bindings: Mapping[str, list[Rule]]) -> Flow[bool]:
    """Give a topic other bindings, if `config` still holds. Returns False if it does not."""
    declared, in_force = (replace(options, bindings=bindings) for options in (config.declared, config.options))
    options = Options(declared, in_force, config.policies)
    command = commands.update(config, options)
    answer = yield from dispatch(command, OUTDATED)
    if type(answer) is Refused:
        return False
    warn_of_failover(answer, f"topic {config.name}")
    yield GetConfig(config.name, newest=options.config(keyspace, command.word("next")))
    return True


def unbind_gone(keyspace: Keyspace, topic: str, queue: str) -> Flow[None]:
    """Remove the binding of a queue that does not exist. One that was made again meanwhile stays bound.

    Who binds a queue changes the version of the topic, also if it is bound already. So this removes no binding of a
    queue that was made, and bound, after the look-up.
    """
    while True:
        config = yield from config_if_exists(keyspace, topic)
        bindings = (config and config.declared.bindings) or {}
        if config is None or queue not in bindings or (yield from config_if_exists(keyspace, queue)):
            return
        if (yield from rebind(keyspace, config, {name: rules for name, rules in bindings.items() if name != queue})):
            return
