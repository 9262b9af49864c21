"""`rqttl import`: definitions of RabbitMQ, Artemis and Service Bus become queues and policies, whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import redis

from rqttl import Broker
from tests.cli.conftest import Run
from tests.cli.test_errors import failed
from tests.lua.states import everything

UNIT = Path(__file__).parents[1] / "unit" / "imports"
CLUSTER = str(UNIT / "fixtures" / "rabbitmq_cluster.json")
FILES = {
    "rabbitmq": [CLUSTER, str(UNIT / "fixtures" / "rabbitmq_vhost.json")],
    "servicebus": [
        str(UNIT / "fixtures" / "servicebus_template.json"),
        str(UNIT / "fixtures" / "servicebus_az.json"),
    ],
    "artemis": [str(UNIT / "fixtures" / "every_element.xml"), str(UNIT / "fixtures" / "shipped.xml")],
}
CASES = [(system, file) for system, files in FILES.items() for file in files]
every = pytest.mark.parametrize("system, file", CASES, ids=[Path(file).stem for _, file in CASES])


@every
def test_the_same_file_twice_changes_nothing(run: Run, client: redis.Redis, system: str, file: str) -> None:
    first = run("import", system, file, "--yes", "--json")
    assert first.exit_code == 0, first.stderr
    answer = json.loads(first.stdout)
    assert sum(len(one["steps"]) for one in answer["deployments"]) > 0
    assert {note["kind"] for note in answer["notes"]} <= {"taken", "translated", "left out"}
    before = everything(client)

    again = json.loads(run("import", system, file, "--json").stdout)

    assert [one["steps"] for one in again["deployments"]] == [[] for _ in again["deployments"]]
    assert again["notes"] == answer["notes"]
    assert everything(client) == before


@every
def test_a_dry_run_says_all_and_changes_nothing(run: Run, client: redis.Redis, system: str, file: str) -> None:
    result = run("import", system, file, "--dry-run")

    assert (result.exit_code, result.stderr) == (0, "")
    assert "left out" in result.stdout
    assert "namespace " in result.stdout
    assert everything(client) == {}


def test_each_vhost_becomes_a_namespace(run: Run, client: redis.Redis) -> None:
    run("import", "rabbitmq", CLUSTER, "--yes")

    assert "orders.dead" in Broker(client).queues()
    tenant = Broker(client, "tenant-one")
    assert tenant.queues() == ["orders"]
    assert [policy.name for policy in tenant.operator_policies()] == ["small-messages"]
    assert tenant.queue("orders").options()["max_deliveries"] == 11


def test_one_vhost_goes_into_a_chosen_namespace(run: Run, client: redis.Redis) -> None:
    run("--namespace", "shop", "import", "rabbitmq", CLUSTER, "--only", "/tenant one", "--yes")

    assert Broker(client, "shop").queues() == ["orders"]
    assert Broker(client, "tenant-one").queues() == []


def test_a_namespace_for_several_vhosts_is_wrong_usage(run: Run, client: redis.Redis) -> None:
    line = failed(run("--namespace", "shop", "import", "rabbitmq", CLUSTER, "--yes"), 2)

    assert "--only" in line
    assert everything(client) == {}


def test_an_unknown_vhost_is_named_with_the_known_ones(run: Run) -> None:
    line = failed(run("import", "rabbitmq", CLUSTER, "--only", "none"), 2)

    assert "the file has no 'none': it has '/', '/tenant one'" in line


def test_messages_that_would_die_in_any_namespace_are_counted_and_asked_for(run: Run, client: redis.Redis) -> None:
    Broker(client, "eu").declare_queue("orders").enqueue_many([b"x"] * 5)
    limit = {"name": "few", "pattern": "", "definition": {"max-length": 2}, "vhost": "eu", "apply-to": "queues"}
    file = json.dumps({"vhosts": [{"name": "/"}, {"name": "eu"}], "policies": [limit]}).encode()
    before = everything(client)

    result = run("import", "rabbitmq", "-", stdin=file)

    assert result.exit_code == 2
    assert "rqttl: 3 messages would be pushed out by a limit\n" in result.stderr
    assert "--yes" in result.stderr
    assert everything(client) == before


HOSTILE = [
    b"",
    b"[]",
    b"\xff\xfe",
    b'{"queues": 5}',
    b"<a",
    b'{"resources": 5}',
    b"[" * 100_000,
]


@pytest.mark.parametrize("system", FILES)
@pytest.mark.parametrize("content", HOSTILE, ids=range(len(HOSTILE)))
def test_a_bad_file_is_refused_whole(run: Run, client: redis.Redis, system: str, content: bytes) -> None:
    result = run("import", system, "-", "--yes", stdin=content)

    assert everything(client) == {}
    assert (result.exit_code, result.stdout) == (2, "") or "nothing changes" in result.stdout


def test_reasons_come_once_and_each_setting_with_verbose(run: Run) -> None:
    queues = [{"vhost": "/", "name": name, "arguments": {"x-max-priority": 9}} for name in "abc"]
    file = json.dumps({"queues": queues}).encode()
    short = run("import", "rabbitmq", "-", "--dry-run", stdin=file).stdout
    long = run("import", "rabbitmq", "-", "--dry-run", "-v", stdin=file).stdout

    assert (short.count("rqttl has no priorities"), long.count("rqttl has no priorities")) == (1, 3)
    assert "-v lists each" in short.splitlines()[0]
    assert "queue 'a'" not in short
    assert "queue 'a'" in long
