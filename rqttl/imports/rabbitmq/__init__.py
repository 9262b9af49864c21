"""Definitions of RabbitMQ. `read_definitions` reads a file of `rabbitmqctl export_definitions`."""

from __future__ import annotations

from collections.abc import Mapping

from rqttl.imports.names import NameTable, namespaces
from rqttl.imports.notes import Notes, rows
from rqttl.imports.rabbitmq.dead_letters import DeadLetters
from rqttl.imports.rabbitmq.definitions import Queue, Setting, VHost, note_others, read_vhosts, settings_of, version
from rqttl.imports.rabbitmq.policies import TakenPolicies
from rqttl.imports.report import Imported, ImportedDeployment
from rqttl.imports.source import load, read
from rqttl.text import plain_whole

__all__ = ["read_definitions"]

_LEASES = (
    "the lease of a delivery is 30s: RabbitMQ waits 30 minutes for an acknowledgement; `run` and `consume` renew "
    "leases, for other consumers set `lease`"
)
_LIMIT, _OVERFLOW = "delivery-limit", "overflow"
#: RabbitMQ's limit for quorum queues without one, and the version that brought it.
_DEFAULT_LIMIT, _DEFAULT_SINCE = 20, (4, 0)
_BECAUSE = (
    "RabbitMQ forgives as many failures as the limit says, and the next one ends the message; "
    "here every nack and every lost lease is a failure"
)


def read_definitions(text: str) -> Imported:
    """Read the text of a definitions file: one deployment for each vhost.

    Raises `InvalidImport`, which names the place of a fault. Each queue's options are valid for `declare_queue`, and
    each policy for `set_policy`.
    """
    table = read(dict, load(text, "definitions of RabbitMQ"), "$")
    vhosts, notes = read_vhosts(table), Notes("definitions")
    note_others(table, notes)
    if any(vhost.queues for vhost in vhosts.values()):
        notes.translated("consumer_timeout", None, _LEASES)
    valid = namespaces(vhosts)
    deployments = {name: _deployment(vhost, version(table), valid[name], notes) for name, vhost in vhosts.items()}
    return Imported(deployments, tuple(notes.found))


def _deployment(vhost: VHost, version: tuple[int, ...] | None, namespace: str, notes: Notes) -> ImportedDeployment:
    """The queues and policies of a vhost. Notes every field of each."""
    reasons = {name: _reason_against(queue) for name, queue in vhost.queues.items()}
    names = NameTable.of(name for name, reason in reasons.items() if not reason)
    dead_letters = DeadLetters(vhost, names)

    def read_definition(definition: Mapping[str, Setting], notes: Notes) -> None:
        _take(definition, notes, "")
        dead_letters.take(definition, notes)

    policies = TakenPolicies(vhost.policies, read_definition, notes)
    operators = TakenPolicies(vhost.operator_policies, read_definition, notes)
    queues = {}
    for queue in vhost.queues.values():
        about = notes.about(f"vhost {queue.vhost!r}: queue {queue.name!r}")
        if reasons[queue.name]:
            about.left_out("", None, f"the queue is not imported: {reasons[queue.name]}")
        elif name := names.take(queue.name, "queue", about):
            for key in sorted(queue.body.keys() - {"name", "vhost", "arguments"}):
                about.take_setting("rabbitmq queue", key, key, queue.body[key], f"{queue.place}.{key}")
            definition, capped = (one.applied(queue, name, about) for one in (policies, operators))
            settings = settings_of(queue.arguments, f"{queue.place}.arguments", "x-")
            if queue.kind == "quorum" and _OVERFLOW in settings and _OVERFLOW in definition:
                overflow = settings.pop(_OVERFLOW)
                text = "overflow comes from the policy, which RabbitMQ prefers for a quorum queue"
                about.translated(overflow.name, overflow.value, text)
            _take(settings, about, queue.kind)
            dead_letters.take(settings, about, definition, queue.name)
            limits = [plain_whole(place[_LIMIT].value) for place in (settings, definition, capped) if _LIMIT in place]
            if queue.kind == "quorum" and all(limit is None for limit in limits):
                _take_default_limit(version, about)
            if (options := about.queue(name)) is not None:
                queues[name] = options
    return ImportedDeployment(queues, policies.as_file(), operators.as_file(), namespace)


def _reason_against(queue: Queue) -> str:
    """The reason why a queue is not imported, if there is one."""
    if queue.kind == "stream":
        return "rqttl has no streams: consumers read a queue once; `peek` reads without consuming"
    if queue.kind not in ("classic", "quorum"):
        return f"rqttl has no queue like the type {queue.kind!r}"
    if queue.body.get("exclusive") is True:
        return "an exclusive queue ends with its connection: a program declares one of its own, with `expires`"
    return ""


def _take(settings: Mapping[str, Setting], notes: Notes, kind: str) -> None:
    """Take each setting of a queue of a type, or of a policy (no type), or note why not. Dead letters come later."""
    for key, (name, value, place) in settings.items():
        row = rows("rabbitmq").get(key)
        if key == _OVERFLOW:
            if read(str, value, place) == "reject-publish-dlx" and kind == "quorum":
                notes.left_out(name, value, "a quorum queue does not have it, and drops its oldest messages")
            else:
                notes.take("overflow", value, name, value)
        elif key == _LIMIT:
            limit = plain_whole(value)
            if kind not in ("", "quorum"):
                notes.left_out(name, value, f"a {kind} queue does not have it")
            elif limit is None:
                notes.left_out(name, value, "RabbitMQ ignores a value that is no whole number")
            elif limit < 0:
                notes.translated(name, limit, "no max_deliveries: below 0 there is no limit")
            else:
                notes.take("max_deliveries", limit + 1, name, limit, because=_BECAUSE)
        elif row is None or not row.by_code:
            notes.take_setting("rabbitmq", key, name, value, place)


def _take_default_limit(version: tuple[int, ...] | None, notes: Notes) -> None:
    """Take RabbitMQ's limit for a quorum queue to which nothing gives one."""
    if version is None:
        text = "no max_deliveries: the file does not name its RabbitMQ, and since 4.0 the default is 20"
        notes.left_out(_LIMIT, None, text)
    elif version >= _DEFAULT_SINCE:
        because = f"the default of RabbitMQ 4, {_DEFAULT_LIMIT}, and the failure that ends the message"
        notes.take("max_deliveries", _DEFAULT_LIMIT + 1, _LIMIT, None, because=because)
