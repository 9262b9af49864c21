"""Celery on rqttl: `celery -A examples.celery_app worker`; `python -m examples.celery_app` sends some tasks."""

import os

from celery import Celery
from celery.exceptions import Reject

from rqttl.celery import cancel

app = Celery("examples.celery_app", broker=os.environ.get("RQTTL_URL", "redis://localhost:6379/0"))
app.conf.broker_transport = "rqttl.celery:Transport"
app.conf.broker_transport_options = {"lease": "1m", "queue_options": {"max_deliveries": 3}}
app.conf.task_acks_late = app.conf.task_reject_on_worker_lost = True  # what a dead worker had runs again


@app.task(autoretry_for=(OSError,), retry_backoff=1, ignore_result=True)
def ship(item: int) -> None:
    """Ship an item."""
    if item == 0:
        raise Reject("no such item", requeue=False)  # a dead letter in celery/dead
    print(f"shipped item {item}")


if __name__ == "__main__":
    ship.delay(7)
    ship.delay(0)
    ship.apply_async((8,), countdown=1)  # it waits in Redis, not in a worker
    ship.apply_async((9,), countdown=3600, task_id="order-9")
    print("cancelled", cancel(app, "order-9"))
    ship.apply_async((10,), expires=0.001)  # too late: a dead letter, too
