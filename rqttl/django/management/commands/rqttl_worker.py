"""`manage.py rqttl_worker`: `rqttl worker` for the queues of a backend, and the handlers of its child processes."""

import json
import os
import socket
from traceback import format_exception
from typing import Any, get_type_hints

import django
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.apps import apps
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import close_old_connections
from django.utils import timezone

from rqttl import Delivery, Reject, Release, RqttlError, Worker
from rqttl.django.backend import UNREADABLE, RqttlBackend, change, discover, level_of, signals, tasks
from rqttl.outages import TEMPORARY
from rqttl.worker.settings import WorkerOptions

#: The options of a worker with their types, but those that say what it runs.
OPTIONS = {
    name: kind for name, kind in get_type_hints(WorkerOptions).items() if name not in {"call", "exec", "delivery"}
}
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
            parser.add_argument(f"--{name.replace('_', '-')}", **how)

    def handle(self, *_: str, backend: str, queues: list[str], **options: Any) -> None:
        """Declare the queues, and run tasks until a signal."""
        chosen = tasks.task_backends[backend]
        if not isinstance(chosen, RqttlBackend) or not {*queues} <= {*(chosen.names or queues)}:
            raise CommandError(f"TASKS[{backend!r}] is no RqttlBackend, or a QUEUE is none of its QUEUES: {queues}")
        os.environ["RQTTL_DJANGO_BACKEND"] = backend  # for the children
        names = queues or chosen.names
        given = {name: options[name] for name in OPTIONS if options[name] is not None}
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
    result = _begin(delivery)
    try:
        _succeed(result, result.task.call(*_arguments(result), **result.kwargs))
    except BaseException as error:
        _fail(result, error, delivery)
        raise


async def arun(delivery: Delivery) -> None:
    """Run a task beside others in one event loop, with a thread and connections of its own, as a request under ASGI."""
    async with ThreadSensitiveContext():
        result = await sync_to_async(_begin)(delivery)
        try:
            await sync_to_async(_succeed)(result, await result.task.acall(*_arguments(result), **result.kwargs))
        except BaseException as error:
            await sync_to_async(_fail)(result, error, delivery)
            raise


def _begin(delivery: Delivery) -> Any:
    """Return the result of a task that runs from now on."""
    close_old_connections()
    backend = tasks.task_backends[os.environ["RQTTL_DJANGO_BACKEND"]]
    count, now = delivery.delivery_count, timezone.now()
    result = _read(delivery, backend)
    before = backend.kept(delivery.id) if count > 1 and backend.supports_get_result else None
    if before is not None:
        change(result, **{name: getattr(before, name) for name in ("started_at", "errors", "worker_ids")})
    workers = [*result.worker_ids, *"?" * count][: count - 1]  # without results nobody knows them
    change(
        result,
        status=STATUS.RUNNING,
        started_at=result.started_at or now,
        last_attempted_at=now,
        worker_ids=[*workers, f"{socket.gethostname()}-{os.getpid()}"],
    )
    backend.keep(result)
    signals.task_started.send_robust(type(backend), task_result=result)
    return result


def _read(delivery: Delivery, backend: RqttlBackend) -> Any:
    """Return the result of a task that is ready. Raises `Reject` for a message that is none."""
    try:
        content, path = json.loads(delivery.body), delivery.headers["task"]
        priority: Any = delivery.headers["priority"]
        task = path, delivery.queue.removesuffix(level_of(priority)), priority
        args, kwargs = [*content["args"]], {**content["kwargs"]}
        return backend.restored(task, delivery.id, args, kwargs, enqueued_at=content["sent"])
    except UNREADABLE as error:
        raise Reject(f"no task: {type(error).__name__}: {error}") from error


def _arguments(result: Any) -> list[Any]:
    return [tasks.TaskContext(task_result=result), *result.args] if result.task.takes_context else result.args


def _succeed(result: Any, value: Any) -> None:
    """Note what a task has returned."""
    try:
        change(result, _return_value=tasks.base.normalize_json(value))
    except (TypeError, ValueError) as error:  # another attempt would return the same
        raise Reject(f"the task returned what is not JSON: {error}") from error
    _end(result, STATUS.SUCCESSFUL)


def _fail(result: Any, error: BaseException, delivery: Delivery) -> None:
    """Note what a task has raised. One that comes again is ready until then."""
    limit, status = delivery.config.options.number("max_deliveries"), STATUS.READY
    if not isinstance(error, Release):
        path = f"{type(error).__module__}.{type(error).__qualname__}"
        text = "".join(format_exception(error))
        result.errors.append(tasks.base.TaskError(exception_class_path=path, traceback=text))
        if isinstance(error, Reject) or (limit is not None and delivery.delivery_count >= limit):
            status = STATUS.FAILED
    _end(result, status)


def _end(result: Any, status: Any) -> None:
    backend = result.task.get_backend()
    change(result, status=status, finished_at=None if status == STATUS.READY else timezone.now())
    backend.keep(result)
    if result.is_finished:
        signals.task_finished.send_robust(type(backend), task_result=result)
    close_old_connections()
