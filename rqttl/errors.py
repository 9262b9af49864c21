"""The errors of rqttl.

Errors of the connection (`redis.exceptions`) pass through as redis-py raises them.
"""

from __future__ import annotations

import copyreg
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

Differences = Mapping[str, tuple[object, object]]


class RqttlError(Exception):
    """Base class of all errors of rqttl. Scripts, command line and documentation use the same `code`."""

    code = "error"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle text and attributes: an error crosses processes whatever arguments its class takes."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]  # not in its stub


class QueueNotFound(RqttlError):
    """The queue was never declared, or it was deleted.

    Declare the queue, or check its name and `--namespace`: `rqttl queue ls` lists the existing queues.
    """

    code = "not_found"

    def __init__(self, queue: str) -> None:
        super().__init__(queue)
        self.queue = queue
        #: The namespace in which it was looked for. A driver sets it.
        self.namespace = "rqttl"

    def __str__(self) -> str:
        return f"queue {self.queue!r} does not exist{self.place}: declare it first"

    @property
    def place(self) -> str:
        """` in namespace 'other'`; empty for the default one."""
        return "" if self.namespace == "rqttl" else f" in namespace {self.namespace!r}"


class QueueForwards(QueueNotFound):
    """The messages go on to the queues `to`, from a topic or by `forward_to`, and nobody receives them here.

    Receive from one of these queues, or `subscribe` to the topic and receive from the subscription.
    """

    code = "forwards"

    def __init__(self, queue: str, to: Iterable[str] = (), *, is_topic: bool = True) -> None:
        super().__init__(queue)
        self.to = tuple(to)
        self.is_topic = is_topic

    def __str__(self) -> str:
        more = f" and {len(self.to) - 3:,} more" if len(self.to) > 3 else ""
        names = ", ".join(map(repr, self.to[:3]))
        if not self.is_topic:
            return f"queue {self.queue!r}{self.place} forwards its messages: receive from {names}"
        goal = f"receive from the queues that are bound to it: {names}{more}" if names else "subscribe to it first"
        return f"queue {self.queue!r}{self.place} is a topic, which passes its messages on: {goal}"


class DataDamaged(RqttlError):
    """A key has another type than rqttl gave it, or a record lacks a field: another program has written it.

    The message names the key. Look at it, then rename or delete it; `rqttl doctor` looks at all of them. `queue` is
    `None` for the registry and for the policies: none of these can be changed while a stored one cannot be read.
    """

    code = "damaged"

    def __init__(self, queue: str | None, damage: str) -> None:
        super().__init__(damage if queue is None else f"queue {queue!r} cannot be read: {damage}")
        self.queue = queue
        self.damage = damage

    @classmethod
    def of_key(cls, queue: str | None, key: object) -> DataDamaged:
        """The error for Redis's answer WRONGTYPE."""
        return cls(queue, f"the key {key!s} has another type than rqttl gave it: look at it, then rename or delete it")


class QueuesAway(RqttlError):
    """Some of many queues could not be read: their node of the cluster does not answer, or they are damaged.

    `found` has the answers of all others, `queues` the names of these. `rqttl doctor` names the node, or the damage.
    """

    code = "away"

    def __init__(self, found: Any, away: Mapping[str, Exception]) -> None:
        first, others = next(iter(away)), len(away) - 1
        more = f" and {others:,} other{'s' * (others > 1)}" if others else ""
        why = getattr(away[first], "damage", away[first])
        super().__init__(f"queue {first!r}{more} cannot be read now: {why}")
        self.found = found
        self.queues = tuple(away)


class PolicyNotFound(RqttlError):
    """There is no policy, or no operator policy, of this name.

    List the policies with `rqttl policy ls`.
    """

    code = "policy_not_found"

    def __init__(self, name: object, *, operator: bool = False) -> None:
        super().__init__(f"{'operator ' if operator else ''}policy {name!r} does not exist")
        self.name = name
        self.operator = operator


class PolicyDecides(RqttlError):
    """The queue cannot be paused, or resumed, because a policy says otherwise. Nothing was changed.

    Change the policy, or remove it with `rqttl policy delete`.
    """

    code = "policy_decides"

    def __init__(self, queue: str, *, paused: bool, source: str) -> None:
        super().__init__(f"queue {queue!r} {'stays paused' if paused else 'cannot be paused'}: {source} decides")
        self.queue = queue
        self.source = source


