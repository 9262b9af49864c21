"""The backend: a task is a message of a queue, with its arguments as JSON and its path in the header `task`."""

import json
import os
import secrets
import sys
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from datetime import datetime
from functools import cache, partial
from importlib import import_module
from typing import Any

import django
from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.utils import timezone
from django.utils.module_loading import autodiscover_modules

import rqttl
from rqttl import results, units
from rqttl.options import QueueOptions
from rqttl.outages import TEMPORARY

tasks = import_module("django.tasks" if django.VERSION >= (6, 0) else "django_tasks")
signals = import_module(f"{tasks.__name__}.signals")
backends = import_module(f"{tasks.__name__}.backends.base")

#: The levels of a queue, as endings of names, with the least priority of each. Workers consume them in this order.
LEVELS = {"/urgent": 50, "/high": 1, "": 0, "/low": -100}
OPTIONS = {"url", "namespace", "queue_options", "on_commit", "ttl", "results"}
#: Problems that system checks show, before each `manage.py`. `rqttl doctor` shows all, and warnings.
CHECKS = ("server", "role", "memory policy", "scripts", "rights")
#: What it raises to read a task, or a result, that is none.
UNREADABLE = (AttributeError, LookupError, TypeError, ValueError, RecursionError, tasks.exceptions.TaskException)
_JSON = json.JSONEncoder(ensure_ascii=False).encode
_TIMES = ("enqueued_at", "started_at", "finished_at", "last_attempted_at")
_NEW = {**dict.fromkeys(_TIMES), "status": tasks.TaskResultStatus.READY}
#: The fields of a result that are kept beside its task and errors.
_KEPT = (*_NEW, "id", "args", "kwargs", "worker_ids", "_return_value")

#: The broker of a process: Django makes a backend for each thread.
_connected = cache(rqttl.connect)
_queue = cache(rqttl.Broker.queue)
#: Import the module `tasks` of each application.
discover = cache(partial(autodiscover_modules, "tasks"))


def change(result: Any, **values: object) -> None:
    """Set fields of a result. It is frozen, for others."""
    for name, value in values.items():
        object.__setattr__(result, name, value)


def level_of(priority: int) -> str:
    """The ending of the queue for a priority."""
    return next((level for level, least in LEVELS.items() if priority >= least), "/low") if priority else ""


