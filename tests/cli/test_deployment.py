"""`rqttl apply` and `rqttl export`: whole deployments, the plan first, and nothing half applied."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import redis

from rqttl import Broker
from rqttl.deployments import read_deployment
from tests.cli.conftest import Run
from tests.cli.test_errors import failed
from tests.lua.states import everything

FILE = """
rqttl: 1
queues:
  orders: {max-length: 5, dead-letter: orders/dead}
  mails:
policies:
  short: {pattern: "orders.#", definition: {message-ttl: 5m}}
operator-policies:
  cap: {pattern: "#", priority: 3, definition: {max-deliveries: 9}}
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "queues.yaml"
    path.write_text(FILE, encoding="utf-8")
    return str(path)


def test_a_dry_run_shows_the_plan_and_changes_nothing(run: Run, client: redis.Redis, file: str) -> None:
    result = run("apply", file, "--dry-run")

    assert (result.exit_code, result.stderr) == (0, "")
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "create queue orders max-length 5" in lines
    assert "may expire messages: message-ttl: unset → 5m" in lines
    assert "set operator policy cap pattern #" in lines
    assert lines[-1] == "namespace rqttl: 4 steps, 2 of them may expire messages"
    assert everything(client) == {}


def test_the_same_file_again_changes_nothing(run: Run, broker: Broker, client: redis.Redis, file: str) -> None:
    assert run("apply", file, "--yes").stdout.splitlines()[-1] == "4 steps taken"
    assert broker.queues() == ["mails", "orders"]
    assert broker.queue("orders").options()["max_deliveries"] == 9
    before = everything(client)

    again = run("apply", file)

    assert (again.stdout, again.stderr) == ("namespace rqttl: nothing changes\n", "")
    assert everything(client) == before


@pytest.mark.spec("OPP-11")
def test_an_export_is_a_file_that_apply_takes(run: Run, file: str, tmp_path: Path) -> None:
    run("apply", file, "--yes")

    text = run("export").stdout
    copy = tmp_path / "copy.yaml"
    copy.write_text(text, encoding="utf-8")
    assert run("--namespace", "copy", "apply", str(copy), "--yes").exit_code == 0

    assert run("--namespace", "copy", "export").stdout == text.replace("namespace: rqttl", "namespace: copy")
    assert read_deployment(run("export", "--json").stdout) == read_deployment(FILE)
    assert run("apply", "-", stdin=text.encode()).stdout == "namespace rqttl: nothing changes\n"


def test_a_file_from_another_namespace_is_asked_for(
    run: Run, broker: Broker, client: redis.Redis, tmp_path: Path
) -> None:
    broker.declare_queue("orders")
    path = tmp_path / "rqttl.yaml"
    path.write_text(run("export").stdout, encoding="utf-8")
    assert "namespace: rqttl\n" in path.read_text(encoding="utf-8")
    before = everything(client)

    asked = run("--namespace", "shop", "apply", str(path))
    assert asked.exit_code == 2
    assert "rqttl: the file was exported from namespace rqttl\n" in asked.stderr
    assert "use --yes to go on" in asked.stderr
    assert everything(client) == before

    assert run("apply", str(path)).exit_code == 0
    assert run("--namespace", "shop", "apply", str(path), "--yes").exit_code == 0
    assert run("--namespace", "shop", "apply", str(path)).exit_code == 0  # nothing changes, so nothing is asked
    assert Broker(client, "shop").queues() == ["orders"]


def test_an_update_sets_exactly_the_options_of_the_file(run: Run, broker: Broker, file: str) -> None:
    broker.declare_queue("orders", max_length=50, lease="1h", max_message_bytes=7)

    run("apply", file, "--yes")

    assert broker.queue("orders").options(declared=True).as_arguments() == {
        "max_length": 5,
        "dead_letter": "orders/dead",
    }


def test_steps_that_end_messages_are_counted_and_asked_for(
    run: Run, broker: Broker, client: redis.Redis, file: str
) -> None:
    broker.declare_queue("orders").enqueue_many([b"x"] * 12)
    broker.declare_queue("old").enqueue_many([b"x"] * 3)
    before = everything(client)

    asked = run("apply", file, "--prune")
    assert asked.exit_code == 2
    assert "rqttl: 7 messages would be pushed out by a limit\n" in asked.stderr
    assert "rqttl: 3 messages would be deleted with their queues\n" in asked.stderr
    assert "--yes" in asked.stderr
    assert everything(client) == before

    counted = json.loads(run("apply", file, "--prune", "--dry-run", "--json").stdout)
    done = json.loads(run("apply", file, "--prune", "--yes", "--json").stdout)
    for answer in (counted, done):
        assert (answer["expired"], answer["trimmed"], answer["deleted"]) == (0, 7, 3)
    assert [(step["action"], step["name"]) for step in done["steps"]] == [
        ("set", "cap"),
        ("set", "short"),
        ("create", "mails"),
        ("update", "orders"),
        ("delete", "old"),
    ]
    assert broker.queues() == ["mails", "orders", "orders/dead"]


