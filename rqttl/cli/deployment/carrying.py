"""Flows about whole deployments: reading the present one, counting the effect of a plan, and carrying it out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from rqttl.deployments import Deployment, Plan, Step
from rqttl.errors import QueueNotFound
from rqttl.flows import policies
from rqttl.flows import queues as queue_flows
from rqttl.flows.reading import look
from rqttl.flows.reading import read_options as options_of
from rqttl.flows.registry import records, registered
from rqttl.flows.steps import Flow
from rqttl.options import QueueOptions
from rqttl.policies import Policy
from rqttl.protocol.keys import Keyspace


class Effect(NamedTuple):
    """Messages that a plan ends: by a shorter TTL, by a lower limit, and with their queues.

    Queues with so many dead messages that some are left are `unfinished`: a reaper removes those.
    """

    expired: int = 0
    trimmed: int = 0
    deleted: int = 0
    unfinished: tuple[str, ...] = ()


def present(keyspace: Keyspace) -> Flow[Deployment]:
    """The deployment of a namespace: its declared queues, and all policies. Raises `DataDamaged`.

    Queues that only dead letters created are no part of it: no user has declared them.
    """
    declared = yield from options_of(keyspace, (yield from registered(keyspace)), declared=True)
    explicit = yield from records(keyspace, list(declared), ("explicit",))
    stored = yield from policies.current(keyspace)
    queues = [options for name, options in declared.items() if explicit[name] == [b"1"]]
    return Deployment.of(queues, stored.policies, keyspace.namespace)


def preview(keyspace: Keyspace, plan: Plan) -> Flow[Effect]:
    """Count the messages that a plan would end now, each once. Sweeps the queues, and changes no option."""
    declared = {step.name: step.after for step in _queues(plan) if isinstance(step.after, QueueOptions)}
    gone = [step.name for step in _queues(plan) if step.action == "delete"]
    result = yield from policies.preview(keyspace, *_policies(plan), declared, gone)
    deleted = 0
    for name in gone:
        with suppress(QueueNotFound):  # deleted meanwhile
            for stats in (yield from look(keyspace, [name])).values():
                deleted += stats.depth
    return Effect(result.expired, result.trimmed, deleted)


def carry_out(keyspace: Keyspace, plan: Plan) -> Flow[Effect]:
    """Store the policies, all in one call, then change the queues. Equal calls change nothing more.

    The queues of the plan change before the policies act on the others: each of them goes from its present options to
    those of the whole plan in one step, and no message dies by options in between.
    """
    touched = yield from policies.store(keyspace, *_policies(plan))
    expired = trimmed = deleted = 0
    for step in _queues(plan):
        if isinstance(step.after, QueueOptions) and step.action == "create":
            yield from queue_flows.declare(keyspace, step.after)
        elif isinstance(step.after, QueueOptions):
            after = dict(step.after.as_arguments())
            changes = {name: after.get(name) for name in step.changes}  # `None` resets an option to its default
            counts = yield from queue_flows.update(keyspace, step.name, changes)
            expired, trimmed = expired + counts.expired, trimmed + counts.trimmed
        else:
            with suppress(QueueNotFound):  # deleted meanwhile
                deleted += yield from queue_flows.delete(keyspace, step.name, if_unused=False, if_empty=False)
    result = yield from policies.reconcile(keyspace, (yield from policies.matching(keyspace, touched)))
    return Effect(expired + result.expired, trimmed + result.trimmed, deleted, result.unfinished)


def _policies(plan: Plan) -> tuple[list[Policy], list[Policy]]:
    stored = [step.after for step in plan.steps if isinstance(step.after, Policy)]
    gone = [step.before for step in plan.steps if step.action == "delete" and isinstance(step.before, Policy)]
    return stored, gone


def _queues(plan: Plan) -> Iterator[Step]:
    return (step for step in plan.steps if step.kind == "queue")
