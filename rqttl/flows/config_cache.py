"""The caches of a client: the configs of queues and the policies that it last read from Redis. No I/O here."""

from __future__ import annotations

import logging

from rqttl.errors import QueueNotFound
from rqttl.flows import policies, registry
from rqttl.flows.queues import config_of
from rqttl.flows.steps import Flow, GetConfig, GetPolicies
from rqttl.policies import PolicySet
from rqttl.protocol.commands import QueueConfig
from rqttl.protocol.keys import Keyspace
from rqttl.runtime.recent import Recent

logger = logging.getLogger("rqttl")

_EFFECT = "existing queues keep its options, new ones lack them; `rqttl doctor` has the remedy"
#: The number of queues whose configs a client keeps. It reads any other from Redis again.
KNOWN = 10_000


class ConfigCache(Recent[QueueConfig]):
    """Entries of the queues that a driver used last. It answers `GetConfig` and `Unregister`.

    An entry may be out of date: a script answers `stale` then, and a fresh look replaces the entry. A queue that is not
    there, and one that leaves the registry, has no entry.
    """

    def __init__(self, limit: int = KNOWN) -> None:
        super().__init__(limit)

    def answer(self, step: GetConfig) -> QueueConfig | None:
        """Return the answer to a step without asking Redis; `None` if `ask` has to be performed."""
        if step.newest is not None:
            self.put(step.queue, step.newest)
            return step.newest
        if step.fresh:
            return None
        return self.get(step.queue)

    def ask(self, keyspace: Keyspace, step: GetConfig) -> Flow[QueueConfig]:
        """Ask Redis about a queue, and remember the answer. Raises `QueueNotFound`."""
        try:
            config = yield from config_of(keyspace, step.queue, for_sweep=step.for_sweep)
        except QueueNotFound:
            self.forget(step.queue)
            raise
        self.put(step.queue, config)
        return config

    def unregister(self, keyspace: Keyspace, queue: str) -> Flow[int]:
        """Forget a deleted queue, and remove it from the registry; see `registry.unregister`."""
        self.forget(queue)
        return (yield from registry.unregister(keyspace, queue))


class PolicyCache:
    """The set of policies that a driver read last. It answers `GetPolicies`."""

    def __init__(self) -> None:
        self._known = PolicySet()

    def answer(self, step: GetPolicies) -> PolicySet | None:
        """Return the answer to a step without asking Redis; `None` if `ask` has to be performed."""
        known = self._known
        return known if known.version == step.version else None

    def ask(self, keyspace: Keyspace) -> Flow[PolicySet]:
        """Read the set that is stored now, and remember it. New damage is logged."""
        before, self._known = self._known, (yield from policies.read(keyspace))
        for damage in self._known.damaged:
            if damage not in before.damaged:
                logger.warning("%s; %s", damage.error, _EFFECT)
        return self._known
