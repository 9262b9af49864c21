"""Hooks: functions that are told what the library does. Inert unless somebody listens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Events:
    """Listeners of one broker.

    `on_command(script, queue, seconds, outcome)` is called after every script call, with the reply's word or the
    class name of the exception as outcome. `on_waiting(queue)` is called when a consumer is about to block.
    `on_renewed(queue, count)` when `consume` has renewed leases.
    An exception that a listener raises reaches the caller of the operation.
    """

    on_command: list[Callable[[str, str, float, str], None]] = field(default_factory=list)
    on_waiting: list[Callable[[str], None]] = field(default_factory=list)
    on_renewed: list[Callable[[str, int], None]] = field(default_factory=list)
