"""`rqttl explain`: every option in force of a queue, its source, and the deadline of a message."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from rqttl import text
from rqttl.cli.common import output
from rqttl.cli.common.params import DURATION, flag, format_value, json_flag, json_name, queue_argument
from rqttl.cli.common.settings import Settings, connecting
from rqttl.errors import QueueNotFound
from rqttl.options import OPTIONS
from rqttl.policies import Explained, Explanation
from rqttl.units import as_text

if TYPE_CHECKING:
    from rqttl.broker import Broker


@click.command(epilog="\b\nExample: rqttl explain orders --ttl 5s")
@queue_argument
@click.option("--ttl", type=DURATION, metavar="TIME", help="Explain the deadline of a message with this TTL.")
@click.option("--name-only", is_flag=True, help="Explain what policies give to this name; the queue need not exist.")
@click.option("--all", "every", is_flag=True, help="Show options at their defaults too.")
@json_flag
@connecting
def explain(queue: str, ttl: timedelta | None, name_only: bool, every: bool, as_json: bool, settings: Settings) -> None:
    """Explain the options of a queue.

    The command prints each option in force with its source: the declaration,
    a policy, an operator policy or the default. Below it stand the values
    that lost, and why. A queue that does not exist yet is explained by its
    name alone. The command only reads.
    """
    with settings.using() as broker:
        existing = None if name_only else _existing(broker, queue, ttl)
        explanation = existing or broker.explain(queue, ttl)
        now = broker.server_time()
    if as_json:
        output.answer_json(_to_json(explanation, now))
        return
    rows = [
        row
        for name, explained in explanation.items()
        if every or explained.source != "default" or explained.lost or explained.note
        for row in _rows(name, explained)
    ]
    policies = ", ".join(policy.source for policy in (*explanation.policies, *explanation.operator_policies))
    known = "as declared" if explanation.exists else "by its name alone"
    missing = "" if existing or name_only else "does not exist yet; "
    output.answer(f"queue {queue}: {missing}{known}{f', with {policies}' if policies else '; no policy matches'}")
    if rows:
        output.print_table(["option", "value", "source"], rows)
    else:
        output.answer("all options are at their defaults")
    output.answer("")
    steps = []
    for step in explanation.message.steps:
        rule = flag(step.option)[2:] if step.option else "message"
        source = f" ({explanation[step.option].source})" if step.option else ""
        steps.append([rule, "never expires" if step.ttl is None else as_text(step.ttl), f"{step.text}{source}"])
    output.print_table(["rule", "TTL after it", "effect"], steps)
    output.answer(_deadline(explanation.message.ttl, now))
    reason = "the queue is not up to date with the policies; a reaper brings it there"
    for name, value in explanation.outdated.items():
        output.note(f"{flag(name)} is still {format_value(OPTIONS[name], value)} in force: {reason}")  # type: ignore[arg-type]  # the value of an option


def _existing(broker: Broker, queue: str, ttl: timedelta | None) -> Explanation | None:
    """The explanation of an existing queue; `None` for a missing one, with a note of a nearly equal name."""
    try:
        return broker.queue(queue).explain(ttl)
    except QueueNotFound:
        if near := text.nearest(queue, broker.queues(), 0.75):
            output.note(f"queue {queue} does not exist; did you mean {near}?")
        return None


def _rows(name: str, explained: Explained) -> list[list[str]]:
    option = OPTIONS[name]
    lost = [
        ["", "none" if other.value is None else format_value(option, other.value), f"{other.source}, {other.reason}"]
        for other in explained.lost
    ]
    return [[flag(name)[2:], format_value(option, explained.value), explained.source], *lost]


def _deadline(ttl: int | None, now: datetime) -> str:
    if ttl is None:
        return "the message never expires"
    if ttl == 0:
        return "the message is dead on arrival, unless a consumer waits for it"
    return f"sent now, the message expires at {text.format_time(now + timedelta(milliseconds=ttl), now, utc=True)}"


def _to_json(explanation: Explanation, now: datetime) -> dict[str, Any]:
    ttl = explanation.message.ttl
    return {
        "queue": explanation.queue,
        "exists": explanation.exists,
        "policies": [policy.name for policy in explanation.policies],
        "operator_policies": [policy.name for policy in explanation.operator_policies],
        "options": {
            json_name(name): {
                "value": explained.value,
                "source": explained.source,
                "lost": [
                    {"value": lost.value, "source": lost.source, "reason": lost.reason} for lost in explained.lost
                ],
                "note": explained.note or None,
            }
            for name, explained in explanation.items()
        },
        "message": {
            "ttl_ms": explanation.message.ttl,
            "expires_at": None if ttl is None else now + timedelta(milliseconds=ttl),
            "steps": [
                {"option": step.option, "text": step.text, "ttl_ms": step.ttl} for step in explanation.message.steps
            ],
        },
        "outdated": {json_name(name): value for name, value in explanation.outdated.items()},
    }
