"""The policies in a pass of a reaper, as flows: queues with the options of older policies get the present ones.

A client that died after it had changed the policies, or while it created a queue, leaves such queues.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from rqttl import flows
from rqttl.flows.steps import Flow
from rqttl.protocol.keys import Keyspace
from rqttl.reaper.report import Refusals, log_event

EFFECT = "options in force do not follow the policies"


class Reconciler:
    """Brings options in force up to date. Damaged policies, and refusals of Redis, are logged and stop no reaper."""

    def __init__(self, keyspace: Keyspace, refusals: Refusals) -> None:
        self._keyspace = keyspace
        self._refusals = refusals

    def check(self, versions: Mapping[str, bytes | None]) -> Flow[None]:
        """Reconcile the queues that name another version of the policies than the stored one."""
        if versions:
            with self._refusals.noted(EFFECT):
                stored = yield from flows.policies.current(self._keyspace)
                version = b"%d" % stored.version
                yield from self._reconcile([name for name, known in versions.items() if known != version])
                for damage in stored.damaged:
                    raise damage.error

    def reconcile(self, queues: Sequence[str]) -> Flow[None]:
        """Reconcile these queues. A damaged queue is left out: its sweep reports it."""
        with self._refusals.noted(EFFECT):
            yield from self._reconcile(queues)

    def _reconcile(self, queues: Sequence[str]) -> Flow[None]:
        if not queues:
            return
        result = yield from flows.policies.reconcile(self._keyspace, queues)
        for queue, options in result.changed.items():
            names = ", ".join(options)
            log_event(
                logging.INFO,
                "queue_reconciled",
                f"queue {queue}: its policies give it other options: {names}",
                queue=queue,
                options=list(options),
            )
