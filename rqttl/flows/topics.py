"""Flows that publish: a message to a topic becomes a copy in each bound queue whose filter it matches.

A queue with `forward_to` is like a topic with one binding, but makes the queue that it is bound to, if that is missing.

The client finds these queues, under the version of the topic. One script stores all copies of a message or none, if the
topic and the queues still have the options that the client knows; else the client looks again. So a change of bindings
acts on every call that begins after it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from itertools import takewhile
from typing import NamedTuple, cast

from rqttl.errors import NotReplicated, QueueFull, QueueNotFound
from rqttl.filters import Rule
from rqttl.flows.messages import Stored, in_batches, of_answer, receipt, roomy
from rqttl.flows.policies import warn_of_failover
from rqttl.flows.steps import (
    EXPIRED,
    OUTDATED,
    Flow,
    GetConfig,
    GetConfigs,
    HandleNotes,
    Read,
    Register,
    answer_of,
    dispatch,
    existing,
)
from rqttl.flows.sweeping import config_if_exists
from rqttl.options import DURABILITIES
from rqttl.protocol import codec, commands
from rqttl.protocol.commands import BATCH, BATCH_BYTES, READ_BYTES, Command, Ok, Options, QueueConfig, Refused
from rqttl.protocol.keys import DETACHED, INSIDE, LOG, META, REQUEUED, Keyspace
from rqttl.text import plain_text
from rqttl.types import Death, Header, Message, Receipt

#: What one call stores at most: copies in so many queues, so many copies, and so many bytes of copies.
QUEUES, COPIES, COPY_BYTES = 100, 1_000, READ_BYTES
#: A copy for a queue with a limit is as much work as so many others.
LIMITED = 5
#: The most calls of one `pass_on`.
CALLS = 40
#: How often a call passes on what waits at the topic, before its messages wait there, too.
ROUNDS = 4

logger = logging.getLogger("rqttl")

_NO_HEADERS: Mapping[str, Header] = {}
_NONE: Mapping[str, QueueConfig] = {}
_ANSWERED = frozenset((*OUTDATED, "full", "behind"))


def publish(
    keyspace: Keyspace, config: QueueConfig, messages: Sequence[Message | object], window: int
) -> Flow[list[Receipt | QueueFull]]:
    """Send messages to a topic, in order. See `messages.enqueue`.

    Those that cannot be passed on now wait in the log of the topic: while it is paused, if others wait there that stay,
    if one call cannot store all copies, and if this user may not sweep what has ended.
    """
    return (yield from _Publication(keyspace, config, messages, window).run())


def pass_on(keyspace: Keyspace, topic: str) -> Flow[Passed]:
    """Pass on what waits in the log of a topic, in order, with `CALLS` calls at most. A sweep goes on with the rest."""
    config: QueueConfig = yield GetConfig(topic)
    if not config.passes_on or config.options.paused:
        config = yield GetConfig(topic, fresh=True)  # who asks to pass on knows of a change
    return (yield from _Passage(keyspace, config).run())


class Passed(NamedTuple):
    """What became of the messages that wait at a topic."""

    #: Notes of the calls about other queues.
    notes: Sequence[bytes]
    #: What holds back the first message, if anything does.
    why: str = ""
    #: The refusal of the queue that does, if it is full.
    full: QueueFull | None = None


class _Sending:
    """A topic, or a queue that forwards, with its options as they are known, and the queues that are bound to it."""

    def __init__(self, keyspace: Keyspace, config: QueueConfig) -> None:
        self._keyspace, self._config = keyspace, config

    def _look_up(self, names: set[str]) -> Flow[dict[str, QueueConfig] | None]:
        """The configs of bound queues; `None` after some that are gone: see `_look_again`."""
        configs: dict[str, QueueConfig | None] = yield GetConfigs(sorted(names))
        if gone := [name for name, config in configs.items() if config is None]:
            yield from self._look_again(gone)
            return None
        return cast("dict[str, QueueConfig]", configs)

    def _look_again(self, names: Sequence[str]) -> Flow[None]:
        """Learn what has changed: bound queues, or the topic itself. Raises `QueueNotFound` if the topic is gone.

        A bound queue that is gone is unbound. The target of `forward_to` is made, as that of a dead letter.
        """
        configs: dict[str, QueueConfig | None] = yield GetConfigs(names, fresh=True)
        gone = [name for name, config in configs.items() if config is None]
        yield from unbind_gone(self._keyspace, self._config.name, gone)
        self._config = yield GetConfig(self._config.name, fresh=True)
        if (target := self._config.options.forwards_to) in gone:
            yield Register(target)
            yield from dispatch(commands.make(self._keyspace, target), EXPIRED)
            yield HandleNotes((b"created", target.encode()))  # a policy may match it


class _Waiting(NamedTuple):
    """A message that waits at a topic."""

    sequence: str
    headers: Mapping[str, Header]
    death: Death | None
    size: int


class _Passage(_Sending):
    """One call of `pass_on`, as far as it has come."""

    def __init__(self, keyspace: Keyspace, config: QueueConfig) -> None:
        super().__init__(keyspace, config)
        self._page: list[_Waiting] = []
        self._seen_all = False
        self._mark = self._why = ""
        #: The number of messages that full queues let pass, as far as it is known.
        self._most = BATCH
        self._notes: list[bytes] = []
        self._full: QueueFull | None = None

    def run(self) -> Flow[Passed]:
        """Pass on page by page."""
        for _ in range(CALLS):
            if not self._config.passes_on or self._config.options.paused or self._why:
                break
            if not self._page and not self._seen_all:
                yield from self._look()
            if not self._page:
                break
            yield from self._send()
        return Passed(self._notes, self._why, self._full)

    def _look(self) -> Flow[None]:
        """Read the next ready messages, without a script if they are all in the log: that is a tenth of the work.

        Others may write between the reads of the round trip: then the call that passes on is `behind`.
        """
        name, after, most, size = self._config.name, _before(self._mark), BATCH, 0
        sets = [self._keyspace.key(name, part) for part in (DETACHED, REQUEUED, *INSIDE)]
        log = "XRANGE", self._keyspace.key(name, LOG), f"({after}" if after else "-", "+", "COUNT", str(most)
        large = "HMGET", self._keyspace.key(name, META), "large_upto"
        (large_upto,), others, entries = yield Read([large, ("EXISTS", *sets), log])
        if not large_upto and not others:
            self._page = [_waiting(sequence, header, body) for sequence, (header, body) in entries]
            self._seen_all = len(entries) < most
            return
        while not self._page and not self._seen_all:
            peek = commands.peek(self._keyspace, self._config.name, after=after, limit=most)
            page = yield from existing(self._config.name, peek)
            for (sequence, (header, body)), state in zip(page.entries, page.details[::3], strict=True):
                size += len(header) + len(body)
                if state == b"ready":
                    self._page.append(_waiting(sequence, header, body))
            self._seen_all = len(page.entries) < most and size < READ_BYTES / 2
            after = page.last.decode()

    def _send(self) -> Flow[None]:
        """Pass on as many messages as one call does, or one of them to a part of its queues."""
        first = self._page[0].sequence
        known = self._mark if self._mark.startswith(first) else ""
        page = self._page[: 1 if known else self._most]
        found = [self._config.bindings.find(one.headers, one.death) for one in page]
        if known:
            found = [tuple(name for name in found[0] if name > known[len(first) + 1 :])]
        count = fitting(found, [one.size for one in page])
        chosen = found[:count] or [found[0][: max(1, min(QUEUES, COPY_BYTES // max(1, page[0].size)))]]
        queues = yield from self._look_up({name for names in chosen for name in names})
        if queues is None:
            return
        if any(config.passes_on for config in queues.values()) and (way := (yield from self._way_back([*queues]))):
            self._why = f"they would come back: {way}"
            return
        chosen = chosen[: fitting(chosen, [one.size for one in page], queues) or 1]
        if (order := _in_order(queues)) is None:
            order, chosen = list(found[0][:1]), [found[0][:1]]
        mark = "" if chosen[0] == found[0] else f"{first} {chosen[0][-1]}"
        sequences = [one.sequence for one in page[: len(chosen)]]
        command = commands.pass_on(self._config, _copies(queues, order, chosen), sequences, known=known, mark=mark)
        answer = yield from self._call(command)
        if type(answer) is not Refused:
            self._mark, self._most = mark, BATCH
            if not mark:
                del self._page[: len(chosen)]
        elif answer.code == "full":
            name, limit, self._most = answer.details[0].decode(), answer.details[1].decode(), int(answer.details[2]) - 1
            if not self._most:
                self._full = QueueFull(name, limit, queues[name].options.number(limit) or 0)
                self._why = str(self._full)
        elif answer.code == "behind":
            # another client was faster, or a message has expired: that one dies first
            self._mark, self._page, self._seen_all = answer.details[0].decode(), [], False
            asked, self._notes = self._notes, []
            yield from self._call(commands.sweep(self._config))
            self._notes = asked + _but_to_pass(self._notes, self._config.name)
        else:
            yield from self._look_again([name.decode() for name in answer.details if answer.code == "stale"])

    def _way_back(self, names: Sequence[str]) -> Flow[str]:
        """See `comes_back`. What is known may be out of date, so a circle is looked at again."""
        if not (yield from comes_back(self._config.name, names, fresh=False)):
            return ""
        return (yield from comes_back(self._config.name, names))

    def _call(self, command: Command) -> Flow[Ok | Refused]:
        """Run a command to its end. Its notes are for the caller: a chain of topics may have any length."""
        while True:
            answer = answer_of(command, (yield command))
            if type(answer) is not Refused:
                self._notes += answer.notes
            elif answer.code == "retry":
                self._notes += answer.details
                continue
            return answer


class _Publication(_Sending):
    """One call of `publish`, as far as it has come."""

    def __init__(
        self, keyspace: Keyspace, config: QueueConfig, messages: Sequence[Message | object], window: int
    ) -> None:
        super().__init__(keyspace, config)
        self._window = window
        self._packed = [commands.pack(message) for message in messages]
        of = [message if isinstance(message, Message) else None for message in messages]
        self._headers = [(one and codec.headers_of(one)) or _NO_HEADERS for one in of]
        self._ids = [(one and one.id and plain_text(one.id)) or "" for one in of]
        self._sizes = [len(envelope.id) + len(envelope.extras) + len(body) for envelope, body in self._packed]
        self._results: list[Receipt | QueueFull] = []
        #: The messages that a full queue has refused, by their places.
        self._refused: dict[int, QueueFull] = {}
        #: The most messages of the next call: few where others are likely to be refused, too.
        self._most = BATCH
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
                try:
                    yield from self._send(place)
                except Exception as error:
                    from rqttl.outages import is_denied  # slow to load: help has no use for it

                    if not is_denied(error):
                        raise
                    logger.debug("topic %s: messages wait for a reaper: %s", self._config.name, error)
                    yield from self._let_wait(len(self._packed))
        return self._results

    def _send(self, place: int) -> Flow[None]:
        """Send as many messages from `place` on as one call stores; or learn why it does not."""
        end = min([other for other in self._refused if other > place], default=place + BATCH)
        found = [self._config.bindings.find(headers) for headers in self._headers[place : min(end, place + self._most)]]
        count = fitting(found, self._sizes[place:])
        queues = yield from self._look_up({name for names in found[:count] for name in names})
        if queues is None:
            return
        order = _in_order(queues) if count else None
        if order is None:
            large = takewhile(
                lambda one: not fitting([one[0]], [one[1]]), zip(found, self._sizes[place:], strict=False)
            )
            yield from self._pass_on(place)
            if place not in self._refused:
                yield from self._let_wait(place + (count or len(list(large))))
            return
        count = fitting(found[:count], self._sizes[place:], queues) or 1
        copies = _copies(queues, order, found[:count])
        packed = self._packed[place : place + count]
        command = commands.publish(self._config, copies, packed, window=self._window)
        answer = yield from dispatch(command, _ANSWERED)
        if type(answer) is not Refused:
            strongest = max((self._config, *queues.values()), key=_durability)
            self._note(of_answer(self._config, answer), strongest)
            self._most = min(BATCH, 4 * self._most)
        elif answer.code == "full":
            name, limit = answer.details[0].decode(), answer.details[1].decode()
            first = int(answer.details[2]) - 1
            known = len(self._refused)
            self._refuse(found[:count], place, first, queues[name], limit)
            self._most = min(BATCH, max(first, 4 * (len(self._refused) - known)))
        elif answer.code == "behind":
            self._rounds += 1
            yield from self._pass_on(place)
        else:
            yield from self._look_again([name.decode() for name in answer.details if answer.code == "stale"])

    def _pass_on(self, place: int) -> Flow[None]:
        """Pass on what waits at the topic. If a full queue holds it back, it refuses the messages from `place` on."""
        passed = yield from pass_on(self._keyspace, self._config.name)
        yield HandleNotes(passed.notes)
        if passed.full:  # nobody overtakes the first one
            self._refused |= dict.fromkeys(range(place, len(self._packed)), passed.full)

    def _refuse(self, found: Sequence[Sequence[str]], place: int, first: int, queue: QueueConfig, limit: str) -> None:
        """Note that a full queue has refused the message `first` of those from `place` on.

        The later ones for it would be refused, too, unless one takes less room, is a duplicate or dies at once.
        """
        may_be_known = bool(self._window or self._config.window or queue.window)
        least = 0 if limit == "max_length" else len(self._packed[place + first][1])
        for number, names in enumerate(found[first:], place + first):
            (ttl, *_), body = self._packed[number]
            may_pass = may_be_known or ttl == b"+0" or ttl[:1] == b"@" or len(body) < least
            if queue.name in names and (number == place + first or not may_pass):
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


def _waiting(sequence: bytes, header: bytes, body: bytes) -> _Waiting:
    read = codec.unpack_header(header)
    return _Waiting(sequence.decode(), read.headers, read.deaths[0] if read.deaths else None, len(header) + len(body))


def _before(mark: str) -> str:
    """The place in the log right before the message with this mark: it goes first. Empty without a mark."""
    ms, _, serial = mark.partition(" ")[0].partition("-")
    return f"{ms}-{int(serial) - 1:06}" if mark else ""


def _but_to_pass(notes: Sequence[bytes], topic: str) -> list[bytes]:
    """Notes without those to pass on at this topic, which is at it: it would never end at what it cannot pass on."""
    own = (b"pass", topic.encode())
    return [word for pair in zip(notes[::2], notes[1::2], strict=True) if pair != own for word in pair]


def _durability(config: QueueConfig) -> int:
    return DURABILITIES.index(str(config.options.durability))


def fitting(found: Sequence[Sequence[str]], sizes: Sequence[int], known: Mapping[str, QueueConfig] = _NONE) -> int:
    """The number of the first messages, of these sizes and for these queues, that one call stores.

    A copy may push another message out of a queue that is `known` to have a limit: it counts as `LIMITED` copies.
    """
    limited = {name for name, config in known.items() if config.limited}
    queues: set[str] = set()
    copies = work = copied = sent = 0
    for number, (names, size) in enumerate(zip(found, sizes, strict=False)):
        queues.update(names)
        copies, copied, sent = copies + len(names), copied + len(names) * size, sent + size
        work += len(names) + (LIMITED - 1) * len(limited.intersection(names))
        too_many = len(queues) > QUEUES or work > COPIES or (copies > 1 and copied > COPY_BYTES)
        if too_many or (number and sent > BATCH_BYTES):
            return number
    return len(found)


def _copies(
    queues: Mapping[str, QueueConfig], order: Sequence[str], found: Sequence[Sequence[str]]
) -> list[tuple[QueueConfig, Sequence[int]]]:
    """The queues of a call in this order, each with the numbers of its messages; `found` has the queues of each."""
    numbers: dict[str, list[int]] = {name: [] for name in order}
    for number, names in enumerate(found, 1):
        for name in names:
            numbers[name].append(number)
    some = [(name, numbers[name]) for name in order if numbers[name]]
    return [(queues[name], places if len(places) < len(found) else ()) for name, places in some]


def _in_order(queues: Mapping[str, QueueConfig]) -> list[str] | None:
    """The queues, each one behind those in which its arrivals may bury. `None` if these are a circle."""
    if not any(config.buries_into for config in queues.values()):
        return list(queues)
    targets = {name: sorted(config.buries_into & queues.keys()) for name, config in queues.items()}
    try:
        return list(TopologicalSorter(targets).static_order())
    except CycleError:
        return None


def slot_fault(keyspace: Keyspace, source: str, target: str) -> str:
    """Why no step can store in both queues, with a name for which one can; empty if one can."""
    if not keyspace.in_another_slot(source, target):
        return ""
    tag = source[1:].partition("}")[0] if source.startswith("{") else source.partition("/")[0]
    fitting = f"{{{tag}}}.{target.removeprefix('{').replace('}', '')}"
    rule = f"{target!r} is in another slot than {source!r}, so one step cannot store in both"
    return f"{rule}; a queue {fitting!r} would be in its slot"


def comes_back(source: str, names: Iterable[str], *, by: str = "", fresh: bool = True) -> Flow[str]:
    """The way on which messages from `source`, `by` another queue, to these queues would come back; empty if none."""
    way, seen = f"{source!r} > {by!r}" if by else repr(source), {*names}
    if source in seen:
        return f"{way} > {source!r}"
    pending = [(name, f"{way} > {name!r}") for name in sorted(seen)]
    while pending:
        name, way = pending.pop()
        with suppress(QueueNotFound):
            config: QueueConfig = yield GetConfig(name, fresh=fresh)
            after = set(config.options.passes_to or ())
            if source in after:
                return f"{way} > {source!r}"
            pending += [(other, f"{way} > {other!r}") for other in sorted(after - seen)]
            seen |= after
    return ""


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


def unbind_gone(keyspace: Keyspace, topic: str, queues: Collection[str]) -> Flow[None]:
    """Remove the bindings of those queues that do not exist. One that was made again meanwhile stays bound.

    Who binds a queue changes the version of the topic, also if it is bound already. So this removes no binding of a
    queue that was made, and bound, after the look-up.
    """
    while queues:
        config = yield from config_if_exists(keyspace, topic)
        bindings = (config and config.declared.bindings) or {}
        bound = [name for name in queues if name in bindings]
        found: dict[str, QueueConfig | None] = yield GetConfigs(bound, fresh=True)
        kept = {name: rules for name, rules in bindings.items() if found.get(name, config)}
        if config is None or len(kept) == len(bindings) or (yield from rebind(keyspace, config, kept)):
            return
