"""Roles about policies: operators that set, change and delete them, and the auditor at the end of a round."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import rqttl
from rqttl.reaper import Reaper
from tests.chaos.actor import Actor
from tests.chaos.cast import ACCOUNTED
from tests.in_force import differences

#: Definitions that leave the judge its facts: which limits a queue has, which targets, which deadline a receipt names.
#: A policy only lowers limits that are declared, and the operators never touch declared targets and windows.
ANYWHERE: tuple[dict[str, Any], ...] = (
    {"expires": "9h", "on_expire": "keep"},
    {"auto_delete_on_idle": "8h"},
    {"lease": "650ms"},
    {"max_ttl": "4h"},
    {"redelivery_delay": "10ms"},
    {"redelivery_delay": "30ms", "redelivery_max_delay": "50ms"},
    {"default_ttl": "3h"},
    {"max_message_bytes": 100_000},
    {"lease": None},
    {"redelivery_delay": None},
)
LIMITED: tuple[dict[str, Any], ...] = ({"max_length": 15}, {"max_length": 30}, {"max_length": None})
#: `drop` declares no target. The queue of these letters is nobody's.
LETTERS: tuple[dict[str, Any], ...] = (
    {"dead_letter": "drop/late"},
    {"dead_letter_expired": "drop/{queue}"},
    {"dead_letter": None},
)
PLACES: tuple[tuple[str, tuple[dict[str, Any], ...]], ...] = (
    ("#", ANYWHERE),
    ("*", ANYWHERE),
    ("plain", ANYWHERE),
    ("head", LIMITED),
    ("full", LIMITED),
    ("dlx", LIMITED),
    ("drop", LETTERS),
    ("window", ANYWHERE),
)


def operator(me: Actor) -> None:
    """Set, change and delete policies and operator policies."""
    while not me.stopping.is_set():
        if me.attempt(lambda: _change(me)):
            me.journal.count("policy changes")
        me.rest(0.2)


def _change(me: Actor) -> None:
    kind, name = me.random.choice(("", "operator_")), me.random.choice("pqrs")
    if me.random.random() < 0.3:
        with suppress(rqttl.PolicyNotFound):
            getattr(me.broker, f"delete_{kind}policy")(name)
        return
    pattern, definitions = me.random.choice(PLACES)
    set_it = getattr(me.broker, f"set_{kind}policy")
    set_it(name, pattern, me.random.choice(definitions), priority=me.random.choice((0, 0, 1)))


def auditor(me: Actor) -> None:
    """Let one pass of a reaper finish what faults have cut off; then compare options in force with the policies."""
    me.attempt(lambda: _audit(me))


def _audit(me: Actor) -> None:
    Reaper(me.broker).run_once()
    found = differences(me.broker, sorted(ACCOUNTED))
    changed = {name for name in me.broker.reconcile().changed if name in ACCOUNTED}
    found += [f"{name}: reconcile had to change it" for name in sorted(changed)]
    me.journal.write("audit", problems=found)
