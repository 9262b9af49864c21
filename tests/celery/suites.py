"""`make test-celery-suites`: the integration tests of kombu and Celery, here and on the Redis transport of kombu.

They are in the sdists of the versions that this environment has. Both transports run at the same time, each on a server
of its own, since tests share keys. What fails runs once more: the suites run most of their tests up to six times.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections import defaultdict
from contextlib import suppress
from importlib.metadata import version

from tests.celery.conftest import TRANSPORT
from tests.ports import free_port
from tests.repository import ROOT
from tests.servers import Server, server_binary

HOME = ROOT / "build" / "celery-suites"
FILES = {
    "kombu": ["common"],
    "celery": ["test_inspect", "test_loader", "test_group_chains", "test_tasks", "test_canvas"],
}
#: What the classes of kombu are called; and some tests of Celery take a worker for granted.
OPTIONS = {"kombu": "python_classes=Ba*", "celery": "usefixtures=celery_session_worker"}
#: The seconds of a suite; a test gets 300.
DEADLINE = 3000.0
#: What fails here, but not on the transport of kombu, and why that is meant.
ONLY_HERE = {
    "kombu t/integration/common.py::BaseFailover::test_failover_switches_to_alternate_url": (
        "expects the port of a connection beside its URL; here it is in the URL, which may name several nodes"
    ),
    "celery t/integration/test_inspect.py::test_Inspect::test_scheduled": (
        "what is due later waits in Redis, not in a worker: `rqttl peek celery --state scheduled` lists it"
    ),
}
#: What fails on some runs only. A revocation and a task that is sent right after it come by two queues, in any order.
SOMETIMES = {"celery t/integration/test_tasks.py::test_tasks::test_revoked_by_headers_complex_canvas"}
RANKS = ("failed", "skipped", "passed")
Tests = dict[str, list[str]]
Outcomes = dict[str, dict[str, str]]


def unpack(transport: str, suite: str) -> None:
    """Put the tests of an sdist and their settings into a folder. The package itself stays the installed one."""
    folder, sdist = HOME / transport / suite, HOME / f"{suite}-{version(suite)}.tar.gz"
    if not sdist.exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", suite]
        subprocess.run([*command, "--dest", HOME, f"{suite}=={version(suite)}"], check=True, timeout=DEADLINE)
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(sdist) as tar:
        for member in tar.getmembers():
            member.name = member.name.partition("/")[2]
            if member.name.startswith("t/") or member.name in ("pyproject.toml", "setup.cfg"):
                tar.extract(member, folder, filter="data")
    if transport == "rqttl":
        (folder / "integration-tests-config.json").write_text(json.dumps({"broker_transport": TRANSPORT}))


def start(transport: str, suite: str, port: int, tests: list[str]) -> subprocess.Popen[bytes]:
    """Start pytest in a process group of its own, and in the folder in which it leaves its outcomes and its log."""
    folder, place = HOME / transport / suite, f"127.0.0.1:{port}"
    (folder / "outcomes").write_text("")
    scheme = transport if suite == "kombu" else "redis"  # the settings of Celery have the transport
    own = {"PYTHONPATH": str(ROOT), "TEST_BROKER": f"{scheme}://{place}", "TEST_BACKEND": f"redis://{place}"}
    own |= {"REDIS_HOST": "127.0.0.1", "REDIS_PORT": str(port), "WORKER_LOGLEVEL": "INFO"}
    command = [sys.executable, "-m", "pytest", "-v", "--tb=short", "-W", "ignore"]
    for plugin in ("no:randomly", "no:cacheprovider", "celery.contrib.pytest", "tests.celery.suite_plugin"):
        command += ["-p", plugin]
    command += ["-o", OPTIONS[suite], *tests]
    with (folder / "log").open("a") as out:
        return subprocess.Popen(
            command, cwd=folder, env={**os.environ, **own}, stdout=out, stderr=out, start_new_session=True
        )


def run(suite: str, ports: dict[str, int], tests: Tests) -> Outcomes:
    """Run the tests of each transport, and return the worst outcome of each."""
    processes = {transport: start(transport, suite, ports[transport], tests[transport]) for transport in tests}
    try:
        for transport, process in processes.items():
            if (status := process.wait(DEADLINE)) not in (0, 1):
                raise RuntimeError(f"pytest ended with {status}: see {HOME / transport / suite / 'log'}")
    finally:
        for process in processes.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    found: Outcomes = {transport: {} for transport in tests}
    for transport, outcomes in found.items():
        for line in (HOME / transport / suite / "outcomes").read_text().splitlines():
            outcome, _, test = line.partition(" ")
            outcomes[test] = min(outcome, outcomes.get(test, outcome), key=RANKS.index)
    return found


def main() -> int:
    """Run all, and print what differs. Returns 1 if that is not what is meant."""
    HOME.mkdir(parents=True, exist_ok=True)
    ports, rows = {"rqttl": free_port(), "redis": free_port()}, defaultdict(list)
    servers = [Server(server_binary("7.0"), port=port, bind="127.0.0.1") for port in ports.values()]
    try:
        for suite, names in FILES.items():
            for transport in ports:
                unpack(transport, suite)
            found = run(suite, ports, {key: [f"t/integration/{name}.py" for name in names] for key in ports})
            failed = {key: [test for test in tests if tests[test] == "failed"] for key, tests in found.items()}
            again = run(suite, ports, {key: tests for key, tests in failed.items() if tests})
            found = {key: tests | again.get(key, {}) for key, tests in found.items()}
            for test in sorted({*found["rqttl"], *found["redis"]}):
                here, there = (RANKS.index(outcomes.get(test, "failed")) for outcomes in found.values())
                better = f"worse {'here' if here < there else 'on the other'}"
                rows[f"{RANKS[here]} on both" if here == there else better].append(f"{suite} {test}")
    finally:
        for server in servers:
            server.remove()
    told = [f"{'':24}{'kombu':>8}{'celery':>8}"]
    for row, tests in rows.items():
        told.append(f"{row:24}" + "".join(f"{sum(test.startswith(suite) for test in tests):8}" for suite in FILES))
    for row in sorted(rows.keys() - {"passed on both"}):
        told += [f"{row}:", *(f"  {test} {ONLY_HERE.get(test, '')}" for test in rows[row])]
    if wrong := (ONLY_HERE.keys() ^ {*rows["worse here"]}) - SOMETIMES:
        told += ["other than the list in tests/celery/suites.py says:", *(f"  {test}" for test in sorted(wrong))]
    sys.stdout.write("\n".join(told) + "\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
