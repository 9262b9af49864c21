"""What the backend of Django's tasks adds to a send: `build/django-newest/bin/python -m tests.bench.django`."""

import os
import secrets
import sys
from collections.abc import Callable
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
        options = {"url": f"redis://127.0.0.1:{port}"}
        queue = rqttl.connect(options["url"]).declare_queue("default")

        def same() -> object:
            body = b'{"args": [1, 2], "kwargs": {}, "enqueued_at": "2026-11-30 00:00:00.000001+00:00", '
            body += b'"queue_name": "default", "priority": 0}'
            id = secrets.token_hex(16)
            return queue.enqueue(body, headers={"task": "shop.tasks.add"}, id=id, content_type="application/json")

        sends: tuple[tuple[Callable[[], object], Any], ...] = (
            (same, options),
            (lambda: add.enqueue(1, 2), options),
            (lambda: add.enqueue(1, 2), {**options, "results": "1h"}),
        )
        best = [1.0] * 3  # other programs only add to a time
        for i, (send, given) in [*enumerate(sends)] * ROUNDS:
            one = {"BACKEND": "rqttl.django.RqttlBackend", "QUEUES": ["default", "mails"], "OPTIONS": given}
            with override_settings(TASKS={"default": one}):
                send()
                best[i] = min(best[i], timeit(send, number=SENDS) / SENDS)
        table = Table()
        table.row(
            "enqueue of a task / queue.enqueue of its message", best[1] / best[0], "<= 1.5", f"{best[1] * 1e6:.0f} us"
        )
        table.row("the same with results", best[2] / best[0], "<= 3", f"{best[2] * 1e6:.0f} us")
        sys.exit(table.missed)


if __name__ == "__main__":
    main()
