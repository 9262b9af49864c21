"""Flows that put dead letters back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from rqttl import checks
from rqttl import events as hook
from rqttl.errors import InvalidInput
from rqttl.events import Events
from rqttl.flows.messages import peek
from rqttl.flows.queues import config_if_exists
from rqttl.flows.steps import OUTDATED, Flow, GetConfig, dispatch, with_config
from rqttl.flows.sweeping import sweep
from rqttl.names import check_queue_name
from rqttl.options import REASONS
from rqttl.protocol import codec, commands
from rqttl.protocol.commands import BATCH, Refused
from rqttl.protocol.keys import Keyspace
from rqttl.text import format_value, plain_text
from rqttl.types import MessageView, Outcome, RedriveResult

T = TypeVar("T")


def redrive_many(keyspace: Keyspace, queue: str, letters: Iterable[tuple[str, str]]) -> Flow[list[RedriveResult]]:
    """Move chosen letters back. Each is a pair: its sequence, and its target queue. Expired letters die first."""
    pairs = _checked(letters)
    yield from sweep(queue)
    results: dict[tuple[str, str], RedriveResult] = {}
    for origin, sequences in _by_origin(sorted(set(pairs))).items():
        for result in (yield from _send(keyspace, queue, origin, sequences)):
            results[result.sequence, origin] = result
    return [results[pair] for pair in pairs]


def _checked(letters: object) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for pair in checks.items(letters, "letters", "pairs of a sequence and a queue"):
        if isinstance(pair, str | bytes) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise InvalidInput(f"letters: expected a pair of a sequence and a queue, got {format_value(pair)}")
        sequence, origin = pair
        pairs.append((codec.check_sequence(sequence, "letters"), check_queue_name(origin, "letters")))
    return pairs


def _by_origin(letters: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    origins: dict[str, list[str]] = {}
    for sequence, origin in letters:
        origins.setdefault(origin, []).append(sequence)
    return origins


def _send(keyspace: Keyspace, queue: str, origin: str, sequences: Sequence[str]) -> Flow[list[RedriveResult]]:
    """Move letters to one queue, in order. Returns their results, also if the queue is deleted meanwhile."""
    if origin == queue:
        return [RedriveResult(sequence, origin, "same_queue") for sequence in sequences]
    done: list[RedriveResult] = []
    config = yield from config_if_exists(keyspace, origin)
    repeated = False  # see `with_config`
    while len(done) < len(sequences):
        if config is None:
            return done + [RedriveResult(sequence, origin, "no_origin") for sequence in sequences[len(done) :]]
        batch = sequences[len(done) : len(done) + BATCH]
        command = commands.redrive(config, queue, batch)
        answer = yield from dispatch(command.as_replay() if repeated else command, OUTDATED)
        if type(answer) is Refused:
            repeated = repeated or answer.repeated
            config = yield from config_if_exists(keyspace, origin)
        else:
            repeated = False
            # the script reads a bounded number of bytes, so it may handle the first letters only
            done += [
                _redriven(sequence, origin, result) for sequence, result in zip(batch, answer.results, strict=False)
            ]
    return done


def _redriven(sequence: str, origin: str, result: bytes) -> RedriveResult:
    if result[:1] == b"!":
        return RedriveResult(sequence, origin, "full", result[1:].decode())
    outcome: Outcome = "unavailable" if result == b"-" else "moved"
    return RedriveResult(sequence, origin, outcome)


@dataclass
class _Redrive:
    """A redrive of all letters that fit: the conditions on a letter, and the progress so far."""

    keyspace: Keyspace
    queue: str
    limit: int | None
    reason: str | None
    source: str | None
    to: str | None
    last: str
    moved: int = 0
    #: Queues that take no further letter.
    closed: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.closed.add(self.queue)

    @property
    def over(self) -> bool:
        return self.limit is not None and self.moved >= self.limit

    def chosen_letters(self, page: Sequence[MessageView]) -> Iterator[tuple[str, str]]:
        """The letters of a page that fulfil the conditions, each with its target queue."""
        for letter in page:
            if letter.state == "ready" and letter.deaths and letter.sequence <= self.last:
                death = letter.deaths[0]
                if self.reason in (None, death.reason) and self.source in (None, death.queue):
                    yield letter.sequence, self.to or death.queue

    def send(self, page: Sequence[MessageView]) -> Flow[None]:
        """Move the letters of a page that fulfil the conditions."""
        letters = list(self.chosen_letters(page))
        while letters and not self.over:
            most = len(letters) if self.limit is None else self.limit - self.moved
            batch, letters = letters[:most], letters[most:]
            for origin, sequences in _by_origin(batch).items():
                if origin in self.closed:
                    continue
                for result in (yield from _send(self.keyspace, self.queue, origin, sequences)):
                    self.moved += result.outcome == "moved"
                    if result.outcome in ("full", "no_origin"):
                        self.closed.add(origin)


def redrive(
    keyspace: Keyspace,
    queue: str,
    *,
    limit: int | None = None,
    reason: str | None = None,
    source: str | None = None,
    to: str | None = None,
) -> Flow[int]:
    """Move the present letters back, the oldest first. A queue that has no room for a letter gets no further one."""
    limit = None if limit is None else checks.whole(limit, "limit")
    if reason is not None and plain_text(reason) not in REASONS:
        raise InvalidInput(f"reason: expected one of {', '.join(REASONS)}, got {format_value(reason)}")
    reason = plain_text(reason)
    source = None if source is None else check_queue_name(source, "source")
    to = None if to is None else check_queue_name(to, "to")
    if to == queue:
        raise InvalidInput(f"to: expected another queue than {queue!r}")
    yield from sweep(queue)
    if to is not None:
        yield GetConfig(to)
    counters = (yield from with_config(queue, commands.stats)).counters
    record = dict(zip(counters[::2], counters[1::2], strict=True))
    # letters that die during the redrive come behind the last sequence, so the redrive ends
    work = _Redrive(keyspace, queue, limit, reason, source, to, record[b"last_id"].decode())
    after = None
    while not work.over and (page := (yield from peek(keyspace, queue, BATCH, after))):
        yield from work.send(page)
        after = page[-1].sequence
        if after >= work.last or to in work.closed:
            break
    return work.moved


def observed(events: Events, queue: str, flow: Flow[T]) -> Flow[T]:
    """Return a flow that redrives letters of a queue, with an observer around it if there is one."""
    return flow if events.observer is None else hook.settled(events.observer, queue, "redrive", (), flow)