class RqttlBackend(backends.BaseTaskBackend):  # type: ignore[name-defined]  # of either package
    """Sends tasks to queues of rqttl. `manage.py rqttl_worker` runs them, at least once each."""

    supports_async_task = supports_defer = supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        #: The names of the queues, in the order of the settings.
        self.names = [*params.get("QUEUES", ["default"])]
        self._given = given = {**dict.fromkeys(OPTIONS), "namespace": "rqttl", "on_commit": True, **self.options}
        try:
            if unknown := given.keys() - OPTIONS:
                raise rqttl.InvalidOption(f"unknown OPTIONS {sorted(unknown)}; there are {sorted(OPTIONS)}")
            self._kept, self._ttl = (given[name] and units.duration(given[name], name) for name in ("results", "ttl"))
            for name in self.names:
                QueueOptions.read(name, self._options_of(name))
        except rqttl.RqttlError as error:
            raise ImproperlyConfigured(f"TASKS[{alias!r}]: {error}") from error
        self.supports_get_result = bool(self._kept)

    @property
    def broker(self) -> rqttl.Broker:
        """The broker, which all threads of this process share."""
        return _connected(self._given["url"], namespace=self._given["namespace"])

    def _options_of(self, name: str) -> dict[str, Any]:
        return {"max_deliveries": 10, "dead_letter": f"{name}/dead", **(self._given["queue_options"] or {})}

    def levels(self, names: Iterable[str]) -> dict[str, str]:
        """The queues of all levels, in the order in which workers consume them, with the names of their queues."""
        return {name + level: name for level in LEVELS for name in names}

    def declare(self, names: Iterable[str], among: Container[str] | None = None) -> list[str]:
        """Declare queues, if they are `among` these. Returns a line for each that has other options, and keeps them."""
        lines = []
        for queue, name in self.levels(names).items():
            try:
                if among is None or queue in among:
                    self.broker.declare_queue(queue, **self._options_of(name))
            except rqttl.QueueMismatch as error:
                lines.append(str(error))
        return lines

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Send a task; within a transaction, unless `on_commit` is false, when it is committed."""
        self.validate_task(task)
        result = self.new_result(task, secrets.token_hex(16), args, kwargs)
        database = connections[DEFAULT_DB_ALIAS]
        is_open = database.in_atomic_block or (database.connection is not None and not database.autocommit)
        if is_open and self._given["on_commit"]:
            transaction.on_commit(partial(self._send, result))
        else:
            self._send(result)
        return result

    def _send(self, result: Any) -> None:
        task, sent = result.task, timezone.now()
        due = task.run_after and task.run_after.astimezone()  # without USE_TZ it is a local time
        body = _JSON({"args": result.args, "kwargs": result.kwargs, "sent": str(sent)}).encode()
        words = {"id": result.id, "content_type": "application/json", "ttl": self._ttl, "deliver_at": due}
        words["headers"] = {"task": task.module_path, "priority": task.priority}
        queue = _queue(self.broker, task.queue_name + level_of(task.priority))
        try:
            queue.enqueue(body, **words)
        except rqttl.QueueNotFound:
            self.declare([task.queue_name])
            queue.enqueue(body, **words)
        change(result, enqueued_at=sent)
        if self._kept:
            wait = due.timestamp() - sent.timestamp() if due else 0
            self.keep(result, longer=max(0, int(wait * 1000)), only_new=True)
        signals.task_enqueued.send(type(self), task_result=result)

    def new_result(self, task: Any, id: str, args: Any, kwargs: Any) -> Any:
        """The result of a task that is ready."""
        return tasks.TaskResult(
            task=task, id=id, args=args, kwargs=kwargs, backend=self.alias, errors=[], worker_ids=[], **_NEW
        )

    def restored(self, task: Iterable[Any], id: str, args: Any, kwargs: Any, **facts: Any) -> Any:
        """The result of a task that another process has sent, as a path, the name of a queue and a priority.

        The path must be that of a task in a module that is loaded: nothing is imported.
        """
        path, queue_name, priority = task
        module, _, name = str(path).rpartition(".")
        found = vars(sys.modules.get(module, json)).get(name)
        if not isinstance(found, tasks.base.Task):
            raise LookupError(f"no module that is loaded has a task {path!r}")
        sent = replace(found, queue_name=queue_name, priority=priority, backend=self.alias)
        result = self.new_result(sent, id, args, kwargs)
        times = {name: datetime.fromisoformat(str(facts[name])) for name in _TIMES if facts.get(name)}
        change(result, **{**facts, **times})
        return result

    def keep(self, result: Any, *, longer: int = 0, only_new: bool = False) -> None:
        """Keep a result, if any are kept."""
        if self._kept:
            facts = {name: getattr(result, name) for name in _KEPT}
            facts["task"] = (result.task.module_path, result.task.queue_name, result.task.priority)
            facts["errors"] = [asdict(error) for error in result.errors]
            text = json.dumps(facts, default=str)
            results.put(self.broker, result.id, text, self._kept + longer, only_new=only_new)

    def kept(self, result_id: str) -> Any:
        """The result that is kept; `None` without one that can be read."""
        try:
            facts = json.loads(results.get(self.broker, result_id) or "{}")
            facts["errors"] = [tasks.base.TaskError(**error) for error in facts["errors"]]
            facts["status"] = tasks.TaskResultStatus(facts["status"])
            return self.restored(**facts)
        except UNREADABLE:
            return None

    def get_result(self, result_id: str) -> Any:
        """Read a result. Raises `TaskResultDoesNotExist`, also when its time is over.

        One that is not finished has failed if its message is a dead letter, which takes one look more.
        """
        if not self._kept:
            return super().get_result(result_id)
        discover()
        result = self.kept(result_id)
        if result is None:
            raise tasks.exceptions.TaskResultDoesNotExist(result_id)
        if not result.is_finished:
            self._fail_if_dead(result)
        return result

    def _fail_if_dead(self, result: Any) -> None:
        queue = self._options_of(result.task.queue_name)["dead_letter"]
        since = (result.last_attempted_at or result.enqueued_at).timestamp()
        if queue and (death := results.death(self.broker, queue, result.id, since)):
            text = f"{death.reason}: {death.description or ''}"
            error = tasks.base.TaskError(exception_class_path="rqttl.RqttlError", traceback=text)
            at = death.last_at if settings.USE_TZ else timezone.make_naive(death.last_at)
            change(result, status=tasks.TaskResultStatus.FAILED, finished_at=at, errors=[*result.errors, error])

    def check(self, **_: Any) -> Iterator[Any]:
        """Look at the server, and for queues that have other options; unless no server is named."""
        if self._given["url"] is None and "RQTTL_URL" not in os.environ:
            return
        from rqttl.doctor import examine

        try:
            there = self.broker.options(self.levels(self.names))
            found = [(line, "") for line in self.declare(self.names, there)]
            seen = [one for one in examine(self.broker, [*there]) if one.level == "problem" and one.check in CHECKS]
            found += [(f"{one.check}: {one.result}", one.advice) for one in seen]
        except (*TEMPORARY, rqttl.RqttlError) as error:
            found = [(f"Redis cannot be asked: {error}", "`rqttl doctor` says more")]
        yield from (checks.Warning(f"TASKS[{self.alias!r}]: {text}", hint, id="rqttl.W001") for text, hint in found)
