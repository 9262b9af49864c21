"""`rqttl dead`: look at dead letters, put them back, remove them."""

from __future__ import annotations

from rqttl.cli.common import output
from rqttl.cli.common.params import json_flag, queue_argument, utc_flag
from rqttl.cli.common.progress import read_messages
from rqttl.cli.common.settings import Settings, command_group, connecting
from rqttl.cli.dead.purge import purge
from rqttl.cli.dead.redrive import redrive
from rqttl.cli.dead.render import format_not_ready, note_targets, print_groups
from rqttl.cli.dead.report import report
from rqttl.cli.dead.show import show
from rqttl.inspector.letters import LetterGroups


@command_group("rqttl dead ls orders/dead")
def dead() -> None:
    """Look at dead letters, put them back, remove them.

    Each command takes the queue that holds them.
    """


@dead.command("ls", epilog="\b\nExample: rqttl dead ls orders/dead")
@queue_argument
@utc_flag
@json_flag
@connecting
def list_groups(queue: str, utc: bool, as_json: bool, settings: Settings) -> None:
    """Count the letters in QUEUE by where and why they died.

    Oldest and newest are the times of their latest deaths. The command leases
    and changes nothing.
    """
    groups = LetterGroups()
    with settings.using() as broker:
        source = broker.queue(queue)
        for message in read_messages(source):
            groups.add(message)
        now = broker.server_time()
        note_targets(source)
    if as_json:
        output.answer_json(groups.to_json())
        return
    if not groups.total():
        output.note(f"no dead letters in {queue}")
        return
    print_groups(groups, now, utc=utc)
    if not_ready := format_not_ready(groups.total("leased"), groups.total("delayed")):
        output.note(f"of these, {not_ready}")


for command in (show, redrive, purge, report):
    dead.add_command(command)
