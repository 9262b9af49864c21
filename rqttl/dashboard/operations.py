"""The pages for operators: policies and what they decide, the findings of the doctor, and the nodes."""

from __future__ import annotations

from collections import Counter
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple

from rqttl import outages, text, units
from rqttl.doctor import examine
from rqttl.doctor.nodes import nodes as nodes_of
from rqttl.errors import PolicyNotFound, QueueNotFound
from rqttl.inspector.message_view import deadline_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.responses import Response

    from rqttl.broker import Broker
    from rqttl.dashboard.visit import Visit
    from rqttl.doctor import Finding
    from rqttl.policies import Policy

#: Names that the policies of a page are compared with, together; queues of a policy, and findings, that are shown.
COMPARED, LISTED, FINDINGS = 20_000, 50, 200
#: Queues up to which warnings about a policy are looked for.
CHECKED = 2_000
#: Names whose nodes are looked up: of more queues only so many, and the numbers of nodes are estimates.
PLACED = 5_000
LEVELS = ("problem", "warning", "ok")


class Matches(NamedTuple):
    """A policy with the queues that it matches. `is_all` is false where there are too many names to compare all."""

    policy: Policy
    queues: Sequence[str]
    is_all: bool


def policies(visit: Visit) -> Response:
    """`/policies`: all policies, or one with its queues."""
    broker, names = visit.dashboard.sampler.broker, visit.dashboard.sampler.sample.names
    every = [*broker.policies(), *broker.policies(operator=True)]
    name, operator = visit.text("name"), bool(visit.text("operator"))
    kind = "operator-policy" if operator else "policy"
    chosen = [one for one in every if not name or (one.name, one.operator) == (name, operator)]
    if name and not chosen:
        raise PolicyNotFound(name, operator=operator)
    most = COMPARED // max(1, len(chosen))
    matches = [Matches(one, [*filter(one.matches, names[:most])], len(names) <= most) for one in chosen]
    matches.sort(key=lambda one: (-one.policy.priority, one.policy.name))
    return visit.page(
        "policies.html",
        title=f"{kind.replace('-', ' ').capitalize()} {name}" if name else "Policies",
        command=f"rqttl {kind} show {quote(name)}" if name else "rqttl policy ls",
        policy=chosen[0] if name else None,
        matches=matches,
        warnings=_warnings(broker, chosen[0], len(names)) if name else [],
        listed=LISTED,
    )


def _warnings(broker: Broker, policy: Policy, queues: int) -> list[str]:
    """Warnings about a policy. They take the options of all queues, so without them where there are many."""
    if queues > CHECKED:
        return [f"too many queues to look for contradictions here: `rqttl policy show {policy.name}` does it"]
    try:
        return broker.check_policy(policy)
    except outages.TEMPORARY as error:
        return [f"not all queues could be looked at: {text.without_secrets(str(error))}"]


def explain(visit: Visit) -> Response:
    """`/explain`: the options of a queue with their sources, the values that lost, and the deadline of a message."""
    handle, ttl, broker = visit.queue(), visit.text("ttl"), visit.dashboard.sampler.broker
    try:
        explanation = handle.explain(ttl or None)
    except QueueNotFound:
        explanation = broker.explain(handle.name, ttl or None)
    return visit.page(
        "explain.html",
        title=f"Options of {handle.name}",
        command=f"rqttl explain {handle.name}{f' --ttl {quote(ttl)}' if ttl else ''}",
        name=handle.name,
        ttl=ttl,
        explanation=explanation,
        deadline=deadline_text(explanation.message.ttl, broker.server_time()),
        duration=units.as_text,
    )


def doctor(visit: Visit) -> Response:
    """`/doctor`: the findings of the last minute; with `run` it examines, one visitor at a time."""
    dashboard, asked = visit.dashboard, bool(visit.text("run"))
    if asked:
        dashboard.findings.make(lambda: _examine(visit))
    kept = dashboard.findings.get()
    age, findings = kept or (None, [])
    shown = sorted(findings, key=lambda one: LEVELS.index(one.level))
    return visit.page(
        "doctor.html",
        title="Doctor",
        command="rqttl doctor",
        busy=asked and kept is None,
        age=age,
        findings=shown[:FINDINGS],
        further=len(shown) - FINDINGS,
        counts=Counter(one.level for one in findings),
        classes={"problem": "bad", "warning": "warning", "ok": "good"},
    )


def _examine(visit: Visit) -> list[Finding]:
    dashboard, names = visit.dashboard, visit.dashboard.sampler.sample.names
    every = dashboard.queues == "*"
    return list(examine(dashboard.sampler.broker, () if every else names)) if every or names else []


def nodes(visit: Visit) -> Response:
    """`/nodes`: the nodes of a server, a cluster or a Sentinel group, and the queues of each."""
    broker, names = visit.dashboard.sampler.broker, visit.dashboard.sampler.sample.names
    found, faults = nodes_of(broker)
    step = max(1, -(-len(names) // PLACED))
    places = [broker.node_of(name) for name in names[::step]]
    counts = Counter(place.address for place in places if place)
    if None in places:
        counts, step = Counter({found[0].address: len(names)}), 1
    return visit.page(
        "nodes.html",
        title="Nodes",
        command="rqttl doctor",
        address=broker.address,
        nodes=found,
        faults=faults,
        queues={address: number * step for address, number in counts.items()},
        about="about " if step > 1 else "",
    )
