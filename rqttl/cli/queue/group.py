"""`rqttl queue`: create queues, change them, look at them, remove them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rqttl.cli.common import option_text, output
from rqttl.cli.common.params import json_flag, queue_name_argument, queues_argument
from rqttl.cli.common.settings import Settings, command_group, connecting
from rqttl.cli.option_flags import QueueOptionsCommand, queue_options
from rqttl.cli.queue.remove import Result, delete, for_each, handles, purge
from rqttl.cli.queue.show import list_queues, show
from rqttl.cli.queue.update import update

if TYPE_CHECKING:
    from rqttl.queue import Queue
    from rqttl.types import Declared


#: The outcomes of a declaration, for people.
DECLARED: dict[Declared, str] = {
    "created": "created",
    "existing": "exists already, with these options",
    "adopted": "declared; a dead letter had created it",
}


@command_group("rqttl queue ls 'orders.*'")
def queue() -> None:
    """Create queues, change them, look at them."""


@queue.command(
    cls=QueueOptionsCommand, epilog="\b\nExample: rqttl queue declare orders --expires 1h --dead-letter '{queue}/dead'"
)
@queue_name_argument
@queue_options
@json_flag
@connecting
def declare(name: str, as_json: bool, settings: Settings, **options: Any) -> None:
    """Create a queue, unless it exists with these options.

    If it exists with other options nothing changes, and the exit code is 3.
    """
    arguments = {option: value for option, value in options.items() if value is not None}
    with settings.using() as broker:
        declared = broker.declare_queue(name, **arguments)
        in_force = declared.options()
    if as_json:
        document = {"queue": name, "declared": declared.declared, "options": option_text.to_json(in_force)}
        output.answer_json(document)
    else:
        output.answer(f"queue {name} {DECLARED[declared.declared or 'existing']}")


@queue.command(short_help="Mark queues as used.", epilog="\b\nExample: rqttl queue touch orders")
@queues_argument
@json_flag
@connecting
def touch(queues: tuple[str, ...], as_json: bool, settings: Settings) -> None:
    """Mark queues as used, so that --expires and --auto-delete-on-idle start again."""

    def mark(handle: Queue) -> Result:
        handle.touch()
        return {"touched": True}

    with settings.using() as broker:
        for_each(handles(broker, queues), mark, lambda handle, _: f"queue {handle.name} touched", as_json=as_json)


for command in (update, list_queues, show, purge, delete):
    queue.add_command(command)
