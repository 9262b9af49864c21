"""`manage.py rqttl_worker`: `rqttl worker` for the queues of a backend, and the handlers of its child processes."""

import json
import os
import socket
from math import inf
from traceback import format_exc
from typing import Any, get_type_hints

import django
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.apps import apps
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import close_old_connections
from django.utils import timezone

from rqttl import Delivery, Reject, Release, RqttlError, Worker
from rqttl.django import UNREADABLE, RqttlBackend, change, discover, signals, tasks
from rqttl.outages import TEMPORARY
from rqttl.worker.settings import WorkerOptions

#: The options of a worker with their types.
OPTIONS = get_type_hints(WorkerOptions)
STATUS = tasks.TaskResultStatus

if not apps.ready:
    django.setup()
discover()


class Command(BaseCommand):
    """The command."""

    help = "Run the tasks of a backend. Options and signals are those of `rqttl worker`: its --help explains them."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options of a worker, and the alias of the backend."""
        parser.add_argument("queues", nargs="*", metavar="QUEUE", help="a name from QUEUES  [default: all, in order]")
        parser.add_argument("--backend", default="default", metavar="ALIAS", help="[default: default]")
        for name, kind in OPTIONS.items():
            value: Any = {"type": {int | None: int, float: float}.get(kind, str), "metavar": "X"}
            how = {"action": "store_true"} if kind is bool else value
            if name not in {"call", "exec", "delivery"}:  # these say what it runs
                parser.add_argument(f"--{name.replace('_', '-')}", **how)

    def handle(self, *_: str, backend: str, queues: list[str], **options: Any) -> None:
        """Declare the queues, and run tasks until a signal."""
        chosen = tasks.task_backends[backend]
        if not isinstance(chosen, RqttlBackend):
            raise CommandError(f"TASKS[{backend!r}] is a {type(chosen).__name__}, and a worker needs an RqttlBackend")
        if unknown := {*queues} - {*(chosen.queues or queues)}:
            raise CommandError(f"unknown queues {sorted(unknown)}; TASKS[{backend!r}] has {chosen.queues}")
        os.environ["RQTTL_DJANGO_BACKEND"] = backend  # for the children
        levels = chosen.levels(queues or chosen.queues)
        given = {name: options[name] for name in OPTIONS if options.get(name) is not None}
        call = f"{__name__}:{'arun' if options['asyncio'] else 'run'}"
        try:
            worker = Worker(chosen.broker, [*levels], call=call, delivery=True, **given)
            chosen.declare(levels)
            self.stdout.write(f"Running tasks of {', '.join(queues or chosen.queues)}. Quit with CONTROL-C.")
            worker.run()
        except (*TEMPORARY, RqttlError) as error:
            raise CommandError(str(error)) from error


async def arun(delivery: Delivery) -> None:
    """Run a task beside others, with a thread and connections of its own; a coroutine in the loop of all of them."""
    async with ThreadSensitiveContext():
        await sync_to_async(run)(delivery)


def run(delivery: Delivery) -> None:
    """Run a task. One that raises and comes again is ready until then."""
    close_old_connections()
    backend = tasks.task_backends[os.environ["RQTTL_DJANGO_BACKEND"]]
    result = _begin(delivery, backend)
    try:
        change(result, _return_value=_call(result), status=STATUS.SUCCESSFUL)
    except BaseException as error:
        limit = delivery.config.options.number("max_deliveries") or inf
        is_last = isinstance(error, Reject) or (delivery.delivery_count >= limit and not isinstance(error, Release))
        change(result, status=STATUS.FAILED if is_last else STATUS.READY)
        if not isinstance(error, Release):
            path = f"{type(error).__module__}.{type(error).__qualname__}"
            result.errors.append(tasks.base.TaskError(exception_class_path=path, traceback=format_exc()))
        raise
    finally:
        change(result, finished_at=timezone.now() if result.is_finished else None)
        backend.keep(result)
        if result.is_finished:
            signals.task_finished.send_robust(type(backend), task_result=result)
        close_old_connections()


def _begin(delivery: Delivery, backend: RqttlBackend) -> Any:
    """Return the result of a task that runs from now on. Raises `Reject` for a message that is none."""
    count, now = delivery.delivery_count, timezone.now()
    try:
        content = json.loads(delivery.body)
        facts = {name: content[name] for name in ("args", "kwargs", "queue_name", "priority", "enqueued_at")}
        result = backend.restored(delivery.headers["task"], delivery.id, **facts)
    except UNREADABLE as error:
        raise Reject(f"no task: {type(error).__name__}: {error}") from error
    if count > 1 and backend.supports_get_result:
        result = backend.kept(delivery.id) or result
    workers = [*result.worker_ids, *"?" * count][: count - 1]  # without results nobody knows them
    change(result, worker_ids=[*workers, f"{socket.gethostname()}-{os.getpid()}"], started_at=result.started_at or now)
    change(result, status=STATUS.RUNNING, last_attempted_at=now, finished_at=None)
    backend.keep(result)
    signals.task_started.send_robust(type(backend), task_result=result)
    return result


def _call(result: Any) -> Any:
    context = [tasks.TaskContext(task_result=result)] if result.task.takes_context else []
    value = result.task.call(*context, *result.args, **result.kwargs)
    try:
        return tasks.base.normalize_json(value)
    except (TypeError, ValueError) as error:  # another attempt would return the same
        raise Reject(f"the task returned what is not JSON: {error}") from error