class QueueMismatch(RqttlError):
    """The queue exists with other options, is bound to the topic with another filter, or only one of both is a topic.

    `differences` maps each option to (requested, declared). Request the declared options, or change them with `update`:
    then every program must request the new ones. A policy changes options that no program requests. `set_filter`
    changes a filter. A queue never becomes a topic: choose another name, or delete it first.
    """

    code = "mismatch"

    def __init__(
        self, queue: str, differences: Differences, written: Differences | None = None, *, text: str = ""
    ) -> None:
        # the message has durations as `update` takes them; `differences` has milliseconds
        pairs = (differences if written is None else written).items()
        listed = "; ".join(f"{name}: requested {ours!r}, declared {theirs!r}" for name, (ours, theirs) in pairs)
        super().__init__(text or f"queue {queue!r} exists with other options ({listed}): use update() to change them")
        self.queue = queue
        self.differences = dict(differences)


class QueueFull(RqttlError):
    """A `reject-publish` queue has no room for the message. `enqueue` raises it, `enqueue_many` returns it.

    Send again after consumers have made room, raise the limit, or choose another `overflow`.
    """

    code = "queue_full"

    def __init__(self, queue: str, limit: str, value: int) -> None:
        super().__init__(f"queue {queue!r} is full: {limit} is {value}")
        self.queue = queue
        self.limit = limit
        self.value = value


class QueueInUse(RqttlError):
    """The queue has consumers (`delete(if_unused=True)`) or messages (`delete(if_empty=True)`).

    Stop the consumers, empty the queue, or leave the condition out.
    """

    code = "in_use"

    def __init__(self, queue: str, condition: str, count: int) -> None:
        noun = f"consumer{'s' * (count != 1)}" if condition == "if_unused" else f"message{'s' * (count != 1)}"
        super().__init__(f"queue {queue!r} was not deleted: {condition} is set and it has {count:,} {noun}")
        self.queue = queue
        self.condition = condition
        self.count = count


class LeaseLost(RqttlError):
    """The leases of the deliveries in `ids` had ended before the settle or renewal. All others were settled.

    The messages are delivered again: make the work repeatable, use a longer `lease`, or use `run` or `consume`, which
    renew leases.
    """

    code = "lease_lost"

    def __init__(self, queue: str, ids: Sequence[str]) -> None:
        super().__init__(
            f"queue {queue!r}: the lease had ended for {_list_ids(ids)}; another consumer may hold the message now"
        )
        self.queue = queue
        self.ids = tuple(ids)


class MessageLeased(RqttlError):
    """A consumer has the message `id`, so nobody else may move, delete, expire, dead-letter or redeliver it.

    Nothing was changed. Its lease ends at `until`, unless the consumer settles the message before or renews the lease.
    """

    code = "leased"

    def __init__(self, queue: str, id: str, until: datetime) -> None:
        at = until.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
        super().__init__(f"queue {queue!r}: a consumer has message {id!r}, its lease ends at {at} UTC")
        self.queue = queue
        self.id = id
        self.until = until


class SearchIncomplete(RqttlError):
    """A search for a message id did not see the whole queue, so there may be messages with the id that it did not find.

    Nothing was changed. `sequences` are those of the messages that it found: name one by its sequence. `message` looks
    through more messages with `scan` (`None`: all).
    """

    code = "search_incomplete"

    def __init__(self, queue: str, id: str, sequences: Sequence[str] = ()) -> None:
        found = f"found {_list_ids(sequences)}" if sequences else "found none"
        super().__init__(f"queue {queue!r}: the search for id {id!r} {found}, and did not see the whole queue")
        self.queue = queue
        self.id = id
        self.sequences = tuple(sequences)


class AlreadySettled(RqttlError):
    """The delivery was acked, nacked or rejected before, or it was received with `auto_ack=True`.

    Settle each delivery once; `with delivery:` does.
    """

    code = "already_settled"

    def __init__(self, queue: str, id: str, how: str) -> None:
        super().__init__(f"queue {queue!r}: delivery of {id!r} is settled already ({how})")
        self.queue = queue
        self.id = id
        self.how = how


class OutcomeUnknown(RqttlError):
    """The reply to a call was lost: Redis may or may not have performed the call.

    `action` names the call. Look at the queue; or send again with an `id` to a queue with a `duplicate_window`
    (`enqueue_many` takes a window for one call). After `ack`, `nack` and `reject`, `ids` names the
    messages whose leases ended before the call could be repeated.
    """

    code = "outcome_unknown"

    def __init__(self, queue: str, action: str, ids: Sequence[str] = ()) -> None:
        of = f" of {_list_ids(ids)}" if ids else ""
        super().__init__(
            f"queue {queue!r}: the connection was lost before the reply to {action}{of} arrived; "
            "Redis may or may not have performed it"
        )
        self.queue = queue
        self.action = action
        self.ids = tuple(ids)


