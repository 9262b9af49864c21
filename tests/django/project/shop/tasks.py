"""Tasks that append lines to `notes` in the working folder, and a view that sends some."""

import asyncio
import os
import signal
import threading
from pathlib import Path
from typing import Any

from django.db import connection
from django.http import HttpResponse
from django.urls import path

import rqttl
from rqttl.django import tasks

LOOPS = set[asyncio.AbstractEventLoop]()
BOTH = threading.Barrier(2)


def note(*words: object) -> None:
    with Path("notes").open("a", encoding="utf-8") as notes:
        notes.write(" ".join(map(str, words)) + "\n")


@tasks.task
def add(*numbers: int, **named: int) -> int:
    note("add", *numbers, *named.items())
    return sum(numbers) + sum(named.values())


@tasks.task(queue_name="mails")
async def aadd(*numbers: int) -> int:
    note("aadd", *numbers)
    LOOPS.add(asyncio.get_running_loop())
    return sum(numbers)


@tasks.task(takes_context=True)
def fails(context: Any, *outcomes: str) -> Any:
    """End as the outcomes say, one after the other."""
    result, outcome = context.task_result, outcomes[len(Path("notes").read_text().splitlines())]
    note(context.attempt, len(result.worker_ids), len(result.errors), result.status.value, outcome)
    if outcome == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if outcome not in {"done", "object"}:
        raise getattr(rqttl, outcome, ValueError)
    return outcome if outcome == "done" else object()


@tasks.task
def closes() -> None:
    """Use the database, and leave a connection that the server has closed."""
    connection.cursor().execute("SELECT 1").close()
    connection.connection.close()


@tasks.task
def meets() -> None:
    """Wait for another one."""
    BOTH.wait(300)


async def send(_: object) -> Any:
    one, other = await add.aenqueue(1, 2), await aadd.aenqueue(3, 4)
    return HttpResponse(f"{one.id} {other.id}")


urlpatterns = [path("send", send)]
