"""The stage of one round: the servers, the queues, and the processes that work on them."""

import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import pairwise
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import rqttl
from rqttl.protocol.keys import META, Keyspace
from tests.chaos import roles
from tests.chaos.actor import Actor, Part, perform
from tests.chaos.cast import CHAIN, COPIES, PASSED_TO, POLICY, PROCESSES, QUEUES, TOPIC
from tests.chaos.journal import SUFFIX, Journal, read
from tests.chaos.wire import Wire
from tests.cluster_servers import ClusterServers
from tests.servers import SentinelSet, Server
from tests.waiting import PATIENCE, until

#: Every role that a process can play; `cast` says how many processes play it.
ROLES: dict[str, Callable[[Actor], None]] = {
    role.__name__: role
    for role in (
        *(roles.sender, roles.receiver, roles.consumer, roles.runner, roles.worker, roles.hoarder, roles.taker),
        *(roles.reaper, roles.redriver, roles.mover, roles.observer, roles.operator, roles.drainer),
    )
}
#: Where servers keep their files: a killed process loses nothing there, and no slow disk holds up a round.
MEMORY = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else None  # noqa: S108  # each has a folder of its own
#: Seconds that a client behind the line waits for a reply.
IMPATIENCE = 2
#: A server with a clock that steps, in the place of another one. A Sentinel would not trust such a clock.
STEPPING = """#!/bin/sh
case " $* " in *" --sentinel "*) exec {0} "$@" ;; esac
CLOCK={1} LD_PRELOAD={1}.so exec {0} "$@"
"""
#: Calls that sent, claims and settles that a round has at least.
ENOUGH = 10
#: The role after the end of all others, when no fault is under way.
LAST = "drainer"
DIRECTOR = "director"
DIRECTORS = f"{DIRECTOR}{SUFFIX}"


class OneServer(Server):
    """A server that has everything in its file before it answers."""

    def __init__(self, binary: Path) -> None:
        aof = {"appendonly": "yes", "appendfsync": "always"}
        super().__init__(binary, within=MEMORY, save="3600 1000000", dbfilename="dump.rdb", **aof)
        self.servers = [self]


#: The servers of a round, by the name for `--on`.
TOPOLOGIES: dict[str, Callable[[Path], Any]] = {
    "server": OneServer,
    "sentinel": partial(SentinelSet, patience=2_000),  # of failovers that no nemesis has begun the judge knows nothing
    "cluster": lambda binary: ClusterServers(partial(Server, binary, within=MEMORY), replicas=1),
}


def _play(part: Part) -> None:
    perform(part, ROLES)


class Stage:
    """All that one round needs. `folder` keeps its journals and logs; the servers have folders of their own."""

    def __init__(self, binary: Path, folder: Path, seed: str, on: str = "server") -> None:
        self.folder, self.seed = folder, seed
        self.random = random.Random(seed)
        self.journal = Journal(folder, DIRECTOR)
        # forked from a process that has imported all and has one thread, so that a client starts in milliseconds
        self._forkserver = multiprocessing.get_context("forkserver")
        self._forkserver.set_forkserver_preload(["tests.chaos.stage"])
        self._clients: dict[str, tuple[str, BaseProcess]] = {}
        self._changing = threading.Lock()
        self._births = 0
        self._over = False
        #: How many seconds the clock of the servers is ahead, if it can step.
        self.clock = folder / "clock"
        self.on = TOPOLOGIES[on](self._stepping(binary))
        #: A line to each server. Some processes meet the servers there, the others meet them directly.
        self.wires = [Wire(server.socket, f"{seed}/{n}") for n, server in enumerate(self.on.servers)]
        self._url, self._by_wire, self._ports = self._places(on)
        self._keyspace = Keyspace(slotted=on == "cluster")
        self._declare()

    def _stepping(self, binary: Path) -> Path:
        """Return a server whose clock steps, where there is a compiler for it."""
        if sys.platform != "linux" or not shutil.which("cc"):
            return binary
        source, server = Path(__file__).with_name("clock.c"), self.folder / "redis-server"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", f"{self.clock}.so", source], check=True)
        self.clock.write_bytes(bytes(8))
        server.write_text(STEPPING.format(binary, self.clock))
        server.chmod(0o700)
        return server

    def _places(self, on: str) -> tuple[str, str, dict[int, int]]:
        """The URL of the servers, the one by the lines, and the ports of the lines in the place of those of servers."""
        lines = [wire.port for wire in self.wires]
        if on == "server":
            return self.on.url, f"redis://127.0.0.1:{lines[0]}/0?socket_timeout={IMPATIENCE}", {}
        return self.on.url(), self.on.url(), dict(zip(self.on.ports, lines, strict=True))

    def _declare(self) -> None:
        with rqttl.connect(self._url) as broker:
            for queue in QUEUES:
                options = broker.declare_queue(queue.name, **queue.options).options()
                far = queue.dead is not None and self._keyspace.in_another_slot(queue.name, queue.dead)
                passed = queue.name in COPIES
                told = {"options": _plain(options), "dead": queue.dead, "far": far, "passed": passed}
                self.journal.write("queue", q=queue.name, **told)
            for name, target in pairwise(CHAIN):
                broker.declare_queue(name, forward_to=target)
            topic = broker.declare_topic(TOPIC)
            for name, region in PASSED_TO[TOPIC].items():
                topic.bind(name, region and {"region": region})

    def key_of(self, queue: str) -> str:
        """A key of a queue; for the name of the policy, the key of all policies."""
        return self._keyspace.policies if queue == POLICY else self._keyspace.key(queue, META)

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
            seed = f"{self.seed}/{self._births}"
            places = (self._by_wire, self._ports) if role != LAST and self.random.random() < 0.5 else (self._url, {})
            part = Part(f"{name}-{self._births}", role, seed, *places, self.folder)
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

    def close(self) -> None:
        """End everything that is left."""
        for _, process in self._clients.values():
            process.kill()
            process.join()
        for wire in self.wires:
            wire.close()
        self.on.remove()


def _plain(options: rqttl.QueueOptions) -> dict[str, Any]:
    """Options as a journal has them: durations in milliseconds."""
    names = ("message_ttl", "max_length", "max_length_bytes", "max_deliveries", "duplicate_window", "lease")
    numbers = {name: options.number(name) for name in names}
    return {**numbers, "overflow": options.overflow}
