"""One run of one candidate in one workload."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.bench.compare.candidates import FOLDER, HERE, IDLE, SENDING, SHAPES, WAKE, Candidate
from tests.bench.compare.figures import Run, command_us, percentile
from tests.proc import process_fields
from tests.servers import Server

PROGRAMS = HERE / "peers"
DRAIN = 300.0  # seconds
LOOK = 0.01  # seconds
CALM, CALM_WITH_CHILDREN = 0.5, 3.0  # seconds for a start
LONGEST_WAKING = 15.0  # seconds


class Bench:
    """A server and the client of the harness."""

    def __init__(self, server: Server, interpreters: dict[str, list[str]], idle_seconds: float = 60.0) -> None:
        self._server, self._interpreters, self._idle_seconds = server, interpreters, idle_seconds
        self._client: Any = server.client()

    def run(self, candidate: Candidate, workload: str, messages: int, wakings: int) -> Run:
        """Run it once on an empty server."""
        self._client.flushall()
        count = max(100, int(messages * candidate.share) // 100 * 100)
        if workload in SENDING:
            return self._sending(candidate, workload, count)
        if workload == WAKE:
            return self._waking(candidate, wakings)
        if workload == IDLE:
            return self._idling(candidate)
        return self._consuming(candidate, workload, count)

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def _program(self, candidate: Candidate, role: str, shape: str, count: int, stamps: str = "") -> Program:
        environment = {
            "COMPARE_SOCKET": str(self._server.socket),
            "COMPARE_SHAPE": shape,
            "COMPARE_STAMPS": stamps,
            "COMPARE_MODULES": str(FOLDER / "node"),
            "PYTHONPATH": f"{PROGRAMS}",
        }
        if candidate.environment == "rqttl":
            environment["PYTHONPATH"] += f":{HERE.parents[2]}"
        words = [*self._interpreters[candidate.environment], str(PROGRAMS / candidate.program)]
        return Program([*words, role, shape, str(count)], environment, PROGRAMS)

    def _redis_us(self) -> float:
        info = self._client.info("cpu")
        return float(info["used_cpu_user"] + info["used_cpu_sys"]) * 1e6

    def _memory(self) -> int:
        return int(self._client.info("memory")["used_memory"])

    def _costs(self, count: int, seconds: float, client_us: float, redis_us: float, polls: int, reads: int) -> Run:
        """The figures since the statistics were reset, without the commands of the harness."""
        stats, calls = self._client.info("stats"), self._client.info("commandstats")
        return Run(
            rate=count / seconds,
            client_us=client_us / count,
            redis_us=redis_us / count,
            command_us=command_us(calls) / count,
            commands=max(0, stats["total_commands_processed"] - polls) / count,
            trips=max(0, stats["total_reads_processed"] - reads) / count,
        )

    def _sending(self, candidate: Candidate, workload: str, count: int) -> Run:
        with self._program(candidate, "produce", workload, count) as program:
            program.expect("ready")
            before, memory = self._redis_us(), self._memory()
            processor = program.processor_us()
            self._client.config_resetstat()
            began = time.perf_counter()
            program.line()
            program.expect("done")
            seconds = time.perf_counter() - began
            processor = program.processor_us() - processor
            # the harness: CONFIG RESETSTAT is one command, INFO is not yet counted
            run = self._costs(count, seconds, processor, self._redis_us() - before, 2, 2)
            stored = (self._memory() - memory) / count
            return Run(**{**vars(run), "megabytes": program.megabytes(), "stored": stored})

    def _fill(self, candidate: Candidate, count: int) -> None:
        with self._program(candidate, "produce", "fill", count) as producer:
            producer.expect("ready")
            producer.line()
            producer.expect("done")

    def _drained(self, candidate: Candidate, program: Program) -> int:
        """Wait until all messages are settled; return the number of looks."""
        deadline, looks = Deadline(program, DRAIN), 1
        while candidate.left(self._client):
            deadline.check("consuming")
            time.sleep(LOOK)
            looks += 1
        return looks

    def _consuming(self, candidate: Candidate, workload: str, count: int) -> Run:
        with self._program(candidate, "consume", SHAPES.get(workload, workload), count) as program:
            self._wait_for_connection(program, CALM_WITH_CHILDREN if workload.startswith("worker") else CALM)
            self._fill(candidate, 200)  # all processes of the consumer have begun, and have compiled their scripts
            self._drained(candidate, program)
            program.send(signal.SIGSTOP)
            self._fill(candidate, count)
            before, processor = self._redis_us(), program.processor_us()
            self._client.config_resetstat()
            began = time.perf_counter()
            program.send(signal.SIGCONT)
            looks = self._drained(candidate, program)
            seconds = time.perf_counter() - began
            processor = program.processor_us() - processor
            run = self._costs(
                count + 1, seconds, processor, self._redis_us() - before, 2 + looks * candidate.polls, 2 + looks
            )
            return Run(**{**vars(run), "megabytes": program.megabytes()})

    def _wait_for_connection(self, program: Program, calm: float = CALM) -> None:
        """Return when the program is connected, and has had some time to start."""
        deadline = Deadline(program)
        while len(self._client.client_list()) < 2:
            deadline.check("the connection")
            time.sleep(LOOK)
        time.sleep(calm)

    def _waking(self, candidate: Candidate, wakings: int) -> Run:
        with tempfile.TemporaryDirectory() as folder:
            stamps = Path(folder, "stamps")
            shape = WAKE if candidate.name == "raw redis-py" else "one"
            with self._program(candidate, "consume", shape, 0, str(stamps)) as program:
                self._wait_for_connection(program)
                with self._program(candidate, "produce", "ping", 0) as producer:
                    producer.expect("ready")
                    end, number, deadline = time.monotonic() + LONGEST_WAKING, 1, Deadline(program)
                    while number <= wakings:
                        while not stamps.is_file() or stamps.read_bytes().count(b"\n") < number:
                            deadline.check("the wake-up")
                            time.sleep(0.001)
                        if time.monotonic() > end:
                            break
                        time.sleep(random.uniform(0.01, 0.03))  # the consumer settles, and waits again
                        producer.line()
                        number, deadline = number + 1, Deadline(program)
                    found = [int(line) / 1000 for line in stamps.read_text().splitlines()[1:]]
                return Run(p50=percentile(found, 0.5), p99=percentile(found, 0.99), megabytes=program.megabytes())

    def _idling(self, candidate: Candidate) -> Run:
        """Count the reads and the connections of a worker of 20 queues; the table shows them as commands and trips."""
        with self._program(candidate, "consume", IDLE, 0) as program:
            self._wait_for_connection(program, CALM_WITH_CHILDREN)
            self._client.config_resetstat()
            time.sleep(self._idle_seconds)
            reads = self._client.info("stats")["total_reads_processed"] - 1  # that of INFO
            connections = len(self._client.client_list()) - 1
            return Run(commands=reads * 60 / self._idle_seconds, trips=connections, megabytes=program.megabytes())


PATIENCE = 60.0  # seconds
_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Program:
    """A started program."""

    def __init__(self, command: list[str], environment: Mapping[str, str], folder: Path) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the program
        self._process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Program:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for pid in self.tree():
            self._signal(pid, signal.SIGKILL)
        self._process.communicate()
        self._log.close()

    def tree(self) -> list[int]:
        """The process and all its descendants."""
        parents: dict[int, list[int]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and (stat := process_fields(int(entry.name))):
                parents.setdefault(int(stat[1]), []).append(int(entry.name))
        found = [self._process.pid]
        for pid in found:
            found += parents.get(pid, [])
        return found

    def _signal(self, pid: int, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    def send(self, number: int) -> None:
        """Send a signal to the whole tree."""
        for pid in self.tree():
            self._signal(pid, number)

    def processor_us(self) -> float:
        """Processor time of the tree, also of its ended children."""
        stats = [stat for pid in self.tree() if (stat := process_fields(pid))]
        return sum(int(field) for stat in stats for field in stat[11:15]) / _TICK * 1e6

    def megabytes(self) -> float:
        """Resident memory of the tree."""
        return sum(int(stat[21]) for pid in self.tree() if (stat := process_fields(pid))) * _PAGE / 1e6

    def expect(self, word: str) -> None:
        """Wait for a line of the program."""
        assert self._process.stdout is not None  # a pipe
        if self._process.stdout.readline().strip() != word:
            raise RuntimeError(self.problem())

    def line(self) -> None:
        """Send the program an empty line."""
        assert self._process.stdin is not None  # a pipe
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def ended(self) -> bool:
        """True if the program has ended."""
        return self._process.poll() is not None

    def problem(self) -> str:
        """The last line about an error that the program wrote to stderr, or the last line of all."""
        self._log.seek(0)
        lines = self._log.read().strip().splitlines() or ["without a message"]
        errors = [line for line in lines if "Error" in line]
        return f"failed: {[*lines[-1:], *errors][-1][:200]}"


class Deadline:
    """A limit for one wait. `check` raises when it has passed, or when the program has ended."""

    def __init__(self, program: Program, seconds: float = PATIENCE) -> None:
        self._program, self._end = program, time.monotonic() + seconds

    def check(self, doing: str) -> None:
        if self._program.ended():
            raise RuntimeError(self._program.problem())
        if time.monotonic() > self._end:
            raise RuntimeError(f"failed: {doing} takes too long")
