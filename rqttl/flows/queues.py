"""Flows about one queue as a whole: declaring, changing, deleting; and what scripts ask a client to do for others."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from rqttl.errors import (
    DataDamaged,
    InvalidOption,
    PolicyDecides,
    QueueInUse,
    QueueMismatch,
    QueueNotFound,
    RqttlError,
)
from rqttl.flows import moving, policies, reading, registry, sweeping, topics
from rqttl.flows.policies import count_deaths, following, reconcile, record, records, version_call, warn_of_failover
from rqttl.flows.steps import (
    EXPIRED,
    NOT_THERE,
    OUTDATED,
    Flow,
    GetConfig,
    GetConfigs,
    GetPolicies,
    HandleNotes,
    Publish,
    Read,
    ReadEachNode,
    Recent,
    Register,
    Unregister,
    dispatch,
    existing,
    pipeline,
)
from rqttl.flows.sweeping import SWEEPS, config_if_exists, config_of, retire, sweep
from rqttl.options import QueueOptions, UpdateResult, written
from rqttl.policies import PolicySet
from rqttl.protocol import commands
from rqttl.protocol.commands import CONFIRMING, Command, Options, QueueConfig, Refused, unconfirmed
from rqttl.protocol.keys import Keyspace
from rqttl.types import Declared

#: The answers of declare.lua.
DECLARED: tuple[Declared, ...] = ("existing", "created", "adopted")


def declare(keyspace: Keyspace, declared: QueueOptions) -> Flow[Declared]:
    """Create a queue, adopt it, or find it with the same declared options.

    The flow adds the name to the registry first, so every queue is listed. It writes nothing there for a listed queue:
    Redis without free memory would refuse the write. Policies that change meanwhile are applied before the flow ends:
    it compares the version in the reply with the one that is stored after the queue was made. The switches of a queue
    that was declared before stay as they are: an operator who pauses stops no worker from starting. On a cluster the
    flow finds a queue that is there as declared also while the node of registry and policies is away.
    """
    queue = declared.queue
    yield from _check_durability(declared)
    yield from _check_forward(keyspace, declared)
    entered = yield from _entered(keyspace, declared)
    if entered is None:
        return "existing"
    listed, policies = entered
    config: QueueConfig | None = None
    while True:
        options = following(policies, declared)
        command = commands.declare(keyspace, options, "" if config is None else config.policies)
        answer = yield from dispatch(command, ("mismatch", "stale", *EXPIRED))
        if type(answer) is not Refused:
            break
        if answer.code == "mismatch":
            stored = QueueOptions.from_json(queue, answer.details[0])
            if declared.declares(stored):
                declared = stored
                continue
            if declared.is_topic is not stored.is_topic:
                raise other_kind(queue, is_topic=stored.is_topic)
            differences = declared.differences(stored)
            texts = {name: (written(name, ours), written(name, theirs)) for name, (ours, theirs) in differences.items()}
            raise QueueMismatch(queue, differences, texts)
        if answer.code == "stale":
            yield from reconcile(keyspace, [queue])
            config = (yield from records(keyspace, [queue]))[0].get(queue)
        else:
            version, ended = answer.details
            yield from retire(Options(declared, QueueOptions.from_json(queue, ended)).config(keyspace, version))
        listed, policies = yield from _enter(keyspace, queue)  # `retire` removed it
    if answer.made or not listed:
        warn_of_failover(answer, f"queue {queue}")
        # A change of policies looks at members only: one may have missed the queue. And another client may have removed
        # the name since, after the end of an older queue of this name.
        _, policies = yield from _enter(keyspace, queue)
    if int(answer.policies) != policies.version:
        yield from reconcile(keyspace, [queue])
    else:
        # the config comes from the call, not from a new look: the lifetime of the declared queue may be over by now
        in_force = QueueOptions.from_json(queue, answer.options) if answer.options else options.in_force
        known = Options(declared, in_force, policies.version).config(keyspace, answer.version)
        yield GetConfig(queue, newest=known)
    made: int = answer.made
    return DECLARED[made]


def other_kind(queue: str, *, is_topic: bool) -> QueueMismatch:
    """The error for a queue that should be a topic, or for a topic that should be none."""
    kinds = "a topic" if is_topic else "no topic", "a queue" if is_topic else "a topic"
    return QueueMismatch(
        queue, {}, text=f"queue {queue!r} is {kinds[0]}, and never becomes {kinds[1]}: delete it first"
    )


def _entered(keyspace: Keyspace, declared: QueueOptions) -> Flow[tuple[bool, PolicySet] | None]:
    """See `_enter`. The answer is `None` if the queue is there as declared, and the node of the registry away."""
    if keyspace.slotted:
        from redis.exceptions import ConnectionError, RedisError, TimeoutError  # slow to load: help has no use for it

        try:
            return (yield from _enter(keyspace, declared.queue, fails_fast=True))
        except RedisError as error:  # another node may have the registry in a moment
            if isinstance(error, ConnectionError | TimeoutError) and (yield from _is_there(keyspace, declared)):
                return None
    return (yield from _enter(keyspace, declared.queue))


def _is_there(keyspace: Keyspace, declared: QueueOptions) -> Flow[bool]:
    """Return True if the queue exists with these declared options, whatever its switches. It asks no other node."""
    known = yield from config_if_exists(keyspace, declared.queue)
    if known is None or not declared.declares(known.declared):
        return False
    yield GetConfig(declared.queue, newest=known)
    return True


def _enter(keyspace: Keyspace, queue: str, *, fails_fast: bool = False) -> Flow[tuple[bool, PolicySet]]:
    """Enter a queue into the registry if it is missing. Returns True if it was there, and the policies of before."""
    listed, version = yield Read(
        [("SISMEMBER", keyspace.registry, queue), version_call(keyspace)], fails_fast=fails_fast
    )
    if not listed:
        yield Register(queue)
    return bool(listed), (yield GetPolicies(version))


def pause(keyspace: Keyspace, queue: str, *, paused: bool) -> Flow[UpdateResult]:
    """Pause or resume a queue. Raises `PolicyDecides`, and changes nothing then."""
    config, policies = yield from record(keyspace, queue)
    resolution = policies.resolve(config.declared.changed({"paused": paused}))
    if bool(resolution.options.paused) is not paused:
        raise PolicyDecides(queue, paused=not paused, source=resolution.claims["paused"][0].source)
    return (yield from update(keyspace, queue, {"paused": paused}))


def touch(keyspace: Keyspace, queue: str) -> Flow[None]:
    """Restart the lifetime of a queue."""
    yield from existing(queue, commands.touch(keyspace, queue))


def update(keyspace: Keyspace, queue: str, changes: Mapping[str, object]) -> Flow[UpdateResult]:
    """Change declared options. They act on the present messages; the result counts the messages that die by it."""
    config, changed = yield from _look(keyspace, queue, changes)  # raises before anything is swept
    if changed.declared.durability != config.declared.durability:
        yield from _check_durability(changed.declared)
    # Messages that are due under the old options die before the change, so the result does not count them.
    yield from sweep(queue)
    while True:
        config, options = yield from _look(keyspace, queue, changes)
        command = commands.update(config, options)
        answer = yield from dispatch(command, OUTDATED)
        if type(answer) is not Refused:
            break
        yield GetConfig(queue, fresh=True)  # a queue whose lifetime is over is deleted by it
    warn_of_failover(answer, f"queue {queue}")
    before, after = config.options, options.in_force
    yield from reconcile(keyspace, (yield from sweeping.register_missing(keyspace, sweeping.given_up(before, after))))
    known = yield from config_if_exists(keyspace, queue)
    if known is None:
        return UpdateResult(before, after, 0, 0)  # its lifetime was over at once
    yield GetConfig(queue, newest=known)
    swept = yield from sweep(queue)
    return UpdateResult(before, after, sum(step.expired for step in swept), sum(step.trimmed for step in swept))


def preview(keyspace: Keyspace, queue: str, changes: Mapping[str, object]) -> Flow[UpdateResult]:
    """Count the messages that would end by `update`. Sweeps the queue first, as `update` does."""
    yield from _look(keyspace, queue, changes)
    yield from sweep(queue)
    return (yield from count_deaths(keyspace, queue, partial(_look, keyspace, queue, changes)))


def _look(keyspace: Keyspace, queue: str, changes: Mapping[str, object]) -> Flow[tuple[QueueConfig, Options]]:
    """The record of a queue now, and its options after the changes. Raises where the changes do not fit to them."""
    config, policies = yield from record(keyspace, queue)
    declared = config.declared.changed(changes)
    if declared.forward_to != config.declared.forward_to:
        yield from _check_forward(keyspace, declared)
    return config, following(policies, declared)


def _check_forward(keyspace: Keyspace, declared: QueueOptions) -> Flow[None]:
    """Raise `InvalidOption` if no step can forward to the target, or if messages would come back."""
    check_target(keyspace, declared)
    target = declared.forwards_to
    if target and (way := (yield from topics.comes_back(declared.queue, [target]))):
        raise InvalidOption(f"forward_to: messages would come back: {way}")


def check_target(keyspace: Keyspace, declared: QueueOptions) -> None:
    """Raise `InvalidOption` if a queue would forward to another slot."""
    target = declared.forwards_to
    if target and (fault := topics.slot_fault(keyspace, declared.queue, target)):
        raise InvalidOption(f"forward_to: {fault}")


def _check_durability(declared: QueueOptions) -> Flow[None]:
    """Raise `InvalidOption` if a server cannot sync to disk, and warn if one has no replica now."""
    if not (fault := (yield from durability_fault(str(declared.durability)))):
        return
    if declared.durability == "disk":
        raise InvalidOption(f"durability: disk needs `appendonly yes` and Redis 7.2 or later: {fault}")
    logger.warning("queue %s: durability is replica, but nothing confirms it now: %s", declared.queue, fault)


def durability_fault(durability: str) -> Flow[str]:
    """Why a server cannot keep a `durability` now; empty if all can that answer."""
    if durability not in CONFIRMING:
        return ""
    from redis.exceptions import ResponseError  # slow to load: help has no use for it

    call = (*CONFIRMING[durability][:-1], "100")  # without a write before it a replica confirms at once
    answers = yield ReadEachNode([("PING",), call], keep_errors=True)
    faults = [unconfirmed(one) for _, one in answers.values() if one == 0 or isinstance(one, ResponseError)]
    return faults[0] if faults else ""


def preview_declaration(keyspace: Keyspace, declared: QueueOptions) -> Flow[UpdateResult | None]:
    """See `Broker.preview_declaration`."""
    found = yield from registry.records(keyspace, [declared.queue], ("explicit",))
    if found[declared.queue] != [b"0"]:
        return None
    return (yield from preview(keyspace, declared.queue, declared.as_arguments()))


def delete(keyspace: Keyspace, queue: str, *, if_unused: bool, if_empty: bool) -> Flow[int]:
    """Delete a queue and remove its name from the registry. Expired messages die first.

    The subscriptions of a topic go before it. So a topic that is left by a crash still knows those that are left.
    """
    conditions, removed = {"if_unused": if_unused, "if_empty": if_empty}, 0
    yield from sweep(queue)
    while True:
        config: QueueConfig = yield GetConfig(queue)
        subscriptions = config.options.subscriptions
        if subscriptions and (if_unused or if_empty):
            yield from _check_conditions(keyspace, [queue, *subscriptions], conditions)
        for name in subscriptions:
            with suppress(QueueNotFound):  # deleted meanwhile
                removed += (yield from _delete(commands.delete(keyspace, name, **conditions), stays_bound=True)) or 0
        known = config.version if config.passes_on else b""
        last = yield from _delete(commands.delete(keyspace, queue, known=known, **conditions))
        if last is not None:
            return removed + last
        yield GetConfig(queue, fresh=True)  # another subscription has come


def _check_conditions(keyspace: Keyspace, names: Sequence[str], conditions: Mapping[str, bool]) -> Flow[None]:
    """Raise `QueueInUse` if one of these queues does not meet the conditions of a deletion."""
    for name in names[1:]:
        with suppress(QueueNotFound):
            yield from sweep(name)
    for name, stats in (yield from reading.look(keyspace, names)).items():
        for condition, count in (("if_unused", stats.consumers), ("if_empty", stats.depth)):
            if conditions[condition] and count:
                raise QueueInUse(name, condition, count)


def _delete(command: Command, *, stays_bound: bool = False) -> Flow[int | None]:
    """Delete a queue by this command. Returns the number of ready messages; `None` if it has other options now."""
    answer = yield from dispatch(command, ("in_use", "stale"))
    if type(answer) is not Refused:
        yield Unregister(command.queue, stays_bound)
        return int(answer.removed)
    if answer.code == "stale":
        return None
    condition, count = answer.details
    raise QueueInUse(command.queue, condition.decode(), count)


logger = logging.getLogger("rqttl")


#: A note of a script: what is to be done, and for which queue.
_Note = tuple[bytes, bytes]


def follow(keyspace: Keyspace, notes: Sequence[bytes], forbidden: set[str], held: dict[str, str]) -> Flow[None]:
    """Do the work of each note: register, unregister or sweep a queue, pass on, or move dead letters to other slots.

    The call of the script has succeeded and must not seem to have failed: errors are logged, and reapers do the work.
    `forbidden` are the targets in other slots on which the user has no rights: others move dead letters there, unless a
    sweep asks. `held` has what holds back the messages of each topic, as it was logged.
    """
    pending = deque(_pairs(notes))
    while pending:
        kind, name = pending.popleft()
        queue, _, target = name.decode().partition(">")
        try:
            if kind == b"pass":
                pending += yield from _pass_on(keyspace, queue, held)
            elif kind != b"move" or target not in forbidden:
                pending += yield from _follow_up(keyspace, kind, queue, target)
        except QueueNotFound:
            continue  # deleted meanwhile, so there is nothing left to do
        except Exception as error:
            # slow to load: a program that only prints help has no use for it
            from redis.exceptions import NoPermissionError, RedisError

            if not isinstance(error, RedisError | RqttlError):  # a signal handler may raise anywhere
                raise
            is_forbidden = (target or kind == b"pass") and isinstance(error, NoPermissionError)
            forbidden.update([target] * bool(is_forbidden))
            level = logging.DEBUG if is_forbidden else logging.WARNING
            text = "queue %s: could not follow up on %s; a reaper will: %s"
            text = "queue %s: could not move dead letters to %s; a reaper will: %s" if target else text
            logger.log(level, text, queue, target.rpartition(">")[2] or kind.decode(), error)


def _pairs(notes: Sequence[bytes]) -> list[_Note]:
    """Each of the notes once."""
    return list(dict.fromkeys(zip(notes[::2], notes[1::2], strict=True)))


def _follow_up(keyspace: Keyspace, kind: bytes, queue: str, target: str) -> Flow[list[_Note]]:
    """Do the work of a note. Returns notes of it."""
    if kind == b"created":
        yield Register(queue)
        yield from policies.reconcile(keyspace, [queue])
        return [(b"move", queue.encode())] * keyspace.slotted  # of an older queue of this name
    if kind == b"deleted":
        yield Unregister(queue)
    elif kind == b"sweep":
        yield from sweep(queue, rounds=SWEEPS)
    else:
        return [(b"swept", note) for note in (yield from moving.resume(keyspace, queue, target))]
    return []


def _pass_on(keyspace: Keyspace, topic: str, held: dict[str, str]) -> Flow[list[_Note]]:
    """Pass on what waits at a topic or a queue that forwards; log once what holds it back. Returns notes of it."""
    passed = yield from topics.pass_on(keyspace, topic)
    if passed.why and held.get(topic) != passed.why:
        logger.warning("queue %s: messages wait: %s", topic, passed.why)
    held[topic] = passed.why
    return _pairs(passed.notes)


#: The number of queues whose configs a client keeps. It reads any other from Redis again.
REMEMBERED = 10_000


class Memory:
    """What a driver remembers: the configs of the queues that were used last, and the policies that were read last.

    It answers the steps about them. A config may be out of date: a script answers `stale` then, and a fresh look
    replaces it.
    """

    def __init__(self, keyspace: Keyspace) -> None:
        self._keyspace = keyspace
        self.configs: Recent[QueueConfig] = Recent(REMEMBERED)
        self.policies = PolicySet()
        #: The targets of dead letters in other slots on which the user has no rights.
        self.forbidden: set[str] = set()
        #: What holds back the messages of each topic, as it was logged.
        self.held: dict[str, str] = {}
        #: For each kind of step a function that returns its answer, or the flow that finds it.
        self.answers: Mapping[type, Callable[[Any], Any]] = {
            GetConfig: self._config,
            GetConfigs: self._configs,
            GetPolicies: self._policies,
            Register: lambda step: registry.register(keyspace, step.queue),
            Unregister: self._unregister,
            Publish: lambda step: topics.publish(keyspace, step.config, step.messages, step.window),
            HandleNotes: lambda step: follow(keyspace, step.notes, self.forbidden, self.held),
        }

    def _config(self, step: GetConfig) -> QueueConfig | Flow[QueueConfig]:
        if step.newest is not None:
            self.configs.put(step.queue, step.newest)
            return step.newest
        remembered = None if step.fresh else self.configs.get(step.queue)
        return self._read_config(step) if remembered is None else remembered

    def _read_config(self, step: GetConfig) -> Flow[QueueConfig]:
        """Ask Redis about a queue, and remember the answer. A queue at the end of its lifetime is deleted first."""
        config = yield from config_if_exists(self._keyspace, step.queue, for_sweep=step.for_sweep)
        if config is None:
            self.configs.pop(step.queue, None)
            raise QueueNotFound(step.queue)
        self.configs.put(step.queue, config)
        return config

    def _configs(self, step: GetConfigs) -> dict[str, QueueConfig | None] | Flow[dict[str, QueueConfig | None]]:
        found = {name: None if step.fresh else self.configs.get(name) for name in step.queues}
        return self._read_configs(found) if None in found.values() else found

    def _read_configs(self, found: dict[str, QueueConfig | None]) -> Flow[dict[str, QueueConfig | None]]:
        """Ask Redis about the queues that are not remembered, and remember the answers."""
        missing = [name for name, config in found.items() if config is None]
        answers = yield from pipeline([commands.lookup(self._keyspace, name) for name in missing], NOT_THERE)
        for name, answer in zip(missing, answers, strict=True):
            if type(answer) is not Refused:
                found[name] = config = config_of(self._keyspace, name, answer)
                self.configs.put(name, config)
            elif answer.code == "not_found":
                self.configs.pop(name, None)
            else:
                with suppress(QueueNotFound):
                    found[name] = yield GetConfig(name, fresh=True)  # this step deletes a queue at its end
        return found

    def _policies(self, step: GetPolicies) -> PolicySet | Flow[PolicySet]:
        is_current = b"%d" % self.policies.version == (step.version or b"0")
        return self.policies if is_current else self._read_policies()

    def _read_policies(self) -> Flow[PolicySet]:
        self.policies = yield from policies.read(self._keyspace)
        return self.policies

    def _unregister(self, step: Unregister) -> Flow[int]:
        self.configs.pop(step.queue, None)
        topic = step.queue.rpartition("/")[0]
        if topic and not step.stays_bound:
            with suppress(DataDamaged):  # the queue is deleted, whatever stands in another record
                yield from topics.unbind_gone(self._keyspace, topic, [step.queue])
        return (yield from registry.unregister(self._keyspace, step.queue))
