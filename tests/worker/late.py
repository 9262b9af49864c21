"""Changes of spawned workers for tests that no slow machine may spoil: limits that act late, and long graces."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from rqttl.worker import supervision
from rqttl.worker.crew import Crew
from rqttl.worker.places import Task
from rqttl.worker.supervision import Deadline
from tests.worker.processes import SITE, events

#: Seconds that nothing waits out.
LONG = 3600.0
#: Seconds for commands that end. A dead process that is not yet waited for stays in the group, and can use them up.
TIDY = 15.0


def prepare(home: Path, *, limited: str = "", graces: bool = False) -> None:
    """Change the workers that are spawned with `home`, and their children.

    With `limited`, `--timeout` ends one handler only, that of the first delivery of the message with this id, and not
    before the journal has "begun" and the id. With `graces`, a command has an hour to end after SIGTERM (or its lease,
    if that is shorter), and so has a cancelled coroutine.
    """
    (home / SITE).mkdir()
    (home / SITE / "sitecustomize.py").write_text(
        f"from tests.worker import late\nlate.apply({limited!r}, {graces!r})\n"
    )


def apply(limited: str, graces: bool) -> None:
    """Change this process, before it imports further modules of the worker."""
    if graces:
        supervision.TERM_GRACE, supervision.COMMAND_GRACE = TIDY, TIDY + 1
        supervision.CANCEL_GRACE = LONG
        from rqttl.worker import command, nursery  # they copy the constants

        command._LATE = nursery.QUIT_GRACE = LONG
    if limited:
        limit(Path(os.environ["RQTTL_TEST_HOME"]), limited, setattr)


def limit(home: Path, id: str, patch: Callable[[object, str, object], None]) -> None:
    """Let the time limits of workers of this process act as `prepare` says. `patch` is called as `setattr` is."""
    from rqttl.worker import nursery  # after `apply`

    deadlines = Crew.deadlines

    def late(crew: Crew) -> list[tuple[Task, Deadline]]:
        found = [
            (task, deadline)
            for task, deadline in deadlines(crew)
            if (task.delivery.id, task.delivery.delivery_count) == (id, 1)
        ]
        return found if ["begun", id] in [event[:2] for event in events(home)] else []

    patch(Crew, "deadlines", late)
    patch(nursery, "TURN", 0.02)  # nothing tells the worker that the journal has grown
