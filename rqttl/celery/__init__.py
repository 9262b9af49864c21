"""Celery and kombu on rqttl: `broker_transport = "rqttl.celery:Transport"`, with `broker_url = "redis://…"`.

Where this module is imported, URLs may name the transport, too: `rqttl://…`, `rqttl+redis+sentinel://…`,
`redis-sentinel://…`. It needs the extra `rqttl[celery]`, and `import rqttl` does not load it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from kombu.transport import TRANSPORT_ALIASES

from rqttl.celery.transport import Transport
from rqttl.queue import Queue
from rqttl.types import Duration

__all__ = ["Transport", "cancel", "reschedule"]

#: What URLs may begin with. Before a + kombu expects the name of a transport, so there is a - within ours.
SCHEMES = ("rqttl", "redis-sentinel", "rediss-sentinel", "redis-cluster", "rediss-cluster")
TRANSPORT_ALIASES.update(dict.fromkeys(SCHEMES, "rqttl.celery:Transport"))


def cancel(app: Any, task_id: str, queue: str = "celery") -> int:
    """Remove a task that waits in `queue` for its `eta` or `countdown`. Returns 0 if it does not wait any more.

    A revocation is in the memory of workers only; this acts in Redis.
    """
    return sum(part.cancel(task_id) for part in _parts(app, queue))


def reschedule(
    app: Any, task_id: str, queue: str = "celery", *, countdown: Duration | None = None, eta: datetime | None = None
) -> int:
    """Give a task that waits in `queue` for its time another one: in `countdown`, such as `"10m"`, or at `eta`.

    Returns 0 if it does not wait any more.
    """
    return sum(part.reschedule(task_id, delay=countdown, deliver_at=eta) for part in _parts(app, queue))


def _parts(app: Any, queue: str) -> Iterator[Queue]:
    with app.connection_for_write() as connection:
        channel = connection.default_channel
        yield from map(channel.connection.broker.queue, channel.parts(queue))
