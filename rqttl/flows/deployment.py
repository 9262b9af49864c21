"""Flows about whole deployments: reading that of a namespace, and carrying out a plan."""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import suppress
from dataclasses import replace

from rqttl.deployments import Deployment, Plan, Step
from rqttl.errors import QueueNotFound, QueuesAway
from rqttl.flows import bindings, policies, queues, reading, registry
from rqttl.flows.steps import Flow
from rqttl.options import BINDINGS, QueueOptions
from rqttl.policies import Policy
from rqttl.protocol.keys import Keyspace
from rqttl.types import Effect, PolicyResult


def present(keyspace: Keyspace) -> Flow[Deployment]:
    """See `Broker.deployment`."""
    away: reading.Away = {}
    created = yield from reading.created(keyspace, (yield from registry.registered(keyspace)), away)
    stored = yield from policies.current(keyspace)
    deployment = Deployment.of(created, stored.policies, keyspace.namespace)
    bound = {name for options in created for name in options.bindings or ()}
    deployment = replace(deployment, gone=frozenset(bound - deployment.queues.keys()))
    if away:
        raise QueuesAway(deployment, away)
    return deployment


def preview(keyspace: Keyspace, plan: Plan) -> Flow[Effect]:
    """See `Broker.preview_plan`."""
    _check_places(keyspace, plan)
    declared = {step.name: step.after for step in _queues(plan) if isinstance(step.after, QueueOptions)}
    gone = [step.name for step in _queues(plan) if step.action == "delete"]
    result = yield from policies.preview(keyspace, *_policies(plan), declared, gone)
    deleted = 0
    for name in gone:
        with suppress(QueueNotFound):  # deleted meanwhile
            for stats in (yield from reading.look(keyspace, [name])).values():
                deleted += stats.depth
    later = (result.ending, result.ending_queues, result.ends_after_ms)
    return Effect(result.expired, result.trimmed, deleted, *later, changed=_others(result, plan))


def carry_out(keyspace: Keyspace, plan: Plan) -> Flow[Effect]:
    """See `Broker.apply_plan`.

    The queues of the plan change before the policies act on the others: each of them goes from its present options to
    those of the whole plan in one step, and no message dies by options in between.
    """
    _check_places(keyspace, plan)
    touched = yield from policies.store(keyspace, *_policies(plan))
    expired = trimmed = deleted = 0
    gone = {step.name for step in _queues(plan) if step.action == "delete"}
    for step in _queues(plan):
        if isinstance(step.after, QueueOptions) and step.action == "create":
            if (yield from queues.declare(keyspace, step.after)) == "existing":  # another client was faster
                yield from _bind(keyspace, step)
        elif isinstance(step.after, QueueOptions):
            after = dict(step.after.as_arguments())
            changes = {name: after.get(name) for name in step.changes if name != BINDINGS}  # `None` resets an option
            if changes:
                counts = yield from queues.update(keyspace, step.name, changes)
                expired, trimmed = expired + counts.expired, trimmed + counts.trimmed
            yield from _bind(keyspace, step)
        else:
            with suppress(QueueNotFound):  # deleted meanwhile
                yield from _bind(keyspace, step, keeps=gone)
                deleted += yield from queues.delete(keyspace, step.name, if_unused=False, if_empty=False)
    result = yield from policies.reconcile(keyspace, (yield from policies.matching(keyspace, touched)))
    expired, trimmed = expired + result.expired, trimmed + result.trimmed
    return Effect(expired, trimmed, deleted, unfinished=result.unfinished, changed=_others(result, plan))


def _bind(keyspace: Keyspace, step: Step, *, keeps: Container[str] = ()) -> Flow[None]:
    """Bind and unbind as a step says, but those that it `keeps`: a deleted topic takes its subscriptions along."""
    changes = {name: after for name, (_, after) in step.bindings.items() if name not in keeps}
    yield from bindings.change(keyspace, step.name, changes)


def _check_places(keyspace: Keyspace, plan: Plan) -> None:
    for step in _queues(plan):
        for name, (_, after) in step.bindings.items():
            if after is not None:
                bindings.check_place(keyspace, step.name, name)
        if isinstance(step.after, QueueOptions):
            queues.check_target(keyspace, step.after)


def _others(result: PolicyResult, plan: Plan) -> tuple[str, ...]:
    named = {step.name for step in _queues(plan)}
    return tuple(sorted(name for name in result.changed if name not in named))


def _policies(plan: Plan) -> tuple[list[Policy], list[Policy]]:
    stored = [step.after for step in plan.steps if isinstance(step.after, Policy)]
    gone = [step.before for step in plan.steps if step.action == "delete" and isinstance(step.before, Policy)]
    return stored, gone


def _queues(plan: Plan) -> Iterator[Step]:
    return (step for step in plan.steps if step.kind == "queue")