def test_nothing_is_asked_where_nothing_dies(run: Run, broker: Broker, file: str) -> None:
    broker.declare_queue("orders").enqueue_many([b"x"] * 5)

    assert run("apply", file).stdout.splitlines()[-1] == "4 steps taken"


def test_an_empty_queue_is_not_deleted_without_a_question(
    run: Run, broker: Broker, client: redis.Redis, file: str
) -> None:
    broker.declare_queue("old")
    before = everything(client)

    asked = run("apply", file, "--prune")

    assert asked.exit_code == 2
    assert "rqttl: 1 queue would be deleted\n" in asked.stderr
    assert "use --yes to go on" in asked.stderr
    assert everything(client) == before


def test_unnamed_objects_stay_without_prune(run: Run, broker: Broker, file: str) -> None:
    broker.declare_queue("old")
    broker.set_policy("old", "none.#", {"lease": "1m"})

    kept = run("apply", file, "--yes")

    assert kept.stderr == "rqttl: not named by the file, and kept: policy old, queue old; --prune deletes them\n"
    assert "old" in broker.queues()
    run("apply", file, "--prune", "--yes")
    assert [policy.name for policy in broker.policies()] == ["short"]
    assert broker.queues() == ["mails", "orders"]


def test_prune_leaves_queues_that_only_dead_letters_created(run: Run, broker: Broker, file: str) -> None:
    run("apply", file, "--yes")
    queue = broker.queue("orders")
    queue.enqueue(b"x")
    queue.reject_many(queue.receive_many(1))

    assert run("apply", file, "--prune").stdout == "namespace rqttl: nothing changes\n"
    assert "orders/dead" not in run("export").stdout.replace("dead-letter: orders/dead", "")
    assert broker.queue("orders/dead").stats().ready == 1


BAD = {
    "nothing": "",
    "an unknown option": "rqttl: 1\nqueues: {a: {}, b: {max-lenght: 5}}",
    "a bad value": "rqttl: 1\nqueues: {a: {}, b: {max-length: many}}",
    "a bad namespace": "rqttl: 1\nnamespace: 'a b'",
    "a queue twice": "rqttl: 1\nqueues: {a: {}, a: {}}",
    "none in a queue": "rqttl: 1\nqueues: {a: {message-ttl: none}}",
    "a bad pattern": "rqttl: 1\npolicies: {p: {pattern: 'a*', definition: {lease: 1m}}}",
    "a tag": "rqttl: 1\nqueues: !!python/object:os.system {}",
    "broken JSON": '{"rqttl": 1, "queues": {"a": }',
}


def test_a_misspelled_option_of_a_file_is_answered_with_its_name_and_no_flag(run: Run) -> None:
    line = failed(run("apply", "-", stdin=b"rqttl: 1\nqueues: {a: {max-lenght: 2}}"), 2)

    assert "queues.a.max-lenght: " in line
    assert line.endswith("no such queue option; did you mean max_length? [invalid_deployment]")


@pytest.mark.parametrize("text", BAD.values(), ids=BAD.keys())
def test_a_bad_file_is_refused_whole(run: Run, broker: Broker, client: redis.Redis, text: str) -> None:
    broker.declare_queue("kept").enqueue(b"x")
    before = everything(client)

    line = failed(run("apply", "-", "--yes", "--prune", stdin=text.encode()), 2)

    assert "[invalid_deployment]" in line
    assert everything(client) == before


def test_a_missing_file_is_wrong_usage(run: Run, tmp_path: Path) -> None:
    assert "FILE" in failed(run("apply", str(tmp_path / "none.yaml"), "--yes"), 2)


def test_a_damaged_queue_stops_a_plan_before_it_begins(
    run: Run, broker: Broker, client: redis.Redis, file: str
) -> None:
    broker.declare_queue("broken")
    client.hset("rqttl:{broken}:meta", "declared", "{")
    before = everything(client)

    assert "damaged" in failed(run("apply", file, "--yes"), 3)
    assert everything(client) == before


def test_a_plan_shows_values_as_people_write_them(run: Run) -> None:
    file = b"rqttl: 1\nqueues: {a: {never-expire: yes, dead-letter-expired: '', dead-letter: b}}\n"

    lines = [" ".join(line.split()) for line in run("apply", "-", "--dry-run", stdin=file).stdout.splitlines()]

    assert "create queue a never-expire yes" in lines
    assert "dead-letter-expired (drop)" in lines
    assert lines[-1] == "namespace rqttl: 1 step, none may expire messages"


@pytest.mark.parametrize("value", ["010", "-0_7", "1:30", "2026-01-01", "1:30.5"])
def test_a_value_that_yaml_reads_otherwise_is_refused(run: Run, client: redis.Redis, value: str) -> None:
    line = failed(run("apply", "-", stdin=f"rqttl: 1\nqueues:\n  a: {{max-length: {value}}}".encode()), 2)

    assert "line 3, column 19: " in line
    assert value in line
    assert everything(client) == {}
