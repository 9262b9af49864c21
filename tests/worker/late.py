"""Changes of spawned workers for tests that no slow machine may spoil: limits that act late, and long graces."""

import os
from collections.abc import Callable
from pathlib import Path

from rqttl.worker import commands
from rqttl.worker.child import Task
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
        commands.TERM_GRACE, commands.COMMAND_GRACE, commands.LATE = TIDY, TIDY + 1, LONG
        from rqttl.worker import pool  # a child imports these after this module, and copies constants

        pool.CANCEL_GRACE = LONG
        from rqttl.worker import supervisor

        supervisor.QUIT_GRACE = LONG
    if limited:
        limit(Path(os.environ["RQTTL_TEST_HOME"]), limited, setattr)


def limit(home: Path, id: str, patch: Callable[[object, str, object], None]) -> None:
    """Let the time limits of workers of this process act as `prepare` says. `patch` is called as `setattr` is."""
    from rqttl.worker.in_flight import InFlight  # after `apply`

    running = InFlight.running

    def late(in_flight: InFlight) -> list[Task]:
        if ["begun", id] not in [event[:2] for event in events(home)]:
            return []
        return [task for task in running(in_flight) if (task.delivery.id, task.delivery.delivery_count) == (id, 1)]

    patch(InFlight, "running", late)
