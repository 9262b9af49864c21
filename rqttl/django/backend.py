"""The backend: a task is a message of a queue, with its arguments as JSON and its path in the header `task`."""

import json
import os
import secrets
import sys
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from functools import cache, partial
from importlib import import_module
from typing import Any

import django
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction
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
OPTIONS: dict[str, Any] = {
    "url": None,
    "namespace": "rqttl",
    "queue_options": {},
    "on_commit": True,
    "ttl": None,
    "results": None,
}
#: Findings of the doctor that system checks show. `rqttl doctor` shows all.
CHECKS = ("server", "role", "memory policy", "scripts", "rights")
_TIMES = ("enqueued_at", "started_at", "finished_at", "last_attempted_at")

#: The broker of a process: Django makes a backend for each thread.
_connected = cache(rqttl.connect)
#: Import the module `tasks` of each application.
discover = cache(partial(autodiscover_modules, "tasks"))


def change(result: Any, **values: object) -> None:
    """Set fields of a result. It is frozen, for others."""
    for name, value in values.items():
        object.__setattr__(result, name, value)


class RqttlBackend(backends.BaseTaskBackend):  # type: ignore[name-defined]  # of either package
    """Sends tasks to queues of rqttl. `manage.py rqttl_worker` runs them, at least once each.

    `OPTIONS`: `url` and `namespace`, as of `rqttl.connect`; `queue_options`, as of `declare_queue`; `on_commit`: within
    a transaction, send when it is committed (the default); `ttl`, for tasks that no worker has begun in that time;
    `results`, the time for which results are kept, such as "1d". Without it there are none.
    """

    supports_async_task = supports_defer = supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        #: The names of the queues, in the order of the settings.
        self.names = [*params.get("QUEUES", ["default"])]
        self._given = given = {**OPTIONS, **self.options}
        try:
            if unknown := given.keys() - OPTIONS.keys():
                raise rqttl.InvalidOption(f"unknown OPTIONS {sorted(unknown)}; there are {[*OPTIONS]}")
            times = [None if given[name] is None else units.duration(given[name], name) for name in ("results", "ttl")]
            for name in self.names:
                QueueOptions.read(name, self._options_of(name))
        except rqttl.RqttlError as error:
            raise ImproperlyConfigured(f"TASKS[{alias!r}]: {error}") from error
        self._kept = times[0]
        self.supports_get_result = bool(self._kept)

    @property
    def broker(self) -> rqttl.Broker:
        """The broker, which all threads of this process share."""
        return _connected(self._given["url"], namespace=self._given["namespace"])

    def levels(self, names: Iterable[str]) -> list[str]:
        """The queues of all levels, in the order in which workers consume them."""
        return [name + level for level in LEVELS for name in names]

    def declare(self, names: Iterable[str], among: Container[str] | None = None) -> list[str]:
        """Declare the queues of all levels, if they are `among` these. Returns a line for each that has other options.

        Such a queue stays as it is, so that programs of two versions go on beside each other.
        """
        lines = []
        for name, queue in [(name, name + level) for name in names for level in LEVELS]:
            try:
                if among is None or queue in among:
                    self.broker.declare_queue(queue, **self._options_of(name))
            except rqttl.QueueMismatch as error:
                lines.append(str(error))
        return lines

    def _options_of(self, name: str) -> dict[str, Any]:
        return {"max_deliveries": 10, "dead_letter": f"{name}/dead", **self._given["queue_options"]}

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Send a task; within a transaction, unless `on_commit` is false, when it is committed."""
        self.validate_task(task)
        result = self.new_result(task, secrets.token_hex(16), args=args, kwargs=kwargs)
        database = connections["default"]
        is_open = database.in_atomic_block or (database.connection is not None and not database.autocommit)
        if self._given["on_commit"] and is_open:
            transaction.on_commit(partial(self._send, result))
        else:
            self._send(result)
        return result

    def _send(self, result: Any) -> None:
        task, sent, due = result.task, timezone.now(), result.task.run_after
        if due is not None and timezone.is_naive(due):
            due = timezone.make_aware(due)
        message = rqttl.Message(
            json.dumps({"args": result.args, "kwargs": result.kwargs}, ensure_ascii=False).encode(),
            ttl=self._given["ttl"],
            headers={"task": task.module_path, "priority": task.priority, "sent": str(sent)},
            id=result.id,
            content_type="application/json",
            deliver_at=due,
        )
        queue = self.broker.queue(
            task.queue_name + next(end for end, least in LEVELS.items() if task.priority >= least)
        )
        try:
            queue.enqueue(message)
        except rqttl.QueueNotFound:
            self.declare([task.queue_name])
            queue.enqueue(message)
        change(result, enqueued_at=sent)
        self.keep(result, max(0, int((due - sent).total_seconds() * 1000)) if due else 0, only_new=True)
        signals.task_enqueued.send(type(self), task_result=result)

    def find(self, path: object, **sent: Any) -> Any:
        """The task that a path names, as it was sent, in a module that is loaded: nothing is imported."""
        module, _, name = str(path).rpartition(".")
        found = vars(sys.modules.get(module, json)).get(name)
        if not isinstance(found, tasks.base.Task):
            raise LookupError(f"no module that is loaded has a task {path!r}")
        return replace(found, backend=self.alias, **sent)

    def new_result(self, task: Any, id: str, *, status: str = "READY", **known: Any) -> Any:
        """The result of a task that is ready, but for what is `known`."""
        facts = {**dict.fromkeys(_TIMES), "errors": [], "worker_ids": [], **known}
        return tasks.TaskResult(task=task, id=id, backend=self.alias, status=tasks.TaskResultStatus(status), **facts)

    def keep(self, result: Any, longer: int = 0, *, only_new: bool = False) -> None:
        """Keep a result, if any are kept."""
        if not self._kept:
            return
        task, value = result.task, result._return_value  # noqa: SLF001  # its property raises before the end
        facts = {name: getattr(result, name) for name in (*_TIMES, "status", "args", "kwargs", "worker_ids")}
        facts["errors"] = [(error.exception_class_path, error.traceback) for error in result.errors]
        sent = {"queue_name": task.queue_name, "priority": task.priority, "run_after": task.run_after}
        text = json.dumps({"task": task.module_path, "sent": sent, "facts": facts, "value": value}, default=str)
        results.put(self.broker, result.id, text, self._kept + longer, only_new=only_new)

    def get_result(self, result_id: str) -> Any:
        """Read a result. Raises `TaskResultDoesNotExist`, also when its time is over."""
        if not self._kept:
            return super().get_result(result_id)
        discover()
        try:
            stored = json.loads(results.get(self.broker, result_id) or "{}")
            sent, facts = stored["sent"], stored["facts"]
            for fields, names in ((sent, ["run_after"]), (facts, _TIMES)):
                fields.update({name: datetime.fromisoformat(fields[name]) for name in names if fields[name]})
            facts["errors"] = [tasks.base.TaskError(exception_class_path=p, traceback=t) for p, t in facts["errors"]]
            result = self.new_result(self.find(stored["task"], **sent), result_id, **facts)
        except (LookupError, tasks.exceptions.TaskException) as error:
            raise tasks.exceptions.TaskResultDoesNotExist(result_id) from error
        change(result, _return_value=stored["value"])
        return result

    def check(self, **_: Any) -> Iterator[Any]:
        """Look at the server, and for queues that have other options; unless no server is named."""
        if self._given["url"] is None and "RQTTL_URL" not in os.environ:
            return
        from rqttl.doctor import examine

        try:
            there = self.broker.options(self.levels(self.names))
            found = [(line, "") for line in self.declare(self.names, there)]
            seen = [one for one in examine(self.broker, [*there]) if one.level != "ok" and one.check in CHECKS]
            found += [(f"{one.check}: {one.result}", one.advice) for one in seen]
        except (*TEMPORARY, rqttl.RqttlError) as error:
            found = [(f"Redis cannot be asked: {error}", "`rqttl doctor` says more")]
        yield from (checks.Warning(f"TASKS[{self.alias!r}]: {text}", hint, id="rqttl.W001") for text, hint in found)
