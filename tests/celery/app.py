"""The application of the tests; the environment says where its broker is."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from celery import Celery, shared_task

import rqttl.celery  # noqa: F401  # for URLs with the name of the transport


def configure(environment: Mapping[str, str]) -> Celery:
    """An application with these settings, on rqttl or on the Redis transport of kombu."""
    transport, broker, backend = (environment[name] for name in ("TRANSPORT", "BROKER", "BACKEND"))
    sockets = [url.replace("unix://", "redis+socket://") for url in (broker, backend)]
    app = Celery("tests", broker=broker if transport else sockets[0], backend=sockets[1], set_as_current=False)
    options: dict[str, Any] = {}
    if "LEASE" in environment:  # kombu looks for what is not acked each 100 s, if nobody tells it to do so each second
        options |= {"visibility_timeout": int(environment["LEASE"])}
        options |= {"unacked_restore_interval": 1, "unacked_restore_throttle": 1}
    if "MAX_DELIVERIES" in environment:
        options["queue_options"] = {"max_deliveries": int(environment["MAX_DELIVERIES"])}
    late = bool(environment.get("ACKS_LATE"))
    app.conf.update(
        broker_transport=transport or None,
        broker_transport_options=options,
        broker_connection_retry_on_startup=True,
        task_acks_late=late,
        task_reject_on_worker_lost=late,
        worker_prefetch_multiplier=int(environment.get("MULTIPLIER", "4")),
        worker_send_task_events=bool(environment.get("EVENTS")),
        task_track_started=True,
    )
    return app


def note(text: str) -> None:
    with Path(os.environ["NOTES"]).open("a") as notes:
        notes.write(f"{text} by {os.getppid()}/{os.getpid()}\n")


@shared_task
def add(one: int, other: int) -> int:
    return one + other


@shared_task(ignore_result=True)
def noop() -> None:
    pass


@shared_task(bind=True, ignore_result=True)
def mark(self: Any, number: int = 0, seconds: float = 0) -> None:
    """Note the start and the end, and whether it comes again."""
    note(f"start {number} {self.request.delivery_info['redelivered']}")
    time.sleep(seconds)
    note(f"end {number}")


@shared_task(bind=True, ignore_result=True)
def die(self: Any) -> None:
    note("died")
    os.kill(os.getpid(), 9)


@shared_task(bind=True, max_retries=3)
def twice_in_vain(self: Any) -> int:
    if self.request.retries < 2:
        raise self.retry(countdown=0.2)
    return int(self.request.retries)


@shared_task
def send_on(number: int) -> str:
    """Send from a child of the worker."""
    return str(mark.delay(number).id)


if "BROKER" in os.environ:
    app = configure(os.environ)
    app.set_current()
