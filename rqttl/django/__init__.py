"""Django's tasks on rqttl: a backend, and `manage.py rqttl_worker`. It needs the extra `django`.

A task is a message of a queue, with its arguments as JSON and its path in the header `task`.
"""

import json
import os
import secrets
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields, replace
from datetime import datetime
from functools import cache, partial
from importlib import import_module
from time import time
from typing import Any

import django
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.utils import timezone
from django.utils.module_loading import autodiscover_modules

import rqttl
from rqttl import results, units
from rqttl.checks import check_namespace
from rqttl.options import QueueOptions
from rqttl.outages import TEMPORARY

__all__ = ["RqttlBackend"]

tasks = import_module("django.tasks" if django.VERSION >= (6, 0) else "django_tasks")
signals = import_module(f"{tasks.__name__}.signals")
backends = import_module(f"{tasks.__name__}.backends.base")

#: The levels of a queue, as endings of names, with the least priority of each. Workers consume them in this order.
LEVELS = {"/urgent": 50, "/high": 1, "": 0, "/low": -100}
OPTIONS: dict[str, Any] = {"namespace": "rqttl", "on_commit": True, "queue_options": {}}
OPTIONS |= dict.fromkeys(("url", "results", "ttl"))
#: Problems that system checks show, before each `manage.py`. `rqttl doctor` shows all, and warnings.
CHECKS = ("server", "role", "memory policy", "scripts", "rights")
#: What it raises to read a task, or a result, that is none.
UNREADABLE = (AttributeError, LookupError, TypeError, ValueError, RecursionError, tasks.exceptions.TaskException)
_JSON = json.JSONEncoder(ensure_ascii=False).encode
_FIELDS = [field.name for field in fields(tasks.TaskResult)]
_TIMES = dict.fromkeys(("enqueued_at", "started_at", "finished_at", "last_attempted_at"))

#: The broker of a process: Django makes a backend for each thread.
_connected = cache(rqttl.connect)
_queue = cache(rqttl.Broker.queue)
#: Import the module `tasks` of each application.
discover = cache(partial(autodiscover_modules, "tasks"))


def change(result: Any, **values: object) -> None:
    """Set fields of a result. It is frozen, for others."""
    for name, value in values.items():
        object.__setattr__(result, name, value)


