"""`manage.py rqttl_worker`: `rqttl worker` for the queues of a backend."""

import os
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from rqttl import RqttlError, Worker
from rqttl.django.backend import RqttlBackend, tasks
from rqttl.outages import TEMPORARY

NUMBERS = ("processes", "threads", "asyncio", "max_messages")
TEXTS = ("lease", "timeout", "max_memory", "grace", "retry_delay", "retry_max", "idle_exit", "health")
FLAGS = ("burst", "reaper")


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
        if not isinstance(chosen, RqttlBackend):
            raise CommandError(f"TASKS[{backend!r}] is no RqttlBackend")
        names = queues or chosen.names
        if not names or (chosen.names and not {*names} <= {*chosen.names}):
            raise CommandError(f"QUEUE: expected some of QUEUES, {chosen.names}, got {names}")
        os.environ["RQTTL_DJANGO_BACKEND"] = backend  # for the children
        given = {name: options[name] for name in (*NUMBERS, *TEXTS, *FLAGS) if options[name] is not None}
        call = f"rqttl.django.running:{'arun' if options['asyncio'] else 'run'}"
        try:
            worker = Worker(chosen.broker, chosen.levels(names), call=call, delivery=True, **given)
            for line in chosen.declare(names):
                self.stderr.write(line)
            self.stdout.write(f"Running tasks of {', '.join(names)}. Quit with CONTROL-C.")
            worker.run()
        except (*TEMPORARY, RqttlError) as error:
            raise CommandError(str(error)) from error
