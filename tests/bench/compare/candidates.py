"""The queues that are compared: their programs, workloads, and how much work each still has."""

import configparser
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

SENDING = ("single", "batch", "tasks")
WAKE, IDLE = "wake", "idle"
#: Name of a workload to its title in the table.
WORKLOADS = {
    "single": "enqueue one by one",
    "batch": "enqueue by batches of 100",
    "tasks": "enqueue from 100 asyncio tasks",
    "one": "consume, empty handler, one process",
    "by100": "receive and ack by 100",
    "value": "consume, a handler gets each value",
    "async": "consume in asyncio, one process",
    "workers": "worker with 2 processes",
    "worker0": "worker without processes of its own",
    "receive": "one at a time: receive, ack",
    "limited": "one at a time: consume",
    WAKE: "wake-up of an idle consumer",
    IDLE: "idle worker of 20 queues, a minute",
}
#: Workloads whose program has another name for them.
SHAPES = {"limited": "single"}


@dataclass(frozen=True)
class Candidate:
    """One queue. `left` returns the messages that are not settled, with so many commands as `polls`."""

    name: str
    environment: str
    program: str
    workloads: frozenset[str]
    left: Callable[[Any], int]
    polls: int = 1
    share: float = 0.2


def _lengths(*commands: tuple[str, str]) -> Callable[[Any], int]:
    def left(client: redis.Redis) -> int:
        pipeline = client.pipeline(transaction=False)
        for words in commands:
            pipeline.execute_command(*words)
        return sum(pipeline.execute())

    return left


def _lag(client: Any) -> int:
    """Messages of the stream that the group has not read, or not acknowledged; the stream keeps them all."""
    groups = client.xinfo_groups("q")
    return sum((group["lag"] or 0) + group["pending"] for group in groups) if groups else 1


_SYNC = frozenset({"single", "one", "workers", "limited", WAKE})
_ASYNC = frozenset({"single", "tasks", "async", "workers", "limited", WAKE})
_BULLMQ = _lengths(("LLEN", "bull:q:wait"), ("LLEN", "bull:q:active"))

CANDIDATES = (
    Candidate("rqttl", "rqttl", "with_rqttl.py", frozenset(WORKLOADS), _lengths(("XLEN", "rqttl:{q}:log")), share=1),
    Candidate(
        "raw redis-py",
        "rqttl",
        "with_raw.py",
        _SYNC - {"workers"} | {"batch", "tasks", "async"},
        _lengths(("XLEN", "raw")),
        share=1,
    ),
    Candidate(
        "RQ", "python", "with_rq.py", _SYNC | {"batch"}, _lengths(("LLEN", "rq:queue:q"), ("ZCARD", "rq:wip:q")), 2
    ),
    Candidate("Dramatiq", "python", "with_dramatiq.py", _SYNC, _lengths(("HLEN", "dramatiq:q.msgs"))),
    Candidate("Celery", "python", "with_celery.py", _SYNC, _lengths(("LLEN", "celery"), ("HLEN", "unacked")), 2),
    Candidate("SAQ", "python", "with_saq.py", _ASYNC, _lengths(("ZCARD", "saq:q:incomplete"))),
    Candidate("taskiq-redis", "python", "with_taskiq.py", _ASYNC, _lag),
    Candidate("arq", "arq", "with_arq.py", _ASYNC, _lengths(("ZCARD", "arq:queue"))),
    Candidate("BullMQ Python", "python", "with_bullmq.py", _ASYNC | {"batch"}, _BULLMQ, 2),
    Candidate("BullMQ Node", "node", "with_bullmq.cjs", _ASYNC | {"batch"}, _BULLMQ, 2),
)


HERE = Path(__file__).resolve().parent
FOLDER = HERE.parents[2] / "build" / "compare"
INSTALLATION = 900.0  # seconds


def packages(section: str) -> list[str]:
    """The pinned packages of an environment."""
    parser = configparser.ConfigParser()
    parser.read(HERE / "peers.ini", encoding="utf-8")
    return parser[section]["packages"].split()


def prepared(section: str, folder: Path = FOLDER) -> list[str]:
    """The command that runs a program in the environment, made if it is missing. `[]` when it cannot be made."""
    if section == "rqttl":
        return [sys.executable]
    target, pinned = folder / section, packages(section)
    stamp, wanted = target / "packages.txt", "\n".join(pinned)
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != wanted:
        print(f"installing the environment {section}: {' '.join(pinned)}", file=sys.stderr, flush=True)
        problem = _install(section, target, pinned)
        if problem:
            print(f"{section}: not installed: {problem}", file=sys.stderr, flush=True)
            return []
        stamp.write_text(wanted, encoding="utf-8")
    node = shutil.which("node")
    return [str(node)] if section == "node" else [str(target / "bin" / "python")]


def _install(section: str, target: Path, pinned: list[str]) -> str:
    """Install the packages. Return the last line of the failure, or an empty text."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    if section == "node":
        if not shutil.which("npm") or not shutil.which("node"):
            return "no node and npm"
        steps = [["npm", "install", "--no-audit", "--no-fund", "--silent", "--prefix", str(target), *pinned]]
    else:
        steps = [
            [sys.executable, "-m", "venv", str(target)],
            [str(target / "bin" / "python"), "-m", "pip", "install", "--quiet", *pinned],
        ]
    for step in steps:
        try:
            done = subprocess.run(step, capture_output=True, text=True, timeout=INSTALLATION, check=False)
        except subprocess.TimeoutExpired:
            return f"{step[0]}: no end after {INSTALLATION:.0f} s"
        if done.returncode:
            return (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
    return ""
