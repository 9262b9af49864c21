"""`rqttl apply`, `export` and `import`: whole deployments, the plan first, and nothing half applied."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from rqttl import Broker, Message, QueueOptions
from rqttl.deployments import read_deployment
from tests.cli.conftest import Run
from tests.cli.test_errors import failed
from tests.drivers import redis_of
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
    assert "set operator policy cap pattern #" in lines
    assert lines[-1] == "namespace rqttl: 4 steps"
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


TOPICS = """
rqttl: 1
queues:
  news: {max-length: 9, bindings: {news/eu: orders.eu.#, news/all: , rest: {unmatched: true}, tip/dead: }}
  news/eu:
  news/all: {auto-delete-on-idle: 10m}
  rest: {bindings: {}}
  tip: {dead-letter: tip/dead}
  tip/dead:
"""


def test_topics_are_exported_with_their_bindings_and_made_again(run: Run, broker: Broker, tmp_path: Path) -> None:
    news = broker.declare_topic("news", max_length=9)
    news.subscribe("eu", "orders.eu.#")
    news.subscribe("all", auto_delete_on_idle="10m")
    broker.declare_topic("rest")
    tip = broker.declare_queue("tip", dead_letter="tip/dead")
    tip.enqueue(b"x")
    tip.reject_many(tip.receive_many(1))  # makes tip/dead
    news.bind("rest", {"unmatched": True})
    news.bind("tip/dead")
    broker.declare_queue("gone")
    news.bind("gone")
    broker.queue("gone").delete()

    text = run("export").stdout
    assert read_deployment(text) == read_deployment(run("export", "--json").stdout) == read_deployment(TOPICS)
    (tmp_path / "copy.yaml").write_text(text, encoding="utf-8")
    assert run("--namespace", "copy", "apply", str(tmp_path / "copy.yaml"), "--yes").exit_code == 0

    assert run("--namespace", "copy", "export").stdout == text.replace("namespace: rqttl", "namespace: copy")
    copy = Broker(redis_of(broker), "copy")
    copy.queue("news").enqueue(b"x", subject="orders.eu.new")
    assert [copy.queue(name).stats().ready for name in ("news/eu", "news/all", "rest", "tip/dead")] == [1, 1, 0, 1]


def test_the_plan_says_what_is_bound_and_unbound_and_a_file_without_bindings_keeps_them(
    run: Run, broker: Broker, client: redis.Redis
) -> None:
    news = broker.declare_topic("news")
    for name, filter in {"a": "x.#", "b": {"size": 1}, "c": None}.items():
        news.subscribe(name, filter)
    bindings = {"news/a": "x.#", "news/b": {"size": True}, "news/d": None, "top": ["y", {"z": "é"}]}
    queues = {"news": {"bindings": bindings}, "news/d": {}, "top": {"bindings": {}}}
    before = everything(client)

    shown = run("apply", "-", "--dry-run", stdin=json.dumps({"rqttl": 1, "queues": queues}).encode())
    assert [" ".join(line.split()) for line in shown.stdout.splitlines()[2:]] == [
        "create queue news/d no option",
        "create queue top a topic",
        'update queue news filter of news/b [{"size":1}] -> [{"size":true}]',
        "unbind news/c",
        "bind news/d",
        'bind top for [{"subject":"y"},{"z":"\\u00e9"}]',
        "namespace rqttl: 3 steps",
    ]
    assert everything(client) == before
    done = run("apply", "-", "--json", stdin=json.dumps({"rqttl": 1, "queues": queues}).encode())
    change = json.loads(done.stdout)["steps"][-1]["changes"]["bindings"]
    assert (change["before"]["news/c"], change["after"]["news/b"]) == ([], [{"size": True}])
    assert list(news.bindings()) == ["news/a", "news/b", "news/d", "top"]

    unsaid = run("apply", "-", stdin=b"rqttl: 1\nqueues: {news: {max-length: 3}}")
    assert "update queue news max-length (none) -> 3" in " ".join(unsaid.stdout.split())
    assert len(news.bindings()) == 4


def test_topics_that_cannot_be_made_are_refused_before_anything_changes(
    run: Run, broker: Broker, client: redis.Redis
) -> None:
    broker.declare_queue("news").enqueue(b"x")
    before = everything(client)

    line = failed(run("apply", "-", "--yes", stdin=b"rqttl: 1\nqueues: {new: , news: {bindings: {}}}"), 2)

    assert "queues.news.bindings: queue 'news' is no topic, and never becomes one" in line
    assert "[invalid_deployment]" in line
    assert everything(client) == before


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

    assert "7 messages would be pushed out by a limit\n" in run("apply", file, "--prune", "--dry-run").stdout
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


Options = dict[str, Any]
LATER = "4 messages would end after 3s without a consumer"
OVER = "3 messages would be pushed out by a limit"
#: Changes of a queue with four messages: the options before and after, and what the question says, if there is one.
CHANGES: dict[str, tuple[Options, Options, str]] = {
    "a TTL": ({}, {"message_ttl": "3s"}, LATER),
    "a shorter TTL": ({"message_ttl": "1h"}, {"message_ttl": "3s"}, LATER),
    "a limit": ({}, {"max_length": 1}, OVER),
    "a limit of bytes": ({}, {"max_length_bytes": 1}, OVER),
    "drop-head": ({"max_length": 1, "overflow": "reject-publish"}, {"max_length": 1, "overflow": "drop-head"}, OVER),
    "a lifetime": ({}, {"expires": "3s"}, LATER),
    "a shorter lifetime": ({"expires": "1h"}, {"expires": "3s"}, LATER),
    "an idle time": ({"expires": "1h"}, {"expires": "1h", "auto_delete_on_idle": "3s"}, LATER),
    "no keep": ({"expires": "3s", "on_expire": "keep"}, {"expires": "3s", "on_expire": "drop"}, LATER),
    "letters": ({"expires": "3s", "on_expire": "keep"}, {"expires": "3s", "on_expire": "dead-letter"}, LATER),
    "a longer TTL": ({"message_ttl": "1h"}, {"message_ttl": "2h"}, ""),
    "a longer lifetime": ({"expires": "1h"}, {"expires": "2h", "lease": "1m"}, ""),
    "a lifetime that keeps": ({}, {"expires": "3s", "on_expire": "keep"}, ""),
    "a limit that is not reached": ({}, {"max_length": 4}, ""),
}
#: Options that a definition of RabbitMQ has under the same name.
OF_RABBITMQ = {"message_ttl", "max_length", "max_length_bytes", "overflow", "expires"}


def flags(options: Options) -> list[str]:
    return [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def give(broker: Broker, name: str, options: Options, *, priority: int = 0, operator: bool = False) -> None:
    broker.set_policy(name, "#", {"lease": "1m", **options}, priority=priority, operator=operator)


def set_policy(broker: Broker, before: Options, after: Options, file: Path, group: str = "policy") -> list[str]:
    give(broker, "base", before, operator=group != "policy")
    return [group, "set", "p", "#", "--priority", "5", *flags(after)]


def delete_policy(broker: Broker, before: Options, after: Options, file: Path, group: str = "policy") -> list[str]:
    give(broker, "p", {name: before.get(name) for name in after}, priority=5, operator=group != "policy")
    give(broker, "base", after, operator=group != "policy")
    return [group, "delete", "p"]


def update(broker: Broker, before: Options, after: Options, file: Path) -> list[str]:
    broker.queue("q").update(**before)
    return ["queue", "update", "q", *flags(after)]


def adopt(broker: Broker, before: Options, after: Options, file: Path) -> list[str]:
    """Declare a queue that dead letters have created, without options."""
    broker.queue("q").delete()
    source = broker.declare_queue("source", dead_letter="q")
    source.enqueue_many([Message(b"x")] * 4)
    source.reject_many(source.receive_many(4))
    return ["queue", "declare", "q", *flags(after)]


def apply(broker: Broker, before: Options, after: Options, file: Path) -> list[str]:
    broker.queue("q").update(**before)
    file.write_text(json.dumps({"rqttl": 1, "queues": {"q": after}}), encoding="utf-8")
    return ["apply", str(file)]


def apply_to_letters(broker: Broker, before: Options, after: Options, file: Path) -> list[str]:
    adopt(broker, before, after, file)
    return apply(broker, before, after, file)


def import_rabbitmq(broker: Broker, before: Options, after: Options, file: Path) -> list[str]:
    give(broker, "base", before)
    stored = QueueOptions.read("q", after)  # durations are ms, as there
    definition = {name.replace("_", "-"): stored[name] for name in after}
    policy = {"vhost": "/", "name": "p", "pattern": ".*", "apply-to": "queues", "priority": 5, "definition": definition}
    file.write_text(json.dumps({"policies": [policy]}), encoding="utf-8")
    return ["import", "rabbitmq", str(file)]


WAYS: dict[str, Callable[..., list[str]]] = {
    "policy set": set_policy,
    "operator-policy set": partial(set_policy, group="operator-policy"),
    "policy delete": delete_policy,
    "operator-policy delete": partial(delete_policy, group="operator-policy"),
    "queue update": update,
    "queue declare": adopt,
    "apply": apply,
    "apply to dead letters": apply_to_letters,
    "import": import_rabbitmq,
}


def possible(way: str, before: Options, after: Options) -> bool:
    if WAYS[way] is import_rabbitmq:
        return after.keys() <= OF_RABBITMQ
    return not before or WAYS[way] not in (adopt, apply_to_letters)


@pytest.mark.parametrize(
    "way, change", [(way, name) for name, change in CHANGES.items() for way in WAYS if possible(way, *change[:2])]
)
def test_a_change_that_ends_what_waits_is_asked_for_whatever_the_way(
    run: Run, broker: Broker, tmp_path: Path, way: str, change: str
) -> None:
    before, after, loss = CHANGES[change]
    broker.declare_queue("q").enqueue_many([b"x"] * 4)
    words = WAYS[way](broker, before, after, tmp_path / "file.json")
    queue = broker.queue("q")
    state = (queue.options(), queue.stats().depth, broker.policies(), broker.policies(operator=True))

    asked = run(*words)

    if not loss:
        assert (asked.exit_code, "would" in asked.stderr) == (0, False)
        return
    code = 3 if way == "queue declare" else 2  # which refuses, and names the command that asks
    assert (asked.exit_code, loss in asked.stderr.replace(" in 1 queue ", " ")) == (code, True), asked.stderr
    assert (queue.options(), queue.stats().depth, broker.policies(), broker.policies(operator=True)) == state
    if code == 2:
        assert loss in run(*words, "--dry-run").stdout.replace(" in 1 queue ", " ")
        assert run(*words, "--yes").exit_code == 0


def test_the_losses_of_several_queues_are_summed_and_the_first_end_named(run: Run, broker: Broker) -> None:
    for name, count in (("a.1", 100), ("a.2", 120), ("a.3", 0), ("b", 7)):
        broker.declare_queue(name).enqueue_many([b"x"] * count)
    broker.queue("a.2").update(expires="2s")
    broker.queue("a.1").receive()

    asked = run("policy", "set", "e", "#", "--expires", "3s")
    counted = json.loads(run("policy", "set", "e", "a.*", "--expires", "1s", "--dry-run", "--json").stdout)

    assert "rqttl: 107 messages in 2 queues would end after 3s without a consumer\n" in asked.stderr
    assert (counted["ending"], counted["ending_queues"], counted["ends_after_ms"]) == (220, 2, 1000)
    assert broker.queue("a.1").preview_update(expires="1m")[4:] == (100, 60_000)


def test_the_plan_names_the_existing_queues_that_its_policies_change(run: Run, broker: Broker, file: str) -> None:
    for name in ("orders", "old", "elsewhere"):
        broker.declare_queue(name)
    broker.queue("elsewhere").update(max_deliveries=3)
    lines = "policies change 1 existing queue:\n  old\n"

    assert lines in run("apply", file, "--dry-run").stdout
    assert json.loads(run("apply", file, "--dry-run", "--json").stdout)["changed"] == ["old"]
    assert lines in run("apply", file, "--yes").stdout
    assert "policies change" not in run("apply", file, "--yes").stdout


def test_unnamed_objects_stay_without_prune(run: Run, broker: Broker, file: str) -> None:
    broker.declare_queue("old")
    broker.set_policy("old", "none.#", {"lease": "1m"})

    kept = run("apply", file)

    assert kept.stderr == "rqttl: not named by the file: policy old, queue old; --prune deletes them\n"
    assert "old" in broker.queues()
    asked = run("apply", file, "--prune")
    assert (asked.exit_code, "rqttl: 1 queue would be deleted\n" in asked.stderr) == (2, True)
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
    "a bad namespace": "rqttl: 1\nnamespace: 'a b'",
    "a bad pattern": "rqttl: 1\npolicies: {p: {pattern: 'a*', definition: {lease: 1m}}}",
    "a bad filter": "rqttl: 1\nqueues: {a: {}, t: {bindings: {a: {size: {above: 5}}}}}",
    "a tag": "rqttl: 1\nqueues: !!python/object:os.system {}",
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


UNIT = Path(__file__).parents[1] / "unit" / "imports"
CLUSTER = str(UNIT / "fixtures" / "rabbitmq_cluster.json")
FILES = {
    "rabbitmq": [CLUSTER, str(UNIT / "fixtures" / "rabbitmq_vhost.json")],
    "servicebus": [str(UNIT / "fixtures" / "servicebus_template.json"), str(UNIT / "fixtures" / "servicebus_az.json")],
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
    assert [policy.name for policy in tenant.policies(operator=True)] == ["small-messages"]
    assert tenant.queue("orders").options()["max_deliveries"] == 11


def test_an_imported_exchange_gives_messages_to_its_queues(run: Run, client: redis.Redis) -> None:
    assert run("import", "rabbitmq", CLUSTER, "--yes").exit_code == 0
    broker = Broker(client)

    events = broker.topic("events")
    assert set(events.bindings()) == {"orders", "invoices", "dead"}
    for subject in ("order.created", "invoice.created", "other"):
        events.enqueue(subject.encode(), subject=subject)
    broker.topic("by-header").enqueue(b"a report", headers={"format": "pdf"})

    names = ("orders", "invoices", "graveyard", "reports")
    found = [[message.body for message in broker.queue(name).peek()] for name in names]
    assert found == [[b"order.created"], [b"invoice.created"], [b"other"], [b"a report"]]


def test_one_vhost_goes_into_a_chosen_namespace(run: Run, client: redis.Redis) -> None:
    run("--namespace", "shop", "import", "rabbitmq", CLUSTER, "--only", "/tenant one", "--yes")

    assert Broker(client, "shop").queues() == ["orders"]
    assert Broker(client, "tenant-one").queues() == []


def test_a_namespace_for_several_vhosts_is_wrong_usage(run: Run, client: redis.Redis) -> None:
    line = failed(run("--namespace", "shop", "import", "rabbitmq", CLUSTER, "--yes"), 2)

    assert "--only" in line
    unknown = failed(run("import", "rabbitmq", CLUSTER, "--only", "none"), 2)
    assert "the file has no 'none': it has '/', '/tenant one'" in unknown
    assert everything(client) == {}


def test_reasons_come_once_and_each_setting_with_verbose(run: Run) -> None:
    queues = [{"vhost": "/", "name": name, "arguments": {"x-max-priority": 9}} for name in "abc"]
    file = json.dumps({"queues": queues}).encode()
    short = run("import", "rabbitmq", "-", "--dry-run", stdin=file).stdout
    long = run("import", "rabbitmq", "-", "--dry-run", "-v", stdin=file).stdout

    assert (short.count("rqttl has no priorities"), long.count("rqttl has no priorities")) == (1, 3)
    assert "-v lists each" in short.splitlines()[0]
    assert "queue 'a'" not in short
    assert "queue 'a'" in long
