"""The timeline of one message: all that the journals of a round say about it, in the order of time."""

from __future__ import annotations

import json
from collections.abc import Iterable

from tests.chaos.journal import Event


def timeline(events: Iterable[Event], id: str) -> str:
    """Return the events that name a message, its sequences or its calls, and the strikes of nemeses around them."""
    lines: list[str] = []
    calls: set[str] = set()
    sequences: set[str] = set()
    start: int | None = None
    for event in events:
        for sequence, claimed, *_ in event["got"] if event["k"] == "claim" else ():
            if claimed == id:
                sequences.add(sequence)
        if _names(event, id, sequences, calls):
            calls.add(event.get("n", ""))
        elif event["p"] != "director" or event["k"] == "count" or start is None:
            continue
        start = event["t"] if start is None else start
        facts = {name: value for name, value in event.items() if name not in ("t", "p", "k")}
        if len(event.get("got", ())) > 1:
            facts["got"] = [one for one in event["got"] if one[0] in sequences]
        lines.append(
            f"{(event['t'] - start) / 1e6:10.6f} s  {event['p']:<24} {event['k']:<12} {json.dumps(facts)[:600]}"
        )
    return "\n".join(lines) + "\n"


def _names(event: Event, id: str, sequences: set[str], calls: set[str]) -> bool:
    if (
        event.get("id") == id
        or id in event.get("ids", ())
        or (event["k"] in ("sent", "settled") and event["n"] in calls)
    ):
        return True
    if event["k"] == "acks":
        return any(one[0] in sequences for name in ("done", "lost") for one in event[name])
    return event["k"] in ("claim", "settle") and any(one[0] in sequences for one in event["got"])