class RqttlBackend(backends.BaseTaskBackend):  # type: ignore[name-defined]  # of either package
    """Sends tasks to queues of rqttl. `manage.py rqttl_worker` runs them, at least once each."""

    supports_async_task = supports_defer = supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        self.queues = [*params.get("QUEUES", ["default"])]  # in the order of the settings
        self._given = given = {**OPTIONS, **self.options}
        try:
            if unknown := given.keys() - OPTIONS.keys():
                raise rqttl.InvalidOption(f"unknown OPTIONS {sorted(unknown)}; there are {sorted(OPTIONS)}")
            self._kept_for, self._ttl = (given[key] and units.duration(given[key], key) for key in ("results", "ttl"))
            check_namespace(given["namespace"])
            self.levels(self.queues)
        except rqttl.RqttlError as error:
            raise ImproperlyConfigured(f"TASKS[{alias!r}]: {error}") from error
        self.supports_get_result = bool(self._kept_for)

    @property
    def broker(self) -> rqttl.Broker:
        """The broker, which all threads of this process share."""
        return _connected(self._given["url"], namespace=self._given["namespace"])

    def levels(self, names: Iterable[str]) -> dict[str, QueueOptions]:
        """The queues of all levels with their options, in the order in which workers consume them."""
        usual, given = {"max_deliveries": 10}, self._given["queue_options"]
        return {
            name + level: QueueOptions.read(name + level, {**usual, "dead_letter": f"{name}/dead", **given})
            for level in LEVELS
            for name in names
        }

    def declare(self, queues: Mapping[str, QueueOptions]) -> list[str]:
        """Declare queues. Returns a line for each that has other options, and keeps them."""
        lines = []
        for queue, options in queues.items():
            try:
                self.broker.declare_queue(queue, **options.as_arguments())
            except rqttl.QueueMismatch as error:
                lines.append(str(error))
        return lines

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Send a task; within a transaction, unless `on_commit` is false, when it is committed."""
        result = self._ready(task, secrets.token_hex(16), args, kwargs)
        if self._given["on_commit"] and transaction.get_connection().in_atomic_block:
            transaction.on_commit(partial(self._send, result))
        else:
            self._send(result)
        return result

    def _ready(self, task: Any, id: str, args: Any, kwargs: Any) -> Any:
        """The result of a task that is ready."""
        facts = {"task": task, "id": id, "args": args, "kwargs": kwargs, "backend": self.alias, **_TIMES}
        return tasks.TaskResult(**facts, status=tasks.TaskResultStatus.READY, errors=[], worker_ids=[])

    def _send(self, result: Any) -> None:
        task, now = result.task, timezone.now()
        due = task.run_after and task.run_after.astimezone()  # without USE_TZ it is a local time
        facts = {"args": result.args, "kwargs": result.kwargs, "enqueued_at": str(now)}
        facts |= {"queue_name": task.queue_name, "priority": task.priority}
        body = _JSON(facts).encode()
        words = {"id": result.id, "content_type": "application/json", "ttl": self._ttl, "deliver_at": due}
        words["headers"] = {"task": task.module_path}
        level = next(level for level, least in LEVELS.items() if task.priority >= least)
        queue = _queue(self.broker, task.queue_name + level)
        try:
            queue.enqueue(body, **words)
        except rqttl.QueueNotFound:
            self.declare(self.levels([task.queue_name]))
            queue.enqueue(body, **words)
        change(result, enqueued_at=now)
        self.keep(result)
        signals.task_enqueued.send(type(self), task_result=result)

    def keep(self, result: Any) -> None:
        """Keep a result, if any are kept; before the task has begun, not in the place of another one."""
        if self._kept_for:
            task, due = result.task, result.task.run_after
            facts = {name: getattr(result, name) for name in _FIELDS}
            facts |= {"task": task.module_path, "queue_name": task.queue_name, "priority": task.priority}
            facts["errors"] = [asdict(error) for error in result.errors]
            ms = self._kept_for + (max(0, int((due.timestamp() - time()) * 1000)) if due else 0)
            results.put(self.broker, result.id, json.dumps(facts, default=str), ms, only_new=not result.started_at)

    def restored(self, task: Any, id: str, args: Any, kwargs: Any, queue_name: str, priority: int, **facts: Any) -> Any:
        """The result that `_send` or `keep` has written, of a task in a module that is loaded: nothing is imported."""
        module, _, name = task.rpartition(".")
        found = vars(sys.modules[module]).get(name) if module in sys.modules else None
        if not isinstance(found, tasks.base.Task):
            raise LookupError(f"no module that is loaded has a task {task!r}")
        sent = replace(found, queue_name=queue_name, priority=priority, backend=self.alias)
        result = self._ready(sent, id, [*args], {**kwargs})
        facts |= {name: datetime.fromisoformat(facts[name]) for name in _TIMES if facts.get(name)}
        facts["status"] = tasks.TaskResultStatus(facts.get("status", result.status))
        facts["errors"] = [tasks.base.TaskError(**error) for error in facts.get("errors", ())]
        change(result, **facts)
        return result

    def kept(self, result_id: str) -> Any:
        """The result that is kept; `None` without one that can be read."""
        try:
            return self.restored(**json.loads(results.get(self.broker, result_id) or "{}"))
        except UNREADABLE:
            return None

    def get_result(self, result_id: str) -> Any:
        """Read a result; it has failed if its message is a dead letter. Raises `TaskResultDoesNotExist`."""
        if not self._kept_for:
            return super().get_result(result_id)
        discover()
        result = self.kept(result_id)
        if result is None:
            raise tasks.exceptions.TaskResultDoesNotExist(result_id)
        if not result.is_finished:
            since = result.last_attempted_at or result.enqueued_at
            levels = self.levels([result.task.queue_name]).values()
            targets = {target for options in levels for target in options.targets()}
            for death in results.deaths(self.broker, targets, result_id, since.timestamp()):
                text = f"{death.reason}: {death.description or ''}"
                result.errors.append(tasks.base.TaskError(exception_class_path="rqttl.RqttlError", traceback=text))
                at = datetime.fromtimestamp(death.last_at.timestamp(), since.tzinfo)
                change(result, status=tasks.TaskResultStatus.FAILED, finished_at=at)
        return result

    def check(self, **_: Any) -> Iterator[Any]:
        """Look at the server, and for queues that have other options; unless no server is named."""
        if self._given["url"] is None and "RQTTL_URL" not in os.environ:
            return
        from rqttl.doctor import examine

        levels = self.levels(self.queues)
        try:
            there = self.broker.options(levels)
            found = self.declare({queue: levels[queue] for queue in there})
            seen = [one for one in examine(self.broker, [*there]) if one.level == "problem" and one.check in CHECKS]
            found += [f"{one.check}: {one.result}; {one.advice}" for one in seen]
        except (*TEMPORARY, rqttl.RqttlError) as error:
            found = [f"Redis cannot be asked: {error}; `rqttl doctor` says more"]
        yield from (checks.Warning(f"TASKS[{self.alias!r}]: {text}", id="rqttl.W001") for text in found)
