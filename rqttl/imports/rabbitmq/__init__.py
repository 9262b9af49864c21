"""Definitions of RabbitMQ. `read_definitions` reads a file of `rabbitmqctl export_definitions`."""

from __future__ import annotations

from rqttl.imports.names import namespaces
from rqttl.imports.rabbitmq.definitions import read_definitions_file
from rqttl.imports.rabbitmq.leftovers import note_leftovers
from rqttl.imports.rabbitmq.vhost import VHostReader
from rqttl.imports.report import Imported, Notes
from rqttl.imports.source import load

__all__ = ["read_definitions"]

_LEASES = (
    "the lease of a delivery is 30s: RabbitMQ waits 30 minutes for an acknowledgement; `run` and `consume` renew "
    "leases, for other consumers set `lease`"
)


def read_definitions(text: str) -> Imported:
    """Read the text of a definitions file: one deployment for each vhost.

    Raises `InvalidImport`, which names the place of a fault. Each queue's options are valid for `declare_queue`, and
    each policy for `set_policy`.
    """
    table = load(text, "definitions of RabbitMQ")
    definitions = read_definitions_file(table)
    notes = Notes()
    note_leftovers(table, notes)
    if any(vhost.queues for vhost in definitions.vhosts.values()):
        notes.translated("definitions", "consumer_timeout", None, _LEASES)
    valid = namespaces(definitions.vhosts)
    deployments = {
        name: VHostReader(vhost, definitions.version, notes).deployment(valid[name])
        for name, vhost in definitions.vhosts.items()
    }
    return Imported(deployments, notes.as_tuple())
