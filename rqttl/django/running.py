"""The handlers of `manage.py rqttl_worker`. Its child processes load this module."""

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
from django.db import close_old_connections
from django.utils import timezone

from rqttl import Delivery, Reject, Release
from rqttl.django.backend import LEVELS, change, discover, signals, tasks

#: The name of this process, for `worker_ids`.
NAME = f"{socket.gethostname()}-{os.getpid()}"

if not apps.ready:
    django.setup()
discover()


def run(delivery: Delivery) -> None:
    """Run a task in a thread."""
    result, args = _begin(delivery)
    try:
        value = _plain(result.task.call(*args, **result.kwargs))
    except BaseException as error:
        _end(delivery, result, error=error)
        raise
    _end(delivery, result, value)


async def arun(delivery: Delivery) -> None:
    """Run a task beside others in one event loop. Plain tasks, connections and receivers share one thread."""
    result, args = await sync_to_async(_begin)(delivery)
    try:
        value = _plain(await result.task.acall(*args, **result.kwargs))
    except BaseException as error:
        await sync_to_async(_end)(delivery, result, error=error)
        raise
    await sync_to_async(_end)(delivery, result, value)


def _begin(delivery: Delivery) -> tuple[Any, list[Any]]:
    """Return the result of a task that runs now, and the arguments of its function."""
    close_old_connections()
    backend, now = tasks.task_backends[os.environ["RQTTL_DJANGO_BACKEND"]], timezone.now()
    level = next((level for level in LEVELS if level and delivery.queue.endswith(level)), "")
    try:
        content, headers = json.loads(delivery.body), delivery.headers
        sent = datetime.fromisoformat(str(headers.get("sent", delivery.enqueued_at)))
        task = backend.find(
            headers.get("task"), queue_name=delivery.queue.removesuffix(level), priority=headers.get("priority", 0)
        )
        args, kwargs = list[Any](content["args"]), dict[str, Any](content["kwargs"])
        result = backend.new_result(task, delivery.id, args=args, kwargs=kwargs, enqueued_at=sent)
    except (LookupError, TypeError, ValueError, RecursionError, tasks.exceptions.TaskException) as error:
        raise Reject(f"no task: {error}") from error
    before = None
    with suppress(NotImplementedError, tasks.exceptions.TaskResultDoesNotExist):
        before = backend.get_result(delivery.id) if delivery.delivery_count > 1 else None
    known = before.worker_ids if before else []  # without results nobody knows them
    change(
        result,
        status=tasks.TaskResultStatus.RUNNING,
        started_at=(before and before.started_at) or now,
        last_attempted_at=now,
        errors=before.errors if before else [],
        worker_ids=[*[*known, *"?" * delivery.delivery_count][: delivery.delivery_count - 1], NAME],
    )
    backend.keep(result)
    signals.task_started.send_robust(type(backend), task_result=result)
    return result, [tasks.TaskContext(task_result=result), *args] if task.takes_context else args


def _plain(value: Any) -> Any:
    """A value as JSON has it. Another attempt would return no other one."""
    try:
        return tasks.base.normalize_json(value)
    except (TypeError, ValueError) as error:
        raise Reject(f"the task returned what is not JSON: {error}") from error


def _end(delivery: Delivery, result: Any, value: Any = None, error: BaseException | None = None) -> None:
    """Note how an attempt has ended. A task that comes again is ready until then."""
    limit, backend, status = delivery.config.options.number("max_deliveries"), result.task.get_backend(), "SUCCESSFUL"
    if error is not None:
        is_last = isinstance(error, Reject) or (limit is not None and delivery.delivery_count >= limit)
        status = "FAILED" if is_last and not isinstance(error, Release) else "READY"
        if not isinstance(error, Release):
            path, text = f"{type(error).__module__}.{type(error).__qualname__}", "".join(format_exception(error))
            result.errors.append(tasks.base.TaskError(exception_class_path=path, traceback=text))
    finished_at = None if status == "READY" else timezone.now()
    change(result, status=tasks.TaskResultStatus(status), _return_value=value, finished_at=finished_at)
    backend.keep(result)
    if finished_at:
        signals.task_finished.send_robust(type(backend), task_result=result)
    close_old_connections()
