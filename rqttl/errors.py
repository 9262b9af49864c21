"""Every error that rqttl raises of its own accord.

Errors of the connection (`redis.exceptions`) are not among them: they pass through as redis-py raises them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class RqttlError(Exception):
    """Root of all errors of rqttl. `code` is the same word in the scripts, the command line and the documentation."""

    code = "error"


class QueueNotFound(RqttlError):
    """The queue was never declared, or it was deleted.

    Declare it; or look at its name and at `--namespace`: `rqttl queue ls` shows what there is.
    """

    code = "not_found"

    def __init__(self, queue: str) -> None:
        super().__init__(f"queue {queue!r} does not exist: declare it first")
        self.queue = queue


class QueueDamaged(RqttlError):
    """A key of the queue has another type than rqttl gave it, or its record lacks a field.

    `rqttl doctor QUEUE` names the key and says what to do.
    """

    code = "queue_damaged"

    def __init__(self, queue: str, damage: str) -> None:
        super().__init__(f"queue {queue!r} cannot be read: {damage}")
        self.queue = queue
        self.damage = damage


class RegistryDamaged(RqttlError):
    """The registry, the set of the names of all queues, is a key of another type. Somebody else has written it.

    `rqttl doctor` names the key and says what to do.
    """

    code = "registry_damaged"

    def __init__(self, key: str) -> None:
        super().__init__(f"the key {key} is no set of queue names: somebody else has written it")
        self.key = key


class QueueMismatch(RqttlError):
    """The queue exists with other options. `differences` maps each option to (asked for, in force).

    Ask for the options in force, leave them out, or change them with `update`.
    """

    code = "mismatch"

    def __init__(
        self,
        queue: str,
        differences: Mapping[str, tuple[object, object]],
        written: Mapping[str, tuple[object, object]] | None = None,
    ) -> None:
        # the message shows durations as `update` takes them; `differences` has milliseconds
        shown = differences if written is None else written
        told = "; ".join(f"{name}: asked for {ours!r}, in force {theirs!r}" for name, (ours, theirs) in shown.items())
        super().__init__(f"queue {queue!r} exists with other options ({told}): use update() to change them")
        self.queue = queue
        self.differences = dict(differences)


class QueueFull(RqttlError):
    """A `reject-publish` queue has no room for the message. Raised by `enqueue`, returned by `enqueue_many`.

    Send again when consumers have made room, raise the limit, or choose another `overflow`.
    """

    code = "queue_full"

    def __init__(self, queue: str, limit: str, value: int) -> None:
        super().__init__(f"queue {queue!r} is full: {limit} is {value}")
        self.queue = queue
        self.limit = limit
        self.value = value


class QueueInUse(RqttlError):
    """`delete(if_unused=True)` found consumers, or `delete(if_empty=True)` found messages.

    Stop the consumers or empty the queue; or leave the condition out.
    """

    code = "in_use"

    def __init__(self, queue: str, condition: str, found: int) -> None:
        what = "consumers" if condition == "if_unused" else "messages"
        super().__init__(f"queue {queue!r} was not deleted: {condition} is set and it has {found} {what}")
        self.queue = queue
        self.condition = condition
        self.found = found


class LeaseLost(RqttlError):
    """Some deliveries were settled or renewed after their lease had ended: those in `ids`. All others were settled.

    The messages come again: let the work be repeatable, ask for a longer `lease`, or use `run` or
    `consume`, which renew.
    """

    code = "lease_lost"

    def __init__(self, queue: str, ids: Sequence[str]) -> None:
        super().__init__(
            f"queue {queue!r}: the lease had ended for {_some(ids)}; somebody else may hold the message now"
        )
        self.queue = queue
        self.ids = tuple(ids)


class AlreadySettled(RqttlError):
    """The delivery was acked, given back or rejected before, or it came with `auto_ack=True` and needs no settling.

    Settle each delivery once; `with delivery:` does.
    """

    code = "already_settled"

    def __init__(self, queue: str, id: str, how: str) -> None:
        super().__init__(f"queue {queue!r}: delivery of {id!r} is settled already ({how})")
        self.queue = queue
        self.id = id
        self.how = how


class OutcomeUnknown(RqttlError):
    """The reply to a call was lost: Redis may or may not have carried it out.

    `action` names the call. Look whether it happened; or send again with an `id` into a queue that has a
    `duplicate_window` (`enqueue_many` can give a window for itself). After `ack`, `nack` and `reject`, `ids` names the
    messages whose leases ended before the call could be repeated.
    """

    code = "outcome_unknown"

    def __init__(self, queue: str, action: str, ids: Sequence[str] = ()) -> None:
        of = f" of {_some(ids)}" if ids else ""
        super().__init__(
            f"queue {queue!r}: the connection was lost before the reply to {action}{of} arrived; "
            "it may or may not have been carried out"
        )
        self.queue = queue
        self.action = action
        self.ids = tuple(ids)


class ScriptsForgotten(RqttlError):
    """Redis forgot the script of a call each time that it was loaded. Nothing was carried out.

    Find out who calls `SCRIPT FLUSH` again and again, and end that.
    """

    code = "scripts_forgotten"

    def __init__(self, script: str) -> None:
        super().__init__(f"script {script}: Redis forgot it again and again; somebody calls SCRIPT FLUSH")
        self.script = script


class PoolExhausted(RqttlError):
    """The client has no connection left: each thread that waits for messages holds one.

    Give the client a larger `max_connections`, or let fewer threads wait. `rqttl.connect` sets no limit of its own.
    """

    code = "pool_exhausted"

    def __init__(self, limit: int, waiting: int | None = None) -> None:
        holders = "all are in use" if waiting is None else f"{waiting} of them are held by threads that wait"
        keeps = " and one is kept for commands" if waiting is not None and limit > waiting else ""
        super().__init__(
            f"no connection is free: the pool of the client has max_connections={limit}, {holders}{keeps}; "
            "each thread that waits needs one: raise max_connections"
        )
        self.limit = limit
        self.waiting = waiting


class BrokerClosed(RqttlError):
    """A call came after `close()` of its broker, or it was waiting when another thread closed the broker.

    Make a new broker, and close it only when nobody uses its queues and consumers any more.
    """

    code = "closed"

    def __init__(self) -> None:
        super().__init__("the broker is closed: its queues and consumers end with it; connect again")


class EmbeddedUnavailable(RqttlError):
    """No embedded server: no binary, a folder that is not private or not its own, data it cannot read, no answer.

    Do what the message says; or name a Redis of your own with `--url` or `$RQTTL_URL`.
    """

    code = "embedded_unavailable"


class InvalidInput(RqttlError, ValueError):
    """An argument breaks a rule. Nothing was written.

    The message names the argument, the value and the rule.
    """

    code = "invalid_input"


class InvalidName(InvalidInput):
    """A queue, namespace or message id is not well formed.

    Use the characters and the length that the message names.
    """

    code = "invalid_name"


class InvalidOption(InvalidInput):
    """A queue option is unknown, of the wrong type, out of range, or contradicts another one.

    See the table of options in the README.
    """

    code = "invalid_option"


class InvalidDuration(InvalidInput):
    """A duration has no unit, is no duration, or does not lie between 0 and ten years.

    Write it with its unit, as `1500ms`, `30s`, `5m`, `2h`, `1d` or `1w`; only `0` needs none.
    """

    code = "invalid_duration"


class MessageTooLarge(InvalidInput):
    """A body or a set of headers is larger than the queue takes.

    Store the body elsewhere and send where it is, or raise `max_message_bytes`.
    """

    code = "message_too_large"


class MalformedMessage(InvalidInput):
    """The header of a message has not the form that scripts take. `place` counts the messages of its batch from 1 on.

    Send through this library, which packs headers well; whoever calls the scripts otherwise reads `lua/README.md`.
    """

    code = "malformed"

    def __init__(self, queue: str, place: int) -> None:
        super().__init__(
            f"queue {queue!r}: expected a packed header without deaths (lua/README.md), got something else in message "
            f"{place} of the batch: nothing of it was stored"
        )
        self.queue = queue
        self.place = place


class ContractError(RqttlError):
    """The library and its scripts disagree. This is a bug of rqttl.

    Report it, with what `--debug` shows.
    """

    code = "bug"


def _some(ids: Sequence[str]) -> str:
    return ", ".join(ids[:5]) + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")
