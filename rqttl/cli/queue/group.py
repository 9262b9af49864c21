"""`rqttl queue`: make queues, change them, look at them, remove them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rqttl.cli.common import output
from rqttl.cli.common.option_text import option_facts
from rqttl.cli.common.settings import Settings, connecting, help_alone, json_flag, queue_name_argument, queues_argument
from rqttl.cli.queue.each import Facts, for_each, handles
from rqttl.cli.queue.ls import list_queues
from rqttl.cli.queue.options import queue_options
from rqttl.cli.queue.remove import delete, purge
from rqttl.cli.queue.show import show
from rqttl.cli.queue.update import update

if TYPE_CHECKING:
    from rqttl.queue import Queue
    from rqttl.types import Declared


#: The outcomes of a declaration, for people.
DECLARED: dict[Declared, str] = {
    "created": "declared",
    "found": "is there already, with these options",
    "adopted": "declared; a dead letter had made it",
}


@click.group(invoke_without_command=True, epilog="\b\nExample: rqttl queue ls 'orders.*'")
@click.pass_context
def queue(context: click.Context) -> None:
    """Make queues, change them, look at them."""
    help_alone(context)


@queue.command(epilog="\b\nExample: rqttl queue declare orders --message-ttl 60s --dead-letter dead")
@queue_name_argument
@queue_options
@json_flag
@connecting
def declare(name: str, as_json: bool, settings: Settings, **options: Any) -> None:
    """Make a queue, or find it with these options.

    If it exists with other options nothing changes, and the exit code is 3.
    """
    given = {option: value for option, value in options.items() if value is not None}
    with settings.using() as broker:
        declared = broker.declare_queue(name, **given)
        in_force = declared.options()
    if as_json:
        output.answer_json({"queue": name, "declared": declared.declared, "options": option_facts(in_force)})
    else:
        output.answer(f"queue {name}: {DECLARED[declared.declared or 'found']}")


@queue.command(epilog="\b\nExample: rqttl queue touch orders")
@queues_argument
@json_flag
@connecting
def touch(queues: tuple[str, ...], as_json: bool, settings: Settings) -> None:
    """Use queues without doing anything in them.

    What deletes an unused queue, --expires and --auto-delete-on-idle, begins
    anew.
    """

    def use(handle: Queue) -> Facts:
        handle.touch()
        return {"touched": True}

    with settings.using() as broker:
        for_each(handles(broker, queues), use, lambda handle, _: f"queue {handle.name} touched", as_json=as_json)


for command in (update, list_queues, show, purge, delete):
    queue.add_command(command)
