"""One vhost of RabbitMQ as a deployment."""

from __future__ import annotations

from collections.abc import Mapping

from rqttl.errors import InvalidInput
from rqttl.imports import table
from rqttl.imports.names import NameTable
from rqttl.imports.rabbitmq.dead_letters import DeadLetters
from rqttl.imports.rabbitmq.definitions import Queue, SourcePolicy, VHost
from rqttl.imports.rabbitmq.effective import Effect, Effects
from rqttl.imports.rabbitmq.policies import PolicyReader, TakenPolicy, as_file
from rqttl.imports.rabbitmq.precedence import separated
from rqttl.imports.rabbitmq.settings import (
    DEFAULT_DELIVERY_LIMIT,
    SettingsReader,
    SourceSetting,
    has_default_limit,
    read_settings,
)
from rqttl.imports.report import Collector, ImportedDeployment, Notes
from rqttl.options import QueueOptions
from rqttl.text import plain_whole

_TYPES = ("classic", "quorum")
_READ = frozenset({"name", "vhost", "arguments"})
_LIMIT, _OVERFLOW = "delivery-limit", "overflow"


class VHostReader:
    """Reads the queues and policies of one vhost."""

    def __init__(self, vhost: VHost, version: tuple[int, ...] | None, notes: Notes) -> None:
        self._vhost = vhost
        self._version = version
        self._notes = notes
        self._queues = [queue for queue in vhost.queues.values() if not _reason_against(queue)]
        self._names = NameTable.of(queue.name for queue in self._queues)
        self._dead_letters = DeadLetters(vhost, self._names)

    def deployment(self, namespace: str) -> ImportedDeployment:
        """The queues and policies. Note every field of each."""
        policies = self._policies(self._vhost.policies)
        operators = self._policies(self._vhost.operator_policies)
        effects = (Effects(policies, operator=False), Effects(operators, operator=True))
        queues: dict[str, Mapping[str, object]] = {}
        for queue in self._vhost.queues.values():
            reason = _reason_against(queue) or self._names.refused.get(queue.name, "")
            if reason:
                self._notes.left_out(queue.subject, "", None, f"the queue is not imported: {reason}")
                continue
            name = self._names.names[queue.name]
            effective = [effect.of(queue, name) for effect in effects]
            options = self._queue(queue, name, *effective)
            if options is not None:
                queues[name] = options
        return ImportedDeployment(
            queues,
            {p.policy.name: as_file(p.policy) for p in policies if p.policy},
            {p.policy.name: as_file(p.policy) for p in operators if p.policy},
            namespace,
        )

    def _policies(self, sources: Mapping[str, SourcePolicy]) -> list[TakenPolicy]:
        return separated(PolicyReader(sources, self._dead_letters, self._notes).read(), self._notes)

    def _queue(self, queue: Queue, name: str, policy: Effect, operator: Effect) -> Mapping[str, object] | None:
        out = Collector(self._notes, queue.subject)
        (out.taken if name == queue.name else out.translated)("name", queue.name, self._names.note(queue.name))
        for key in sorted(queue.body.keys() - _READ):
            table.take(out, "rabbitmq queue", key, key, queue.body[key], f"{queue.place}.{key}")
        settings = read_settings(queue.arguments, f"{queue.place}.arguments", "x-")
        definition = _definition(policy)
        if queue.kind == "quorum" and _OVERFLOW in settings and _OVERFLOW in definition:
            overflow = settings.pop(_OVERFLOW)
            text = "overflow comes from the policy, which RabbitMQ prefers for a quorum queue"
            out.translated(overflow.name, overflow.value, text)
        SettingsReader(settings, out, queue.kind).read()
        self._dead_letters.of_queue(queue.name, settings, definition, out)
        if queue.kind == "quorum":
            self._default_limit([settings, definition, _definition(operator)], out)
        for setting, effect in (("policy", policy), ("operator policy", operator)):
            for words in effect.differences:
                out.translated(setting, effect.policy.source.name if effect.policy else None, words)
        try:
            QueueOptions.read(name, out.options)
        except InvalidInput as error:
            out.left_out("", None, f"the queue is not imported: {error}")
            return None
        return out.options

    def _default_limit(self, places: list[Mapping[str, SourceSetting]], out: Collector) -> None:
        """Take RabbitMQ's limit for a quorum queue to which nothing gives one."""
        if any(_LIMIT in place and plain_whole(place[_LIMIT].value) is not None for place in places):
            return
        if has_default_limit(self._version):
            because = f"the default of RabbitMQ 4, {DEFAULT_DELIVERY_LIMIT}, and the failure that ends the message"
            out.take("max_deliveries", DEFAULT_DELIVERY_LIMIT + 1, _LIMIT, None, because=because)
        elif self._version is None:
            text = "no max_deliveries: the file does not name its RabbitMQ, and since 4.0 the default is 20"
            out.left_out(_LIMIT, None, text)


def _definition(effect: Effect) -> Mapping[str, SourceSetting]:
    if effect.policy is None:
        return {}
    source = effect.policy.source
    return read_settings(source.definition, f"{source.place}{'.value' * source.operator}.definition")


def _reason_against(queue: Queue) -> str:
    """The reason why a queue is not imported, if there is one."""
    if queue.kind == "stream":
        return "rqttl has no streams: consumers read a queue once; `peek` reads without consuming"
    if queue.kind not in _TYPES:
        return f"rqttl has no queue like the type {queue.kind!r}"
    if queue.body.get("exclusive") is True:
        return "an exclusive queue ends with its connection: a program declares one of its own, with `expires`"
    return ""
