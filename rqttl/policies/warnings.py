"""Warnings about a policy that is valid, but probably not meant so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rqttl.options import REASONS, QueueOptions
from rqttl.policies.policy import Policy
from rqttl.policies.policy_set import PolicySet

#: The options of a policy that name a target.
_TARGETS = ("dead_letter", *(f"dead_letter_{reason}" for reason in REASONS))
#: The options that remove messages from a dead-letter queue without anybody having seen them.
_DEADLY = ("message_ttl", "max_length", "max_length_bytes", "expires", "auto_delete_on_idle")
_ENDS = ("expires", "auto_delete_on_idle")


def warn(policy: Policy, policies: PolicySet, queues: Mapping[str, QueueOptions]) -> list[str]:
    """Sentences about a policy in a set that contains it. `queues` are the options in force of all queues, by name."""
    matched = any(policy.matches(name) for name in queues)
    return [
        *([] if matched else [f"{policy.source}: no queue matches {policy.pattern!r}"]),
        *_own_targets(policy),
        *_expiring_letters(policy, policies, queues),
        *_equals(policy, policies),
    ]


def _own_targets(policy: Policy) -> Iterator[str]:
    """A target that the policy matches, too: the queue of that name gets no target by it."""
    for option in _TARGETS:
        target = policy.definition.get(option)
        if target and "{queue}" not in str(target) and policy.matches(str(target)):
            yield f"{policy.source} also matches its dead-letter queue {target}; it sets no {option} there"


def _expiring_letters(policy: Policy, policies: PolicySet, queues: Mapping[str, QueueOptions]) -> Iterator[str]:
    """Dead-letter queues from which the policy lets messages disappear, also those that do not exist yet."""
    options_of_policy = {name for name in _DEADLY if policy.definition.get(name) is not None}
    if not options_of_policy:
        return
    targets = {target for options in queues.values() for target in options.targets()}
    lossy, deadly = [], set()
    for name in sorted(filter(policy.matches, targets)):
        options = queues.get(name) or policies.resolve(QueueOptions(name, {})).options
        if reasons := options_of_policy & _drops(options):
            lossy.append(name)
            deadly |= reasons
    if lossy:
        more = f" and {len(lossy) - 1:,} more" if len(lossy) > 1 else ""
        verb = "lets" if len(deadly) == 1 else "let"
        yield f"{policy.source}: {', '.join(sorted(deadly))} {verb} dead letters in {lossy[0]}{more} disappear"


def _drops(options: QueueOptions) -> set[str]:
    """The options by which messages in a queue are dropped, or end with their queue."""
    ends = _ENDS if options.on_expire == "drop" else ()
    retention = () if options.target("expired") else ("message_ttl",)
    limits = () if options.target("maxlen") or options.overflow != "drop-head" else ("max_length", "max_length_bytes")
    return {name for name in (*ends, *retention, *limits) if options[name] is not None}


def _equals(policy: Policy, policies: PolicySet) -> Iterator[str]:
    """Other policies of the same kind, pattern and priority that give the same options: their names decide."""
    for other in policies.policies:
        is_other = other.name != policy.name and other.operator is policy.operator
        if not is_other or (other.pattern, other.syntax, other.priority) != (
            policy.pattern,
            policy.syntax,
            policy.priority,
        ):
            continue
        if both := sorted(policy.definition.keys() & other.definition.keys()):
            first = min(policy.name, other.name)
            yield (
                f"{policy.source}: {other.name} has the same pattern and priority and gives {', '.join(both)}, too; "
                f"{first} comes first by its name"
            )
