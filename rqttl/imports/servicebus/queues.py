"""Queues of Service Bus as queues of rqttl: which property becomes which option."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rqttl.imports.collector import Collector
from rqttl.imports.names import NameTable, translate
from rqttl.imports.report import Notes
from rqttl.imports.servicebus.durations import parse_duration
from rqttl.imports.servicebus.resources import Resource
from rqttl.imports.servicebus.values import Unknown, unknown_part
from rqttl.imports.source import at, optional_object, read_flag, read_text, read_whole
from rqttl.units import MAX_DURATION, as_text

#: The longest name of a queue whose dead-letter queue `{queue}/dead` has a valid name, too.
LONGEST = 128 - len("/dead")
_KIBI = 1024
_LEFT_OUT = {
    "requiresSession": "rqttl has no sessions: give each session a queue of its own, read by one consumer",
    "enablePartitioning": "Redis Cluster spreads queues, and never one queue: use several queues",
    "enableExpress": "Redis holds all messages in memory",
    "enableBatchedOperations": "`enqueue_many`, `receive_many` and `ack_many` always work in batches",
    "supportOrdering": "each queue of rqttl keeps the order",
    "isAnonymousAccessible": "Redis decides who may connect: use its ACLs",
    "entityAvailabilityStatus": "it is a state, not a setting",
    "userMetadata": "a queue of rqttl has no free text",
    "accessedAt": "it is a state, not a setting",
    "countDetails": "it is a state, not a setting",
    "createdAt": "it is a state, not a setting",
    "messageCount": "it is a state, not a setting",
    "sizeInBytes": "it is a state, not a setting",
    "updatedAt": "it is a state, not a setting",
}
_ALREADY = {
    "requiresSession": "no sessions, as in rqttl",
    "enablePartitioning": "one part, as in rqttl",
    "enableExpress": "rqttl makes no difference here",
    "supportOrdering": "rqttl makes no difference here",
    "isAnonymousAccessible": "Redis decides who may connect: use its ACLs",
}


@dataclass(frozen=True)
class Namespace:
    """The queues and topics of one namespace. Service Bus compares their names without case.

    `by_spelling` maps names in small letters to the names of queues in the template. `topics` has the names of topics
    in small letters, and `used` has the names of queues in rqttl.
    """

    names: NameTable
    by_spelling: Mapping[str, str]
    topics: frozenset[str]
    used: frozenset[str]

    def target(self, name: str) -> str | None:
        """The queue in rqttl for a name in the template. `None` for a topic, or for a name without a counterpart."""
        spelling = name.lower()
        if spelling in self.topics:
            return None
        source = self.by_spelling.get(spelling)
        return (translate(name, LONGEST) or None) if source is None else self.names.names.get(source)


class QueueReader:
    """Reads the properties of one queue."""

    def __init__(self, resource: Resource, namespace: Namespace, notes: Notes) -> None:
        self.resource = resource
        self.namespace = namespace
        self.source = resource.segments[1]
        self.name = namespace.names.names[self.source]
        self.place = at(resource.place, "properties")
        self.properties = optional_object(resource.body, "properties", resource.place)
        self.out = Collector(notes, f"queue {resource.name!r}")
        self.unknown: set[str] = set()

    def options(self) -> dict[str, object]:
        """The options for `declare_queue`, with a note for each property."""
        self._lease()
        self._time_to_live()
        self._deliveries()
        self._size()
        self._duplicates()
        self._idle()
        self._dead_letters()
        self._forwarding()
        self._status()
        for setting in sorted(self.properties.keys() - _READ):
            self._leave_out(setting)
        return self.out.options

    def value(self, setting: str, read: Callable[[object, str], Any]) -> Any:
        """The value of a property. `None` if the queue has none, or if only a deployment computes it (noted once)."""
        if setting not in self.properties:
            return None
        value = self.resource.values.resolve(self.properties[setting])
        reason = value.reason if isinstance(value, Unknown) else unknown_part(value) if isinstance(value, str) else ""
        if reason:
            if setting not in self.unknown:
                self.unknown.add(setting)
                self.out.left_out(setting, self.properties[setting], f"the value is unknown: {reason}")
            return None
        return None if value is None else read(value, at(self.place, setting))

    def duration(self, setting: str) -> int | None:
        """The milliseconds of a property."""
        text = self.value(setting, read_text)
        return None if text is None else parse_duration(text, at(self.place, setting))

    def _lease(self) -> None:
        length = self.duration("lockDuration")
        if length is not None:
            self.out.take("lease", as_text(length), "lockDuration", self.properties["lockDuration"])
        elif "lockDuration" not in self.unknown:
            self.out.take("lease", "1m", "lockDuration", None, because="the default of Service Bus")

    def _time_to_live(self) -> None:
        length, original = self.duration("defaultMessageTimeToLive"), self.properties.get("defaultMessageTimeToLive")
        if length is None:
            return
        if length > MAX_DURATION:
            self.out.translated("defaultMessageTimeToLive", original, "no message_ttl: it is longer than ten years")
        else:
            because = "default and ceiling, also for messages that wait already when it changes"
            self.out.take("message_ttl", as_text(length), "defaultMessageTimeToLive", original, because=because)

    def _deliveries(self) -> None:
        count = self.value("maxDeliveryCount", read_whole)
        if count is not None:
            self.out.take("max_deliveries", count, "maxDeliveryCount", self.properties["maxDeliveryCount"])
        elif "maxDeliveryCount" not in self.unknown:
            self.out.take("max_deliveries", 10, "maxDeliveryCount", None, because="the default of Service Bus")

    def _size(self) -> None:
        size = self.value("maxSizeInMegabytes", read_whole)
        if size is not None:
            because = "ready bodies count, and dead letters do not; Service Bus counts headers and dead letters, too"
            original = self.properties["maxSizeInMegabytes"]
            if self.out.take("max_length_bytes", size * _KIBI**2, "maxSizeInMegabytes", original, because=because):
                because = "a full queue of Service Bus refuses messages"
                self.out.take("overflow", "reject-publish", "maxSizeInMegabytes", original, because=because)
        elif "maxSizeInMegabytes" not in self.unknown:
            self.out.left_out("maxSizeInMegabytes", None, "Service Bus has a limit by default; rqttl sets none unasked")
        largest = self.value("maxMessageSizeInKilobytes", read_whole)
        if largest is not None:
            original = self.properties["maxMessageSizeInKilobytes"]
            because = "the body counts; Service Bus counts headers, too"
            self.out.take("max_message_bytes", largest * _KIBI, "maxMessageSizeInKilobytes", original, because=because)

    def _duplicates(self) -> None:
        required = self.value("requiresDuplicateDetection", read_flag)
        window, setting = self.duration("duplicateDetectionHistoryTimeWindow"), "duplicateDetectionHistoryTimeWindow"
        original = self.properties.get(setting)
        if not required:
            if required is False:
                self.out.taken("requiresDuplicateDetection", required, "no duplicate_window")
            if window is not None:
                self.out.left_out(setting, original, "it does nothing without requiresDuplicateDetection")
            return
        self.out.translated("requiresDuplicateDetection", required, "duplicate_window: for messages with an id")
        if window is not None:
            self.out.take("duplicate_window", as_text(window), setting, original)
        elif setting not in self.unknown:
            self.out.take("duplicate_window", "10m", setting, None, because="the default of Service Bus")

    def _idle(self) -> None:
        length, original = self.duration("autoDeleteOnIdle"), self.properties.get("autoDeleteOnIdle")
        if length is None:
            return
        if length > MAX_DURATION:
            self.out.translated("autoDeleteOnIdle", original, "no auto_delete_on_idle: it is longer than ten years")
        else:
            self.out.take("auto_delete_on_idle", as_text(length), "autoDeleteOnIdle", original)

    def _dead_letters(self) -> None:
        target = self._dead_letter_target()
        setting, original = "deadLetteringOnMessageExpiration", self.properties.get("deadLetteringOnMessageExpiration")
        expired = self.value(setting, read_flag)
        if target is None:
            self.out.left_out("", None, "no dead-letter queue: no free name was left for it; set dead_letter yourself")
            if expired is not None:
                self.out.left_out(setting, original, "no dead-letter queue")
            return
        because = "the dead-letter queue of Service Bus"
        self.out.take("dead_letter_delivery_limit", target, "", None, because=because)
        self.out.take("dead_letter_rejected", target, "", None, because=because)
        if expired:
            self.out.take("dead_letter_expired", target, setting, original)
        elif expired is False:
            self.out.taken(setting, original, "expired messages are dropped, and counted")

    def _dead_letter_target(self) -> str | None:
        setting = "forwardDeadLetteredMessagesTo"
        forward = self.value(setting, read_text)
        if forward:
            target = self.namespace.target(forward)
            if target is None:
                self.out.left_out(setting, forward, f"{forward!r} is no queue of the import: rqttl has no topics yet")
            elif target == self.name:
                self.out.left_out(setting, forward, "a queue cannot be its own target")
            else:
                self.out.translated(setting, forward, f"dead letters go to {target!r} at once")
                return target
        elif forward is not None:
            self.out.taken(setting, forward, "no forwarding")
        return self._own_dead_letter_queue()

    def _own_dead_letter_queue(self) -> str | None:
        """A template for the name of the dead-letter queue, which no other queue has."""
        for word in ("dead", "dead-letters", "deadletterqueue"):
            name = f"{self.name}/{word}"
            if name not in self.namespace.used and len(name) <= LONGEST + len("/dead"):
                return f"{{queue}}/{word}"
        return None

    def _forwarding(self) -> None:
        forward = self.value("forwardTo", read_text)
        if forward:
            text = f"rqttl forwards no messages: send to {forward!r} itself; until then messages stay in this queue"
            self.out.left_out("forwardTo", forward, text)
        elif forward is not None:
            self.out.taken("forwardTo", forward, "no forwarding")

    def _status(self) -> None:
        status = self.value("status", read_text)
        if status == "Active":
            self.out.taken("status", status, "the queue takes and gives messages")
        elif status is not None:
            text = "rqttl stops no single queue: stop its senders and consumers, or limit their rights in Redis"
            self.out.left_out("status", status, text)

    def _leave_out(self, setting: str) -> None:
        value = self.properties[setting]
        if value is False and setting in _ALREADY:
            self.out.taken(setting, value, _ALREADY[setting])
        else:
            self.out.left_out(setting, value, _LEFT_OUT.get(setting, "rqttl knows no such property of a queue"))


_READ = frozenset(
    {
        "lockDuration",
        "defaultMessageTimeToLive",
        "maxDeliveryCount",
        "maxSizeInMegabytes",
        "maxMessageSizeInKilobytes",
        "requiresDuplicateDetection",
        "duplicateDetectionHistoryTimeWindow",
        "autoDeleteOnIdle",
        "status",
        "forwardTo",
        "deadLetteringOnMessageExpiration",
        "forwardDeadLetteredMessagesTo",
    }
)
