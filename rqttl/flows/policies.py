"""Flows about policies: changing the set of policies, and putting the options in force that follow from it.

The record of a queue names the version of the policies that its options in force come from. So no process is needed in
particular: a declaration, `reconcile` or a reaper that meets another version brings the queue up to date. Each write
holds only if neither the options of the queue nor that version has changed since they were read, and the version of the
policies is read after the record. So a slow process cannot put older policies in force again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import cast

from rqttl import units
from rqttl.checks import check_queue_name
from rqttl.errors import DataDamaged, PolicyNotFound, QueueNotFound
from rqttl.flows import reading, sweeping
from rqttl.flows.registry import registered
from rqttl.flows.steps import OUTDATED, Flow, GetConfig, GetPolicies, Read, dispatch, pipeline
from rqttl.flows.sweeping import sweep, swept
from rqttl.options import CONTROLS, ENDINGS, QueueOptions, UpdateResult, Value
from rqttl.policies import Explanation, Policy, PolicySet
from rqttl.policies.explanation import warn
from rqttl.policies.policy import check_policy_name, maker
from rqttl.protocol import commands, replies
from rqttl.protocol.commands import Ok, Options, QueueConfig, Refused, Walk
from rqttl.protocol.keys import Keyspace
from rqttl.types import Duration, PolicyResult, SweepResult

logger = logging.getLogger("rqttl")

#: Queues whose records one round trip reads and changes.
PAGE = 250
#: Sweeps of a queue after its options changed, at most. Reapers and the next calls on the queue do the rest.
ROUNDS = 4
#: Policies that one script call stores at most, and removes at most.
CHANGES = 500
#: The fields of a record from which the options in force follow.
_FIELDS = ("version", "options", "declared", "policies")


def read(keyspace: Keyspace) -> Flow[PolicySet]:
    """The set of policies that is stored now."""
    (fields,) = yield Read([("HGETALL", keyspace.policies)])
    return PolicySet.from_fields(replies.pairs(fields))


def current(keyspace: Keyspace, *, fails_fast: bool = False) -> Flow[PolicySet]:
    """The set of policies that is stored now, as remembered if that is its version."""
    (version,) = yield Read([version_call(keyspace)], fails_fast=fails_fast)
    return cast("PolicySet", (yield GetPolicies(version)))


def version_call(keyspace: Keyspace) -> tuple[str, ...]:
    """The command that reads the version of the policies. The step `GetPolicies` takes its reply."""
    return ("HGET", keyspace.policies, "version")


def change(keyspace: Keyspace, stored: Sequence[Policy], removed: Sequence[Policy] = ()) -> Flow[PolicyResult]:
    """Store policies and remove others, and put the options in force that follow.

    If the user has no right to change the queues, they are `denied` in the result.
    """
    touched = yield from store(keyspace, stored, removed)
    return (yield from reconcile(keyspace, (yield from matching(keyspace, touched)), may_be_denied=True))


def store(keyspace: Keyspace, stored: Sequence[Policy], removed: Sequence[Policy]) -> Flow[list[Policy]]:
    """Store policies and remove others, in one call unless there are very many. No queue changes by it.

    Returns all policies, old and new, whose queues are to be reconciled, also one that was stored already: an earlier
    call may have been killed before its end.
    """
    touched = [*stored, *removed]
    for start in range(0, max(len(stored), len(removed)), CHANGES):
        end = start + CHANGES
        touched += yield from _write(keyspace, stored[start:end], removed[start:end])
    return touched


def delete(keyspace: Keyspace, name: object, *, operator: bool) -> Flow[PolicyResult]:
    """Remove a policy, and put the options in force that follow. Raises `InvalidPolicy`, `PolicyNotFound`."""
    known = check_policy_name(name, operator=operator)
    policy = (yield from current(keyspace)).get(known, operator)
    if policy is None:
        raise PolicyNotFound(known, operator=operator)
    return (yield from change(keyspace, [], [policy]))


def matching(keyspace: Keyspace, policies: Sequence[Policy]) -> Flow[list[str]]:
    """The registered queues whose options depend on one of the policies: it matches the name, or made it."""
    names = yield from registered(keyspace)
    return [name for name in names if any(policy.matches(name) or maker(name, policy) for policy in policies)]


def _write(keyspace: Keyspace, stored: Sequence[Policy], removed: Sequence[Policy]) -> Flow[list[Policy]]:
    """Change the set. Returns the policies that stood in the place of others."""
    replaced: list[Policy] = []
    while True:
        before = yield from current(keyspace)
        after = before.changed(stored, removed)
        if after is before:  # also after a lost reply
            return replaced
        replaced += before.lost_in(after)
        fields = {policy.field: policy.as_json() for policy in stored}
        gone = [policy.field for policy in removed if before.get(policy.name, policy.operator)]
        answer = yield from dispatch(commands.change_policies(keyspace, before.version, fields, gone), ("stale",))
        if type(answer) is not Refused:
            warn_of_failover(answer, "policies")
            return replaced


def warn_of_failover(answer: Ok, changed: str) -> None:
    """Warn if a failover would take a change back: there should be a replica, and none has confirmed the change."""
    if why := commands.why_unconfirmed(answer.notes):
        logger.warning("%s: changed, but a failover now would undo it: %s", changed, why)


def preview(
    keyspace: Keyspace,
    stored: Sequence[Policy],
    removed: Sequence[Policy] = (),
    declared: Mapping[str, QueueOptions] = MappingProxyType({}),
    deleted: Container[str] = (),
) -> Flow[PolicyResult]:
    """The effect that a change of policies would have now, with other `declared` options, without `deleted` queues.

    Messages that are due under the options in force are swept before.
    """
    before = yield from current(keyspace)
    after = before.changed(stored, removed)
    matched = yield from matching(keyspace, [*stored, *removed, *before.lost_in(after)])
    names = [name for name in dict.fromkeys((*matched, *declared)) if name not in deleted]
    changed: dict[str, dict[str, tuple[Value | None, Value | None]]] = {}
    counts: list[UpdateResult] = []

    def look(queue: str) -> Flow[tuple[QueueConfig, Options]]:
        config, _ = yield from record(keyspace, queue)
        return config, following(after, declared.get(queue, config.declared))

    for start in range(0, len(names), PAGE):
        configs, _ = yield from records(keyspace, names[start : start + PAGE])
        for name, config in configs.items():
            change = Change(config, following(after, declared.get(name, config.declared)))
            if change.differences:
                changed[name] = change.differences
            if change.may_kill:
                with suppress(QueueNotFound):  # deleted meanwhile
                    yield from sweep(name)
                    counts.append((yield from count_deaths(keyspace, name, partial(look, name))))
    return PolicyResult(
        changed,
        sum(count.expired for count in counts),
        sum(count.trimmed for count in counts),
        ending=sum(count.ending for count in counts),
        ending_queues=sum(count.ending > 0 for count in counts),
        ends_after_ms=min((count.ends_after_ms for count in counts if count.ends_after_ms is not None), default=None),
    )


def count_deaths(
    keyspace: Keyspace, queue: str, look: Callable[[], Flow[tuple[QueueConfig, Options]]]
) -> Flow[UpdateResult]:
    """Count the messages that would die at once, and those that would end later unless a consumer comes.

    `look` reads the options in force, and those to compare.
    """
    walk = Walk()
    while True:
        config, options = yield from look()
        values = yield from dispatch(commands.preview(config, options.in_force, walk), OUTDATED)
        if type(values) is Refused:
            yield GetConfig(queue, fresh=True)  # raises where the queue is gone, and deletes one whose lifetime is over
        elif not values.more:
            break
        else:
            walk = Walk(*[getattr(values, name) for name in Walk._fields])
    result = UpdateResult(config.options, options.in_force, int(values.expired), int(values.trimmed))
    if not (times := _sooner(result.before, result.after)):
        return result
    stats = yield from reading.only(queue, reading.look(keyspace, [queue]))
    present = stats.ready + stats.delayed if times.keys() == {"message_ttl"} else stats.depth
    ending = max(0, present - result.expired - result.trimmed)
    return result._replace(ending=ending, ends_after_ms=min(times.values()) if ending else None)


def _sooner(before: QueueOptions, after: QueueOptions) -> dict[str, int]:
    """The options, with their times, that end messages in a queue sooner than before, unless a consumer comes."""
    harder = ENDINGS.index(str(after.on_expire)) < ENDINGS.index(str(before.on_expire))
    times: dict[str, int] = {}
    for name in ("message_ttl", *(_LIFETIMES if after.on_expire != "keep" and not after.passes_to else ())):
        old, new = None if before.passes_to and name in _LIFETIMES else before.number(name), after.number(name)
        if new is not None and (old is None or new < old or (harder and name in _LIFETIMES)):
            times[name] = new
    return times


def check(keyspace: Keyspace, policy: Policy) -> Flow[list[str]]:
    """Warnings about a policy, as if it were set, with all queues as they are."""
    policies = (yield from current(keyspace)).changed([policy])
    names = yield from registered(keyspace)
    queues: dict[str, QueueOptions] = {}
    for start in range(0, len(names), PAGE):
        configs, _ = yield from records(keyspace, names[start : start + PAGE])
        queues |= {name: policies.resolve(config.declared).options for name, config in configs.items()}
    return warn(policy, policies, queues)


def reconcile(
    keyspace: Keyspace, queues: Sequence[str], *, may_be_denied: bool = False, damaged: list[DataDamaged] | None = None
) -> Flow[PolicyResult]:
    """Put the options in force that follow from declared options and policies, where others are.

    Queues that are not there are left out; those in which more messages die than a few steps sweep are `unfinished`.
    With `may_be_denied` the queues that this user may not change are `denied` in the result. A queue that cannot be
    read keeps no other from its options: its error is raised at the end, or goes to `damaged`.
    """
    work = _Reconciliation(keyspace)
    left = list(queues)
    found: list[DataDamaged] = []
    try:
        while left:
            try:
                left = (yield from work.page(left[:PAGE])) + left[PAGE:]
            except DataDamaged as error:
                if error.queue not in left:
                    raise
                left.remove(error.queue)
                found.append(error)
    except Exception as error:
        from redis.exceptions import NoPermissionError  # slow to load: help has no use for it

        if not may_be_denied or not isinstance(error, NoPermissionError):
            raise
    if damaged is not None:
        damaged += found
    elif found:
        raise found[0]
    return PolicyResult(work.changed, work.expired, work.trimmed, tuple(sorted(work.unfinished)), tuple(left))


def reconcile_all(keyspace: Keyspace) -> Flow[PolicyResult]:
    """The same for all registered queues."""
    return (yield from reconcile(keyspace, (yield from registered(keyspace))))


class _Reconciliation:
    """The effect of one call of `reconcile` so far."""

    def __init__(self, keyspace: Keyspace) -> None:
        self._keyspace = keyspace
        self.changed: dict[str, dict[str, tuple[Value | None, Value | None]]] = {}
        self.unfinished: list[str] = []
        self.expired = self.trimmed = 0

    def page(self, queues: Sequence[str]) -> Flow[list[str]]:
        """Bring some queues up to date. Returns those to look at again: they changed meanwhile, or were not listed."""
        configs, policies = yield from records(self._keyspace, queues)
        changes = {name: change for name, config in configs.items() if (change := needed(config, policies))}
        # messages that are due under the options in force die before, and are not counted as an effect
        yield from self._sweep([change.config for change in changes.values() if change.acts_at_once])
        calls = [commands.apply_policies(change.config, change.options) for change in changes.values()]
        answers = yield from pipeline(calls, OUTDATED)
        refused = [name for name, answer in zip(changes, answers, strict=True) if type(answer) is Refused]
        yield from self._sweep([configs[name] for name in refused])  # deletes those whose lifetime is over
        done = {call.queue: call.word("next") for call in calls if call.queue not in refused}
        given_up: set[str] = set()
        for name in done:
            given_up |= sweeping.given_up(configs[name].options, changes[name].options.in_force)
        unlisted = yield from sweeping.register_missing(self._keyspace, given_up)
        acting = []
        for name, version in done.items():
            if changes[name].differences:
                config = changes[name].options.config(self._keyspace, version)
                yield GetConfig(name, newest=config)
                self.changed[name] = changes[name].differences
                if changes[name].acts_at_once:
                    acting.append(config)
        swept, left = yield from self._sweep(acting)
        self.expired += sum(step.expired for step in swept)
        self.trimmed += sum(step.trimmed for step in swept)
        self.unfinished += left
        return refused + unlisted

    def _sweep(self, configs: Sequence[QueueConfig]) -> Flow[tuple[list[SweepResult], list[str]]]:
        """Sweep queues together. Returns the sweeps, and the queues in which more is due."""
        done: list[SweepResult] = []
        left = list(configs)
        for _ in range(ROUNDS):
            answers = yield from pipeline([commands.sweep(config) for config in left], OUTDATED)
            sweeps = [None if type(answer) is Refused else swept(answer) for answer in answers]
            done += filter(None, sweeps)
            left = [config for config, step in zip(left, sweeps, strict=True) if step and step.more]
        return done, [config.name for config in left]


def outdated(keyspace: Keyspace, queues: Sequence[str]) -> Flow[dict[str, Change]]:
    """The queues whose options in force are not those that follow, each with the change that is needed."""
    configs, policies = yield from records(keyspace, queues)
    changes = {name: needed(config, policies) for name, config in configs.items()}
    return {name: change for name, change in changes.items() if change and change.differences}


def record(keyspace: Keyspace, queue: str) -> Flow[tuple[QueueConfig, PolicySet]]:
    """The record of one queue; see `records`. Raises `QueueNotFound`."""
    configs, policies = yield from records(keyspace, [queue])
    if queue not in configs:
        raise QueueNotFound(queue)
    return configs[queue], policies


def records(keyspace: Keyspace, queues: Sequence[str]) -> Flow[tuple[dict[str, QueueConfig], PolicySet]]:
    """The record of each queue that is there, and a set of policies that is no older than any of them.

    Redis may serve other clients between two commands of one round trip, so the version is read last.
    """
    calls = [("HMGET", keyspace.key(queue, "meta"), *_FIELDS) for queue in queues]
    *stored, version = yield Read(calls, then=[version_call(keyspace)])
    policies = yield GetPolicies(version)
    fields = {queue: reply for queue, reply in zip(queues, stored, strict=True) if reply[0] is not None}
    return {queue: QueueConfig.read(keyspace, queue, *reply) for queue, reply in fields.items()}, policies


def explain(keyspace: Keyspace, queue: str, ttl: Duration | None, *, name_only: bool = False) -> Flow[Explanation]:
    """Explain the options of a queue, or of one that does not exist yet: then only its name counts. It only reads."""
    ms = None if ttl is None else int(units.duration(ttl, "ttl"))
    if name_only:
        policies = yield from current(keyspace)
        return Explanation.of(policies.resolve(QueueOptions(check_queue_name(queue), {})), ms)
    from redis.exceptions import ConnectionError, TimeoutError  # slow to load: help has no use for it

    (fields,) = yield Read([("HMGET", keyspace.key(queue, "meta"), *_FIELDS)])
    if fields[0] is None:
        raise QueueNotFound(queue)
    config = QueueConfig.read(keyspace, queue, *fields)
    try:
        policies = yield from current(keyspace, fails_fast=keyspace.slotted)
    except (ConnectionError, TimeoutError) as error:
        if not keyspace.slotted:
            raise
        logger.warning("queue %s: cannot read the policies now, so they are not named: %s", queue, error)
        return Explanation.without_policies(PolicySet().resolve(config.declared), ms, config.options)
    return Explanation.of(policies.resolve(config.declared), ms, config.options)


#: The options whose change may let messages die at once.
_DEADLY = ("message_ttl", "max_length", "max_length_bytes", "overflow")
#: The options that end a queue with its messages.
_LIFETIMES = ("expires", "auto_delete_on_idle")


@dataclass(frozen=True, slots=True)
class Change:
    """A queue that is not up to date: its options in force, or only the version of the policies that they name."""

    config: QueueConfig
    options: Options

    @property
    def differences(self) -> dict[str, tuple[Value | None, Value | None]]:
        """The differing options, each with both values."""
        before, after = self.config.options, self.options.in_force
        return {} if before == after else before.differences(after)

    @property
    def acts_at_once(self) -> bool:
        """True if a sweep makes the change act: messages may die, or consumers that wait may go on."""
        return not self.differences.keys().isdisjoint((*_DEADLY, *CONTROLS))

    @property
    def may_kill(self) -> bool:
        """True if messages may die by the change, at once or later."""
        return not self.differences.keys().isdisjoint((*_DEADLY, *_LIFETIMES, "on_expire"))


def following(policies: PolicySet, declared: QueueOptions) -> Options:
    """The options in force that follow for a queue with these declared options."""
    return Options(declared, policies.resolve(declared).options, policies.version)


def needed(config: QueueConfig, policies: PolicySet) -> Change | None:
    """The change that brings a queue up to date; `None` if it is."""
    options = following(policies, config.declared)
    is_done = options.in_force == config.options and config.policies == policies.version
    return None if is_done else Change(config, options)
