"""One run of one candidate in one workload."""

from __future__ import annotations

import random
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.bench.compare.candidates import IDLE, SENDING, SHAPES, WAKE, Candidate
from tests.bench.compare.environments import FOLDER, HERE
from tests.bench.compare.figures import Run, command_us, percentile
from tests.bench.compare.processes import Deadline, Program
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

    def close(self) -> None:
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
