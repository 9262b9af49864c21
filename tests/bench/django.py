"""What the backend of Django's tasks adds to a send: `build/django-newest/bin/python -m tests.bench.django`."""

import os
import secrets
import sys
from collections.abc import Callable
from time import process_time
from timeit import timeit
from typing import Any

import rqttl
from tests.bench.measure import Table, running_server
from tests.ports import free_port
from tests.repository import ROOT

SENDS, ROUNDS = 50, 200


def main() -> None:
    import django
    from django.test import override_settings

    sys.path.insert(0, str(ROOT / "tests" / "django" / "project"))
    os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
    django.setup()
    from shop.tasks import add

    with running_server() as server, server.client() as client:
        client.config_set("port", port := free_port())  # by TCP, as applications do
        broker = rqttl.connect(url := f"redis://127.0.0.1:{port}")
        queue, body = (
            broker.declare_queue("default"),
            b'{"args": [1, 2], "kwargs": {}, "sent": "2026-11-30 00:00:00.000001+00:00"}',
        )
        backend: dict[str, Any] = {"BACKEND": "rqttl.django.RqttlBackend", "QUEUES": ["default", "mails"]}

        def plain() -> object:
            return queue.enqueue(body)

        def same() -> object:
            headers: dict[str, Any] = {"task": "shop.tasks.add", "priority": 0}
            return queue.enqueue(body, headers=headers, id=secrets.token_hex(16), content_type="application/json")

        def kept() -> object:
            return add.enqueue(1, 2)

        seconds: dict[Callable[[], object], list[float]] = {plain: [], same: [], add.enqueue: [], kept: []}
        for _ in range(ROUNDS):
            for send, found in seconds.items():
                options = {"url": url, **({"results": "1h"} if send is kept else {})}
                with override_settings(TASKS={"default": {**backend, "OPTIONS": options}}):
                    call = (lambda: add.enqueue(1, 2)) if send == add.enqueue else send
                    call()
                    found.append(timeit(call, timer=process_time, number=SENDS) / SENDS)
        table = Table()
        for name, send, base, goal in (
            ("enqueue of a task / queue.enqueue of the same message", add.enqueue, same, 1.5),
            ("the same / queue.enqueue of a body alone", add.enqueue, plain, 2),
            ("enqueue of a task with results / queue.enqueue of the message", kept, same, 3),
        ):
            best = min(seconds[send])  # other programs only add to a time
            table.row(name, best / min(seconds[base]), f"<= {goal}", f"{best * 1e6:.0f} us")
        sys.exit(table.missed)


if __name__ == "__main__":
    main()
