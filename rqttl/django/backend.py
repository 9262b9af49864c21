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
OPTIONS = {"url", "namespace", "queue_options", "on_commit", "ttl", "results"}
#: Problems that system checks show, before each `manage.py`. `rqttl doctor` shows all, and warnings.
CHECKS = ("server", "role", "memory policy", "scripts", "rights")
_JSON = json.JSONEncoder(ensure_ascii=False).encode
_TIMES = ("enqueued_at", "started_at", "finished_at", "last_attempted_at")
_NEW = {**dict.fromkeys(_TIMES), "status": tasks.TaskResultStatus.READY}

#: The broker of a process: Django makes a backend for each thread.
_connected = cache(rqttl.connect)
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
        #: The names of the queues, in the order of the settings.
        self.names = [*params.get("QUEUES", ["default"])]
        self._given = given = {**dict.fromkeys(OPTIONS), "namespace": "rqttl", "on_commit": True, **self.options}
        try:
            if unknown := given.keys() - OPTIONS:
                raise rqttl.InvalidOption(f"unknown OPTIONS {sorted(unknown)}; there are {sorted(OPTIONS)}")
            self._kept, _ = (given[name] and units.duration(given[name], name) for name in ("results", "ttl"))
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
        result = self.new_result(task, id=secrets.token_hex(16), args=args, kwargs=kwargs)
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
        level = next(level for level, least in LEVELS.items() if task.priority >= least) if task.priority else ""
        body = _JSON({"args": result.args, "kwargs": result.kwargs, "sent": str(sent)}).encode()
        words = {"id": result.id, "content_type": "application/json", "ttl": self._given["ttl"], "deliver_at": due}
        words["headers"] = {"task": task.module_path, "priority": task.priority}
        send = partial(self.broker.queue(task.queue_name + level).enqueue, body, **words)
        try:
            send()
        except rqttl.QueueNotFound:
            self.declare([task.queue_name])
            send()
        change(result, enqueued_at=sent)
        if self._kept:
            self.keep(result, max(0, int((due - sent).total_seconds() * 1000)) if due else 0, only_new=True)
        signals.task_enqueued.send(type(self), task_result=result)

    def find(self, path: object, **sent: Any) -> Any:
        """The task that a path names, as it was sent, in a module that is loaded: nothing is imported."""
        module, _, name = str(path).rpartition(".")
        found = vars(sys.modules.get(module, json)).get(name)
        if not isinstance(found, tasks.base.Task):
            raise LookupError(f"no module that is loaded has a task {path!r}")
        return replace(found, **{**sent, "backend": self.alias})

    def new_result(self, task: Any, **known: Any) -> Any:
        """The result of a task that is ready, but for what is `known`."""
        return tasks.TaskResult(
            **{**_NEW, "errors": [], "worker_ids": [], **known, "task": task, "backend": self.alias}
        )

    def keep(self, result: Any, longer: int = 0, *, only_new: bool = False) -> None:
        """Keep a result, if any are kept."""
        if self._kept:
            facts = {name: getattr(result, name) for name in result.__dataclass_fields__}
            facts["task"] = {name: getattr(result.task, name) for name in ("queue_name", "priority", "run_after")}
            facts["task"]["func"], facts["errors"] = result.task.module_path, list(map(asdict, result.errors))
            text = json.dumps(facts, default=str)
            results.put(self.broker, result.id, text, self._kept + longer, only_new=only_new)

    def get_result(self, result_id: str) -> Any:
        """Read a result. Raises `TaskResultDoesNotExist`, also when its time is over."""
        if not self._kept:
            return super().get_result(result_id)
        discover()
        try:
            facts = json.loads(results.get(self.broker, result_id) or "{}")
            task, value = facts.pop("task"), facts.pop("_return_value")
            for fields, names in ((task, ["run_after"]), (facts, _TIMES)):
                fields.update({name: datetime.fromisoformat(fields[name]) for name in names if fields[name]})
            facts["errors"] = [tasks.base.TaskError(**error) for error in facts["errors"]]
            facts["status"] = tasks.TaskResultStatus(facts["status"])
            result = self.new_result(self.find(task.pop("func"), **task), **facts)
        except (LookupError, TypeError, tasks.exceptions.TaskException) as error:  # also that of another Django
            raise tasks.exceptions.TaskResultDoesNotExist(result_id) from error
        change(result, _return_value=value)
        return result

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
