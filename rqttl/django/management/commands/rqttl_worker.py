"""`manage.py rqttl_worker`: `rqttl worker` for the queues of a backend, and the handlers of its child processes."""

import json
import os
import socket
from contextlib import suppress
from datetime import datetime
from traceback import format_exception
from typing import Any

import django
from asgiref.sync import sync_to_async
from django.apps import apps
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import close_old_connections
from django.utils import timezone

from rqttl import Delivery, Reject, Release, RqttlError, Worker
from rqttl.django.backend import RqttlBackend, change, discover, signals, tasks
from rqttl.outages import TEMPORARY

NUMBERS = ("processes", "threads", "asyncio", "max_messages")
TEXTS = ("lease", "timeout", "max_memory", "grace", "retry_delay", "retry_max", "idle_exit", "health")
FLAGS = ("burst", "reaper")


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
        for name in (*NUMBERS, *TEXTS):
            parser.add_argument(f"--{name.replace('_', '-')}", type=int if name in NUMBERS else str, metavar="X")
        for name in FLAGS:
            parser.add_argument(f"--{name}", action="store_true")

    def handle(self, *_: str, backend: str, queues: list[str], **options: Any) -> None:
        """Declare the queues, and run tasks until a signal."""
        chosen = tasks.task_backends[backend]
        if not isinstance(chosen, RqttlBackend) or not {*queues} <= {*(chosen.names or queues)}:
            raise CommandError(f"TASKS[{backend!r}] is no RqttlBackend, or a QUEUE is none of its QUEUES: {queues}")
        os.environ["RQTTL_DJANGO_BACKEND"] = backend  # for the children
        names = queues or chosen.names
        given = {name: options[name] for name in (*NUMBERS, *TEXTS, *FLAGS) if options[name] is not None}
        call = f"{__name__}:{'arun' if options['asyncio'] else 'run'}"
        try:
            worker = Worker(chosen.broker, [*chosen.levels(names)], call=call, delivery=True, **given)
            for line in chosen.declare(names):
                self.stderr.write(line)
            self.stdout.write(f"Running tasks of {', '.join(names)}. Quit with CONTROL-C.")
            worker.run()
        except (*TEMPORARY, RqttlError) as error:
            raise CommandError(str(error)) from error


def run(delivery: Delivery) -> None:
    """Run a task in a thread."""
    result, args = _begin(delivery)
    try:
        _end(delivery, result, result.task.call(*args, **result.kwargs))
    except BaseException as error:
        _end(delivery, result, error=error)
        raise


async def arun(delivery: Delivery) -> None:
    """Run a task beside others in one event loop. Plain tasks, connections and receivers share one thread."""
    result, args = await sync_to_async(_begin)(delivery)
    try:
        await sync_to_async(_end)(delivery, result, await result.task.acall(*args, **result.kwargs))
    except BaseException as error:
        await sync_to_async(_end)(delivery, result, error=error)
        raise


def _begin(delivery: Delivery) -> tuple[Any, list[Any]]:
    """Return the result of a task that runs now, and the arguments of its function."""
    close_old_connections()
    backend, count, now = (
        tasks.task_backends[os.environ["RQTTL_DJANGO_BACKEND"]],
        delivery.delivery_count,
        timezone.now(),
    )
    try:
        content, headers, queue = json.loads(delivery.body), delivery.headers, delivery.queue
        sent = {"queue_name": backend.levels(backend.names).get(queue, queue), "priority": headers["priority"]}
        known = {"args": [*content["args"]], "kwargs": {**content["kwargs"]}}
        at = datetime.fromisoformat(str(content["sent"]))
        result = backend.new_result(backend.find(headers["task"], **sent), id=delivery.id, **known, enqueued_at=at)
    except (LookupError, TypeError, ValueError, RecursionError, tasks.exceptions.TaskException) as error:
        raise Reject(f"no task: {type(error).__name__}: {error}") from error
    before = None
    with suppress(NotImplementedError, tasks.exceptions.TaskResultDoesNotExist):
        before = backend.get_result(delivery.id) if count > 1 else None
    workers = before.worker_ids if before else []  # without results nobody knows them
    change(
        result,
        status=tasks.TaskResultStatus.RUNNING,
        started_at=(before and before.started_at) or now,
        last_attempted_at=now,
        errors=before.errors if before else [],
        worker_ids=[*[*workers, *"?" * count][: count - 1], f"{socket.gethostname()}-{os.getpid()}"],
    )
    backend.keep(result)
    signals.task_started.send_robust(type(backend), task_result=result)
    return result, [tasks.TaskContext(task_result=result), *result.args] if result.task.takes_context else result.args


def _end(delivery: Delivery, result: Any, value: Any = None, error: BaseException | None = None) -> None:
    """Note how an attempt has ended. A task that comes again is ready until then."""
    limit, backend, status = delivery.config.options.number("max_deliveries"), result.task.get_backend(), "SUCCESSFUL"
    try:
        value = tasks.base.normalize_json(value)
    except (TypeError, ValueError) as wrong:  # another attempt would return the same
        raise Reject(f"the task returned what is not JSON: {wrong}") from wrong
    if error is not None:
        is_last = isinstance(error, Reject) or (limit is not None and delivery.delivery_count >= limit)
        status = "FAILED" if is_last and not isinstance(error, Release) else "READY"
    if error is not None and not isinstance(error, Release):
        path, text = f"{type(error).__module__}.{type(error).__qualname__}", "".join(format_exception(error))
        result.errors.append(tasks.base.TaskError(exception_class_path=path, traceback=text))
    finished_at = None if status == "READY" else timezone.now()
    change(result, status=tasks.TaskResultStatus(status), _return_value=value, finished_at=finished_at)
    backend.keep(result)
    if finished_at:
        signals.task_finished.send_robust(type(backend), task_result=result)
    close_old_connections()
