"""Flows that put dead letters back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from rqttl import checks
from rqttl import events as hook
from rqttl.checks import check_queue_name
from rqttl.errors import InvalidInput
from rqttl.events import Events
from rqttl.flows.messages import peek
from rqttl.flows.queues import config_if_exists
from rqttl.flows.steps import OUTDATED, Flow, GetConfig, dispatch, with_config
from rqttl.flows.sweeping import sweep
from rqttl.options import REASONS
from rqttl.protocol import codec, commands
from rqttl.protocol.commands import BATCH, Refused
from rqttl.protocol.keys import Keyspace
from rqttl.text import format_value, plain_text
from rqttl.types import Outcome, RedriveResult

T = TypeVar("T")


def redrive_many(keyspace: Keyspace, queue: str, letters: Iterable[tuple[str, str]]) -> Flow[list[RedriveResult]]:
    """Move chosen letters back. Each is a pair: its sequence, and its target queue. Expired letters die first."""
    pairs: list[tuple[str, str]] = []
    for pair in checks.items(letters, "letters", "pairs of a sequence and a queue"):
        if isinstance(pair, str | bytes) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise InvalidInput(f"letters: expected a pair of a sequence and a queue, got {format_value(pair)}")
        sequence, origin = pair
        pairs.append((codec.check_sequence(sequence, "letters"), check_queue_name(origin, "letters")))
    yield from sweep(queue)
    results: dict[tuple[str, str], RedriveResult] = {}
    for origin, sequences in _by_origin(sorted(set(pairs))).items():
        for result in (yield from _send(keyspace, queue, origin, sequences)):
            results[result.sequence, origin] = result
    return [results[pair] for pair in pairs]


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
            for sequence, result in zip(batch, answer.results, strict=False):
                limit = result[1:].decode() if result[:1] == b"!" else None
                outcome: Outcome = "full" if limit else "unavailable" if result == b"-" else "moved"
                done.append(RedriveResult(sequence, origin, outcome, limit))
    return done


def redrive(
    keyspace: Keyspace,
    queue: str,
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
    # letters that die during the redrive come behind the last sequence, so the redrive ends
    last = dict(zip(counters[::2], counters[1::2], strict=True))[b"last_id"].decode()
    closed = {queue}  # queues that take no further letter
    moved, after = 0, ""
    while (limit is None or moved < limit) and after < last and to not in closed:
        page = yield from peek(keyspace, queue, BATCH, after or None)
        if not page:
            break
        after = page[-1].sequence
        letters = [
            (letter.sequence, to or letter.deaths[0].queue)
            for letter in page
            if letter.state == "ready" and letter.deaths and letter.sequence <= last
            if reason in (None, letter.deaths[0].reason) and source in (None, letter.deaths[0].queue)
        ]
        while letters and (limit is None or moved < limit):
            most = len(letters) if limit is None else limit - moved
            moved += yield from _send_open(keyspace, queue, letters[:most], closed)
            letters = letters[most:]
    return moved


def _send_open(keyspace: Keyspace, queue: str, letters: Iterable[tuple[str, str]], closed: set[str]) -> Flow[int]:
    """Move letters to queues that are not `closed`, and close those that take none. Returns how many were moved."""
    moved = 0
    for origin, sequences in _by_origin(letters).items():
        if origin not in closed:
            results = yield from _send(keyspace, queue, origin, sequences)
            moved += sum(result.outcome == "moved" for result in results)
            if any(result.outcome in ("full", "no_origin") for result in results):
                closed.add(origin)
    return moved


def observed(events: Events, queue: str, flow: Flow[T]) -> Flow[T]:
    """Return a flow that redrives letters of a queue, with an observer around it if there is one."""
    return flow if events.observer is None else hook.settled(events.observer, queue, "redrive", (), flow)
