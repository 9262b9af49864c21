"""Targets of dead letters that a policy must not give to a queue."""

from __future__ import annotations

from collections.abc import Iterable

from rqttl.names import is_queue_name
from rqttl.policies.policy import Policy
from rqttl.text import format_value

_QUEUE = "{queue}"


def fault(option: str, target: str, queue: str, policies: Iterable[Policy]) -> str:
    """The reason why a policy's target gives a queue no target; empty if the target is good.

    `policies` are all policies with templates, also those that do not match the queue: two of them could name a queue
    after each other in turn, until the name is too long.
    """
    name = target.replace(_QUEUE, queue)
    if name == queue:
        return "" if option == "dead_letter_rejected" else f"{format_value(target)} names the queue itself"
    if _QUEUE in target:
        for policy in policies:
            if template := maker(queue, policy):
                return (
                    f"the template {template!r} of {policy.source} made the name {queue!r}: no template of any policy "
                    "acts on it"
                )
    if name and not is_queue_name(name):
        return f"{format_value(name)} is no valid queue name"
    return ""


def maker(queue: str, policy: Policy) -> str:
    """The template of a policy that makes the name of `queue` for a queue that the policy matches, or empty text."""
    for template in policy.templates:
        origin = origin_of(queue, template)
        if origin and policy.matches(origin):
            return template
    return ""


def origin_of(queue: str, template: str) -> str:
    """The queue for which a template gives this name: `orders` for `EXP.orders` and `EXP.{queue}`; or empty text."""
    before, *_ = template.split(_QUEUE)
    if not queue.startswith(before):
        return ""
    times = template.count(_QUEUE)
    length, remainder = divmod(len(queue) - len(template) + times * len(_QUEUE), times)
    origin = queue[len(before) : len(before) + length] if length > 0 else ""
    is_made = not remainder and template.replace(_QUEUE, origin) == queue and is_queue_name(origin)
    return origin if is_made else ""
