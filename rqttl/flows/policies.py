"""Flows about policies: changing the set of policies, and putting the options in force that follow from it.

The record of a queue names the version of the policies that its options in force come from. So no process is needed in
particular: a declaration, `reconcile` or a reaper that meets another version brings the queue up to date. Each write
holds only if neither the options of the queue nor that version has changed since they were read, and the version of the
policies is read after the record. So a slow process cannot put older policies in force again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from rqttl import units
from rqttl.errors import DataDamaged, PolicyNotFound, QueueNotFound
from rqttl.flows import sweeping
from rqttl.flows.registry import members
from rqttl.flows.steps import OUTDATED, Flow, GetConfig, GetPolicies, Read, dispatch, in_one_round_trip
from rqttl.flows.sweeping import count_deaths, sweep, swept
from rqttl.names import check_queue_name
from rqttl.options import QueueOptions, Value
from rqttl.policies import Explanation, Policy, PolicySet
from rqttl.policies.policy import check_policy_name
from rqttl.policies.policy_set import UNKNOWN, is_version
from rqttl.policies.targets import maker
from rqttl.policies.warnings import warn
from rqttl.protocol import commands
from rqttl.protocol.commands import Options, QueueConfig, Refused, Word
from rqttl.protocol.keys import Keyspace, queue_names
from rqttl.types import PolicyResult, SweepResult
from rqttl.units import Duration

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
    if isinstance(fields, Exception):
        return PolicySet(
            UNKNOWN, damaged={"version": f"the key {keyspace.policies} has another type than rqttl gave it"}
        )
    return PolicySet.from_fields(dict(pairs(fields)))


def pairs(fields: Any) -> Iterable[tuple[bytes, bytes]]:
    """The fields of a reply to HGETALL: RESP3 gives a mapping, RESP2 a list."""
    return fields.items() if isinstance(fields, Mapping) else zip(fields[::2], fields[1::2], strict=True)


def current(keyspace: Keyspace) -> Flow[PolicySet]:
    """The set of policies that is stored now, from memory if its version is known."""
    (version,) = yield Read([version_call(keyspace)])
    return (yield from of_version(version))


def version_call(keyspace: Keyspace) -> tuple[str, ...]:
    """The command that reads the version of the policies. `of_version` takes its reply."""
    return ("HGET", keyspace.policies, "version")


def of_version(version: Any) -> Flow[PolicySet]:
    """The policies of the version in a reply of Redis, or newer ones."""
    policies: PolicySet = yield GetPolicies(_number(version))
    return policies


def _number(version: Any) -> int:
    return UNKNOWN if isinstance(version, Exception) or not is_version(version or b"0") else int(version or 0)


# Changing the set


def change(keyspace: Keyspace, stored: Sequence[Policy], removed: Sequence[Policy] = ()) -> Flow[PolicyResult]:
    """Store policies and remove others, and put the options in force that follow.

    If the user has no right to change the queues, they are `denied` in the result.
    """
    touched = yield from store(keyspace, stored, removed)
    names = yield from matching(keyspace, touched)
    work = _Reconciliation(keyspace)
    try:
        yield from work.run(names)
    except Exception as error:
        from redis.exceptions import NoPermissionError  # slow to load: help has no use for it

        if not isinstance(error, NoPermissionError):
            raise
        return work.result(denied=True)
    return work.result()


def store(keyspace: Keyspace, stored: Sequence[Policy], removed: Sequence[Policy]) -> Flow[list[Policy]]:
    """Store policies and remove others, in one call unless there are very many. No queue changes by it.

    Returns all policies, old and new, whose queues are to be reconciled. A policy that is stored already is one of
    them: an earlier call may have been killed before its end.
    """
    touched = [*stored, *removed]
    for start in range(0, max(len(stored), len(removed)), CHANGES):
        end = start + CHANGES
        touched += yield from _write(keyspace, stored[start:end], removed[start:end])
    return touched


def delete(keyspace: Keyspace, name: object, *, operator: bool) -> Flow[PolicyResult]:
    """Remove a policy, and put the options in force that follow. Raises `InvalidPolicy`, `PolicyNotFound`."""
    known = check_policy_name(name, operator=operator)
    policy = (yield from current(keyspace)).find(known, operator)
    if policy is None:
        raise PolicyNotFound(known, operator=operator)
    return (yield from change(keyspace, [], [policy]))


def matching(keyspace: Keyspace, policies: Sequence[Policy]) -> Flow[list[str]]:
    """The registered queues whose options depend on one of the policies: it matches the name, or made it."""
    names = queue_names((yield from members(keyspace)))
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
        gone = [policy.field for policy in removed if before.find(policy.name, policy.operator)]
        answer = yield from dispatch(commands.change_policies(keyspace, before.version, fields, gone), ("stale",))
        if type(answer) is not Refused:
            return replaced


def preview(
    keyspace: Keyspace,
    stored: Sequence[Policy],
    removed: Sequence[Policy] = (),
    declared: Mapping[str, QueueOptions] = MappingProxyType({}),
    deleted: Container[str] = (),
) -> Flow[PolicyResult]:
    """The effect that a change of policies would have now, together with other `declared` options for some queues.

    Messages that are due under the options in force are swept before. Queues that will be `deleted` are left out.
    """
    before = yield from current(keyspace)
    after = before.changed(stored, removed)
    matched = yield from matching(keyspace, [*stored, *removed, *before.lost_in(after)])
    names = [name for name in dict.fromkeys((*matched, *declared)) if name not in deleted]
    work = _Reconciliation(keyspace)
    for start in range(0, len(names), PAGE):
        yield from work.preview_page(names[start : start + PAGE], after, declared)
    return work.result()


def check(keyspace: Keyspace, policy: Policy) -> Flow[list[str]]:
    """Warnings about a policy, as if it were set, with all queues as they are."""
    policies = (yield from current(keyspace)).with_policy(policy)
    names = queue_names((yield from members(keyspace)))
    queues: dict[str, QueueOptions] = {}
    for start in range(0, len(names), PAGE):
        configs, _ = yield from records(keyspace, names[start : start + PAGE], {})
        queues |= {name: policies.resolve(config.declared).options for name, config in configs.items()}
    return warn(policy, policies, queues)


# Putting options in force


def reconcile(keyspace: Keyspace, queues: Sequence[str]) -> Flow[PolicyResult]:
    """Put the options in force that follow from declared options and policies, where others are.

    Queues that are not there are left out. Messages that the change lets die go in bounded steps: queues with more of
    them are `unfinished`.
    """
    work = _Reconciliation(keyspace)
    yield from work.run(queues)
    return work.result()


def reconcile_all(keyspace: Keyspace) -> Flow[PolicyResult]:
    """The same for all registered queues."""
    return (yield from reconcile(keyspace, queue_names((yield from members(keyspace)))))


class _Reconciliation:
    """One call of `reconcile` or `preview`, and its effect so far."""

    def __init__(self, keyspace: Keyspace) -> None:
        self._keyspace = keyspace
        self._changed: dict[str, dict[str, tuple[Value | None, Value | None]]] = {}
        self._damaged: dict[str, DataDamaged] = {}
        self._unfinished: list[str] = []
        self._todo: list[str] = []
        self._expired = self._trimmed = 0

    def result(self, *, denied: bool = False) -> PolicyResult:
        """The effect of all of it. `denied`: the user had no right to change the queues that are left."""
        unfinished, left = tuple(sorted(self._unfinished)), tuple(self._todo) if denied else ()
        return PolicyResult(self._changed, self._expired, self._trimmed, unfinished, self._damaged, left)

    def run(self, queues: Sequence[str]) -> Flow[None]:
        """Bring queues up to date, page by page."""
        self._todo = list(queues)
        while self._todo:
            changed_meanwhile = yield from self.page(self._todo[:PAGE])
            self._todo = changed_meanwhile + self._todo[PAGE:]

    def preview_page(
        self, queues: Sequence[str], policies: PolicySet, declared: Mapping[str, QueueOptions]
    ) -> Flow[None]:
        """Count the effect of other policies, and of other `declared` options, on some queues."""

        def after(config: QueueConfig) -> Options:
            return following(policies, declared.get(config.name, config.declared), config)

        configs, _ = yield from records(self._keyspace, queues, self._damaged)
        for name, config in configs.items():
            change = Change(config, after(config))
            if not change.differences:
                continue
            self._changed[name] = change.differences
            if change.may_kill:
                with suppress(QueueNotFound):  # deleted meanwhile
                    yield from sweep(name)
                    result = yield from count_deaths(name, partial(self._look, name, after))
                    self._expired, self._trimmed = self._expired + result.expired, self._trimmed + result.trimmed

    def _look(self, queue: str, after: Callable[[QueueConfig], Options]) -> Flow[tuple[QueueConfig, QueueOptions]]:
        configs, _ = yield from records(self._keyspace, [queue], self._damaged)
        if queue not in configs:
            raise QueueNotFound(queue)
        return configs[queue], after(configs[queue]).in_force

    def page(self, queues: Sequence[str]) -> Flow[list[str]]:
        """Bring some queues up to date. Returns those to look at again: they changed meanwhile, or were not listed."""
        configs, policies = yield from records(self._keyspace, queues, self._damaged)
        changes = {name: change for name, config in configs.items() if (change := needed(config, policies))}
        # messages that are due under the options in force die before, and are not counted as an effect
        yield from self._sweep([change.config for change in changes.values() if change.may_kill])
        calls = [commands.apply_policies(change.config, change.options) for change in changes.values()]
        answers = yield from in_one_round_trip(calls, OUTDATED, self._damaged)
        refused = [name for name, answer in answers.items() if type(answer) is Refused]
        yield from self._sweep([configs[name] for name in refused])  # deletes those whose lifetime is over
        stale = [name for name in refused if name not in self._damaged]
        done = {call.queue: call.word("next") for call in calls if call.queue in answers and call.queue not in refused}
        given_up = {target for name in done for target in changes[name].given_up}
        unlisted = yield from sweeping.register_missing(self._keyspace, given_up)
        yield from self._let_die({name: changes[name] for name in done if changes[name].differences}, done)
        return stale + unlisted

    def _let_die(self, changes: Mapping[str, Change], versions: Mapping[str, Word]) -> Flow[None]:
        """Sweep the queues whose messages may be dead by their new options, in bounded steps."""
        deadly = []
        for name, change in changes.items():
            config = change.options.config(self._keyspace, versions[name])
            yield GetConfig(name, newest=config)
            self._changed[name] = change.differences
            if change.may_kill:
                deadly.append(config)
        swept, left = yield from self._sweep(deadly)
        self._expired += sum(step.expired for step in swept)
        self._trimmed += sum(step.trimmed for step in swept)
        self._unfinished += left

    def _sweep(self, configs: Sequence[QueueConfig]) -> Flow[tuple[list[SweepResult], list[str]]]:
        """Sweep queues together. Returns the sweeps, and the queues in which more is due."""
        done: list[SweepResult] = []
        left = list(configs)
        for _ in range(ROUNDS):
            calls = [commands.sweep(config) for config in left]
            answers = yield from in_one_round_trip(calls, OUTDATED, self._damaged)
            values = {name: swept(answer) for name, answer in answers.items() if type(answer) is not Refused}
            done += values.values()
            left = [config for config in left if config.name in values and values[config.name].more]
        return done, [config.name for config in left]


def outdated(keyspace: Keyspace, queues: Sequence[str]) -> Flow[dict[str, Change]]:
    """The queues whose options in force are not those that follow, each with the change that is needed."""
    configs, policies = yield from records(keyspace, queues, {})
    changes = {name: needed(config, policies) for name, config in configs.items()}
    return {name: change for name, change in changes.items() if change and change.differences}


def records(
    keyspace: Keyspace, queues: Sequence[str], damaged: dict[str, DataDamaged]
) -> Flow[tuple[dict[str, QueueConfig], PolicySet]]:
    """The record of each queue that is there, and a set of policies that is no older than any of them.

    Redis may serve other clients between two commands of one round trip, so the version is read last.
    """
    calls = [("HMGET", keyspace.key(queue, "meta"), *_FIELDS) for queue in queues]
    *replies, version = yield Read([*calls, version_call(keyspace)])
    policies = yield from of_version(version)
    configs: dict[str, QueueConfig] = {}
    for queue, reply in zip(queues, replies, strict=True):
        if isinstance(reply, Exception):
            damaged[queue] = DataDamaged.of_key(queue, keyspace.key(queue, "meta"))
        elif reply[0] is not None:
            try:
                configs[queue] = QueueConfig.read(keyspace, queue, *reply)
            except DataDamaged as error:
                damaged[queue] = error
    return configs, policies


# Looking


def explain(keyspace: Keyspace, queue: str, ttl: Duration | None, *, name_only: bool = False) -> Flow[Explanation]:
    """Explain the options of a queue, or of one that does not exist yet: then only its name counts. It only reads."""
    ms = None if ttl is None else int(units.duration(ttl, "ttl"))
    queue = check_queue_name(queue) if name_only else queue
    damaged: dict[str, DataDamaged] = {}
    configs, policies = yield from records(keyspace, [] if name_only else [queue], damaged)
    for error in damaged.values():
        raise error
    if name_only:
        return Explanation.of(policies.resolve(QueueOptions(queue, {})), ms, damages=policies.errors)
    if queue not in configs:
        raise QueueNotFound(queue)
    resolution = policies.resolve(configs[queue].declared)
    return Explanation.of(resolution, ms, configs[queue].options, policies.errors)


# Remembering

_EFFECT = "existing queues keep its options, new ones lack them; `rqttl doctor` has the remedy"


class PolicyCache:
    """The set of policies that a driver read last. It answers `GetPolicies`."""

    def __init__(self) -> None:
        self._known = PolicySet()

    def answer(self, step: GetPolicies) -> PolicySet | None:
        """Return the answer to a step without asking Redis; `None` if `ask` has to be performed."""
        known = self._known
        return known if known.version == step.version else None

    def ask(self, keyspace: Keyspace) -> Flow[PolicySet]:
        """Read the set that is stored now, and remember it. New damage is logged."""
        before, self._known = self._known, (yield from read(keyspace))
        for field, error in zip(self._known.damaged, self._known.errors, strict=True):
            if field not in before.damaged:
                logger.warning("%s; %s", error, _EFFECT)
        return self._known


#: The options whose change may let messages die at once.
_DEADLY = ("message_ttl", "max_length", "max_length_bytes", "overflow")


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
    def given_up(self) -> set[str]:
        """The queues to which dead letters do not go any more."""
        return sweeping.given_up(self.config.options, self.options.in_force)

    @property
    def may_kill(self) -> bool:
        """True if messages may die at once by the change."""
        return not self.differences.keys().isdisjoint(_DEADLY)


def following(policies: PolicySet, declared: QueueOptions, config: QueueConfig | None = None) -> Options:
    """The options in force that follow for a queue, with the version that its record names then.

    `config` is the record of an existing queue. If a policy cannot be read, a newer rqttl may have applied it. So
    options keep their values, but those that a user declares anew, and the record names version 0: a process that can
    read all policies brings the queue up to date later.
    """
    resolved = policies.resolve(declared).options
    if not policies.damaged:
        return Options(declared, resolved, policies.version)
    if config is not None:
        anew = declared.differences(config.declared)
        values = {name: value for name, value in config.options.non_default.items() if name not in anew}
        values |= {name: value for name, value in resolved.non_default.items() if name in anew}
        resolved = QueueOptions(declared.queue, dict(sorted(values.items())))
    return Options(declared, resolved, 0)


def needed(config: QueueConfig, policies: PolicySet) -> Change | None:
    """The change that brings a queue up to date; `None` if it is, or if this process cannot bring it further."""
    options = following(policies, config.declared, config)
    if options.policies == policies.version:
        is_done = options.in_force == config.options and config.policies == policies.version
    else:  # a process that can read all policies may have brought the queue to this version
        is_done = options.in_force == config.options or config.policies == policies.version
    return None if is_done else Change(config, options)
