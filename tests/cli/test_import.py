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
        str(UNIT / "fixtures" / "servicebus_bicep.json"),
    ],
    "artemis": [str(UNIT / "artemis" / "files" / "every_element.xml"), str(UNIT / "artemis" / "files" / "shipped.xml")],
}
CASES = [(system, file) for system, files in FILES.items() for file in files]
every = pytest.mark.parametrize("system, file", CASES, ids=[Path(file).stem for _, file in CASES])


#: Values without which a file does not say its namespace.
VALUES = {"servicebus_bicep": ("--parameter", "serviceBusNamespaceName=shop")}


@every
def test_the_same_file_twice_changes_nothing(run: Run, client: redis.Redis, system: str, file: str) -> None:
    values = VALUES.get(Path(file).stem, ())
    first = run("import", system, file, "--yes", "--json", *values)
    assert first.exit_code == 0, first.stderr
    answer = json.loads(first.stdout)
    assert sum(len(one["steps"]) for one in answer["deployments"]) > 0
    assert {note["kind"] for note in answer["notes"]} <= {"taken", "translated", "left out"}
    before = everything(client)

    again = json.loads(run("import", system, file, "--json", *values).stdout)

    assert [one["steps"] for one in again["deployments"]] == [[] for _ in again["deployments"]]
    assert again["notes"] == answer["notes"]
    assert everything(client) == before


@every
def test_a_dry_run_says_all_and_changes_nothing(run: Run, client: redis.Redis, system: str, file: str) -> None:
    result = run("import", system, file, "--dry-run", *VALUES.get(Path(file).stem, ()))

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
    b"{",
    b"[]",
    b"null",
    b"\xff\xfe",
    b'{"queues": 5}',
    b'{"queues": [{"name": 5}]}',
    b"<a",
    b"<broker/>",
    b'{"resources": 5}',
    b'{"policies": [{"name": "p"}]}',
    b"[" * 100_000,
]


@pytest.mark.parametrize("system", FILES)
@pytest.mark.parametrize("content", HOSTILE, ids=range(len(HOSTILE)))
def test_a_bad_file_is_refused_whole(run: Run, client: redis.Redis, system: str, content: bytes) -> None:
    result = run("import", system, "-", "--yes", stdin=content)

    assert everything(client) == {}
    assert (result.exit_code, result.stdout) == (2, "") or "nothing changes" in result.stdout


def test_parameters_of_a_template_come_from_flags_and_from_a_file(run: Run, tmp_path: Path) -> None:
    queue = {"type": "Microsoft.ServiceBus/namespaces/queues", "name": "[concat('bus/', parameters('queue'))]"}
    text = json.dumps({"parameters": {"queue": {"type": "string"}}, "resources": [queue]}).encode()
    file = tmp_path / "values.json"
    file.write_text(json.dumps({"parameters": {"queue": {"value": "mails"}}}), encoding="utf-8")
    command = ("import", "servicebus", "-", "--dry-run")

    assert "parameter 'queue' has no default value" in " ".join(run(*command, stdin=text).stdout.split())
    assert "queue mails" in run(*command, "--parameters", str(file), stdin=text).stdout
    both = run(*command, "--parameters", str(file), "--parameter", "queue=a=b", stdin=text)
    assert "queue a-b" in both.stdout
    assert "expected NAME=VALUE, got 'queue'" in failed(run(*command, "--parameter", "queue", stdin=text), 2)
    twice = run(*command, "--parameter", "queue=a", "--parameter", "QUEUE=b", stdin=text)
    assert "QUEUE is given twice" in failed(twice, 2)
    assert "did you mean queue?" in failed(run(*command, "--parameter", "queu=a", stdin=text), 2)
    assert "--parameters" in failed(run(*command, "--parameters", str(tmp_path / "no"), stdin=text), 2)


def test_a_namespace_with_an_unknown_name_is_asked_for(run: Run, client: redis.Redis) -> None:
    bicep = str(UNIT / "fixtures" / "servicebus_bicep.json")

    line = failed(run("import", "servicebus", bicep, "--yes"), 2)

    assert "the name of the namespace [parameters('serviceBusNamespaceName')] is unknown" in line
    assert "--namespace" in line
    assert everything(client) == {}
    assert run("--namespace", "shop", "import", "servicebus", bicep, "--yes").exit_code == 0
    assert Broker(client, "shop").queues() == ["tasks", "tasks-2"]