class NotReplicated(OutcomeUnknown):
    """Messages are stored, but Redis has not confirmed the `durability` of the queue within 1 s.

    They are delivered unless the primary dies now. `receipts` has what the call would have returned, the first
    `confirmed` of them confirmed; nothing beyond them was sent. Send again: with an `id` and a `duplicate_window`
    nothing is stored twice, and a duplicate is confirmed, too.
    """

    code = "not_replicated"

    def __init__(self, queue: str, durability: str, why: str, receipts: Sequence[Any] = (), confirmed: int = 0) -> None:
        RqttlError.__init__(
            self,
            f"queue {queue!r}: durability={durability} is not confirmed ({why}): the messages are stored on the "
            "primary, and delivered unless it dies now; sending again is safe with an id and a duplicate_window",
        )
        self.queue, self.action, self.ids = queue, "enqueue", ()
        self.durability, self.why = durability, why
        self.receipts, self.confirmed = tuple(receipts), confirmed


class ScriptsForgotten(RqttlError):
    """Redis forgot the script of a call after each load. Nothing was changed.

    Find the program that calls `SCRIPT FLUSH` again and again, and stop it.
    """

    code = "scripts_forgotten"

    def __init__(self, script: str) -> None:
        super().__init__(f"script {script}: Redis forgot it again and again; another program calls SCRIPT FLUSH")
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
    """A call was made after `close()` of its broker, or it was waiting when another thread closed the broker.

    Make a new broker, and close it only after the last use of its queues and consumers.
    """

    code = "closed"

    def __init__(self) -> None:
        super().__init__("the broker is closed: its queues and consumers end with it; connect again")


class EmbeddedUnavailable(RqttlError):
    """No embedded server: no binary, a folder that is not private or not its own, data it cannot read, no answer.

    Follow the message, or name another Redis with `--url` or `$RQTTL_URL`.
    """

    code = "embedded_unavailable"


class InvalidInput(RqttlError, ValueError):
    """An argument breaks a rule. Nothing was changed.

    The message names the argument, the value and the rule.
    """

    code = "invalid_input"


class InvalidName(InvalidInput):
    """The name of a queue or a namespace, or a message id, has a wrong form.

    The message names the allowed characters and the allowed length.
    """

    code = "invalid_name"


class InvalidOption(InvalidInput):
    """A queue option is unknown, of the wrong type, out of range, or contradicts another one.

    The README has a table of all options.
    """

    code = "invalid_option"


class InvalidPolicy(InvalidInput):
    """A part of a policy breaks a rule: its name, its pattern, an option of its definition. The policy was not set.

    The message names the policy, the option, the value and the rule.
    """

    code = "invalid_policy"


class InvalidDuration(InvalidInput):
    """A duration has no unit, has a wrong form, or is not between 0 and ten years.

    Write it with a unit, such as `1500ms`, `30s`, `5m`, `2h`, `1d` or `1w`; only `0` needs none.
    """

    code = "invalid_duration"


class MessageTooLarge(InvalidInput):
    """A body or the headers of a message are larger than the limit.

    Store the body elsewhere and send its address, or raise `max_message_bytes`.
    """

    code = "message_too_large"


class MalformedMessage(InvalidInput):
    """The header of a message has a wrong form. `place` is the number of the message in its batch, from 1 on.

    Send through this library. For calls of the scripts from other programs, `lua/README.md` describes the form.
    """

    code = "malformed"

    def __init__(self, queue: str, place: int) -> None:
        super().__init__(
            f"queue {queue!r}: expected a packed header without deaths (lua/README.md), got something else in message "
            f"{place} of the batch: the batch was not stored"
        )
        self.queue = queue
        self.place = place


class _InFile(Exception):  # a base, which is never raised
    def __init__(self, place: str, rule: str) -> None:
        super().__init__(f"{place}: {rule}")
        self.place = place


class InvalidDeployment(_InFile, InvalidInput):
    """A deployment file has a wrong form, or a queue or a policy in it breaks a rule. Nothing was changed.

    `place` is a path in the file such as `queues.orders.max-length`, with line and column if they are known.
    """

    code = "invalid_deployment"


class InvalidImport(_InFile, InvalidInput):
    """A file of another broker has a wrong form. Nothing of it was taken.

    `place` is the part of the file that is wrong, as a path from its root: `$.queues[3].arguments`.
    """

    code = "invalid_import"


class ContractError(RqttlError):
    """The library and its scripts disagree. This is a bug of rqttl.

    Report it, with the output of `--debug`.
    """

    code = "bug"


def _list_ids(ids: Sequence[str]) -> str:
    return ", ".join(ids[:5]) + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")
