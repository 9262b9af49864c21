"""The stage of one round: servers, the line, the queues, and the processes that work on them."""

import multiprocessing
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import redis

import rqttl
from tests.chaos import roles
from tests.chaos.actor import Actor, Part, perform
from tests.chaos.cast import PROCESSES, QUEUES
from tests.chaos.journal import SUFFIX, Journal, read
from tests.chaos.wire import Wire
from tests.ports import free_port
from tests.servers import Server
from tests.waiting import PATIENCE, until

#: Every role that a process can play; `cast` says how many processes play it.
ROLES: dict[str, Callable[[Actor], None]] = {
    role.__name__: role
    for role in (
        *(roles.sender, roles.receiver, roles.consumer, roles.runner, roles.hoarder, roles.taker, roles.reaper),
        *(roles.redriver, roles.observer, roles.operator, roles.drainer),
    )
}
#: Where servers keep their files: a killed process loses nothing there, and no slow disk holds up a round.
MEMORY = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else None  # noqa: S108  # each has a folder of its own
#: Calls that sent, claims and settles that a round has at least.
ENOUGH = 10
#: The role after the end of all others, when no fault is under way.
LAST = "drainer"
DIRECTOR = "director"
DIRECTORS = f"{DIRECTOR}{SUFFIX}"
#: Seconds that a client behind the line waits for a reply.
IMPATIENCE = 2


def _play(part: Part) -> None:
    perform(part, ROLES)


class Stage:
    """All that one round needs. `folder` keeps its journals and logs; the servers have folders of their own."""

    def __init__(self, binary: Path, folder: Path, seed: str) -> None:
        self.folder, self.seed = folder, seed
        self.random = random.Random(seed)
        self.journal = Journal(folder, DIRECTOR)
        self._binary = binary
        # forked from a process that has imported all and has one thread, so that a client starts in milliseconds
        self._forkserver = multiprocessing.get_context("forkserver")
        self._forkserver.set_forkserver_preload(["tests.chaos.stage"])
        self._clients: dict[str, tuple[str, BaseProcess]] = {}
        self._changing = threading.Lock()
        self._births = 0
        self._over = False
        self.server = self.launch()
        self.link = self.server.path / "link"
        self.link.symlink_to(self.server.socket)
        self._first_folder = self.server.path
        self.wire = Wire(self.link, seed)
        self._declare()

    def launch(self) -> Server:
        """Start a server that has everything in its file before it answers."""
        return Server(
            self._binary,
            within=MEMORY,
            appendonly="yes",
            appendfsync="always",
            save="3600 1000000",
            port=free_port(),
            bind="127.0.0.1",
            dbfilename="dump.rdb",
            repl_diskless_sync="yes",
            repl_diskless_sync_delay=0,
            repl_ping_replica_period=1,
        )

    def _declare(self) -> None:
        with rqttl.connect(f"unix://{self.link}") as broker:
            for queue in QUEUES:
                options = broker.declare_queue(queue.name, **queue.options).options()
                self.journal.write("queue", q=queue.name, options=_plain(options), dead=queue.dead)

    # Clients

    def begin(self) -> None:
        """Start all processes, and wait until they are at work."""
        for role, times in PROCESSES.items():
            for number in range(times):
                self.start(f"{role}{number}", role)
        until(lambda: len(list(self.folder.glob(f"*{SUFFIX}"))) > len(self._clients))

    def start(self, name: str, role: str) -> None:
        """Start a process; one of the same name that has ended is forgotten."""
        with self._changing:
            if self._over:
                return
            self._births += 1
            through_line = self.random.random() < 0.5 and role != LAST
            url = f"redis://127.0.0.1:{self.wire.port}/0?socket_timeout={IMPATIENCE}"
            part = Part(
                f"{name}-{self._births}",
                role,
                f"{self.seed}/{self._births}",
                url if through_line else f"unix://{self.link}",
                self.folder,
            )
            process: Any = self._forkserver.Process(target=_play, args=(part,), name=part.name, daemon=True)
            process.start()
            self._clients[name] = (role, process)

    def victims(self) -> list[str]:
        """The names of the processes that are at work."""
        return sorted(self._clients)

    def kill(self, name: str) -> None:
        """End a process at once, and start another one in its place."""
        role, process = self._clients[name]
        self.check(name)
        process.kill()
        process.join()
        self.journal.write("note", text=f"killed {process.name}")
        self.start(name, role)

    def send(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process."""
        with suppress(ProcessLookupError):
            os.kill(self._clients[name][1].pid or 0, number)

    def check(self, name: str) -> None:
        """Write down a process that has ended although nobody ended it, and start another one."""
        role, process = self._clients[name]
        if process.exitcode is not None:
            text = f"{process.name} ended by itself with {process.exitcode}"
            self.journal.write("unexplained", text=text)
            self.start(name, role)

    def deeds(self) -> int:
        """Return the number of bytes that all clients have written into their journals."""
        return sum(path.stat().st_size for path in self.folder.glob(f"*{SUFFIX}") if path.name != DIRECTORS)

    def has_worked(self) -> bool:
        """Return True if the round has something to judge: enough was stored, handed out and settled, and some died."""
        kinds, deaths = Counter[str](), 0
        for event in read(self.folder):
            kinds[event["k"]] += 1
            deaths += event["numbers"]["deaths"] if event["k"] == "stats" else 0
        return deaths > 0 and min(kinds[kind] for kind in ("sent", "claim", "settled")) >= ENOUGH

    def end(self) -> None:
        """Ask all processes to end, when no fault is under way any more; then empty the queues."""
        for name in self.victims():
            self.check(name)
        with self._changing:
            self._over = True
        for name in self.victims():
            self.send(name, signal.SIGTERM)
        for name in self.victims():
            self._await(name)
        self._clients.clear()
        self._over = False
        self.start(LAST, LAST)
        self._await(LAST)

    def _await(self, name: str) -> None:
        _, process = self._clients[name]
        done = -1
        for _ in range(3):
            if process.exitcode is not None or done == (done := self.deeds()):
                break
            process.join(PATIENCE)  # again, as long as something is done
        if process.exitcode is None:
            self.journal.write("unexplained", text=f"{process.name} does not end: its stacks are in its log")
            self.send(name, signal.SIGUSR1)
            process.join(1)
            process.kill()
            process.join()
        elif process.exitcode not in (0, -signal.SIGTERM):  # the latter ends one that has hardly begun
            self.journal.write("unexplained", text=f"{process.name} ended with {process.exitcode}")

    # Servers

    def admin(self) -> redis.Redis:
        """A plain client of the server that is the primary now."""
        return self.server.client(socket_timeout=10)

    def move_to(self, server: Server) -> Server:
        """Let all clients meet another server from now on. Returns the one that they met before."""
        beside = self.link.with_name("link.new")
        beside.symlink_to(server.socket)
        beside.replace(self.link)
        before, self.server = self.server, server
        return before

    def close(self) -> None:
        """End everything that is left."""
        for _, process in self._clients.values():
            process.kill()
            process.join()
        self.wire.close()
        self.server.remove()


def _plain(options: rqttl.QueueOptions) -> dict[str, Any]:
    """Options as a journal has them: durations in milliseconds."""
    names = ("message_ttl", "max_length", "max_length_bytes", "max_deliveries", "duplicate_window", "lease")
    numbers = {name: options.number(name) for name in names}
    return {**numbers, "overflow": options.overflow}
