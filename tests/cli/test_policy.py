"""`rqttl policy` and `rqttl operator-policy`: set, ls, show, delete; questions, dry runs, warnings, JSON."""

import json
from collections.abc import Callable

import pytest
import redis

from rqttl import Broker
from tests.cli.conftest import Run, check_golden
from tests.cli.test_errors import failed
from tests.contract.clocked import Clocked
from tests.lua.states import everything


@pytest.fixture
def queues(clocked: Clocked) -> Clocked:
    """Three queues with messages, and policies of both kinds."""
    for name in ("orders.eu", "orders.us", "mails"):
        clocked.declare_queue(name, max_length=50).enqueue_many([b"x"] * 7)
    clocked.set_policy("base", "#", {"message_ttl": "1h", "lease": "2m"}, priority=-5)
    clocked.set_policy("orders", "orders.*", {"max_deliveries": 9, "dead_letter": None})
    clocked.set_policy("cap", "^o", {"max_length_bytes": 1_000_000}, syntax="regex", operator=True)
    clocked.advance("10m")
    return clocked


@pytest.mark.usefixtures("queues")
@pytest.mark.parametrize(
    "words, file",
    [
        (["policy", "ls"], "policy-ls.txt"),
        (["policy", "ls", "--json"], "policy-ls.json"),
        (["operator-policy", "ls"], "operator-policy-ls.txt"),
        (["policy", "show", "base"], "policy-show.txt"),
        (
            ["policy", "set", "short", "orders.#", "--message-ttl", "5m", "--max-length", "3", "--dry-run"],
            "policy-set-dry-run.txt",
        ),
        (
            ["policy", "set", "short", "orders.#", "--message-ttl", "5m", "--max-length", "3", "--dry-run", "--json"],
            "policy-set-dry-run.json",
        ),
        (["policy", "set", "more", "orders.#", "--lease", "1m", "--none", "message-ttl"], "policy-set.txt"),
        (["explain", "orders.eu", "--ttl", "5s"], "explain.txt"),
        (["explain", "orders.eu", "--json"], "explain.json"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_an_answer_is_always_the_same(run_clocked: Run, words: list[str], file: str) -> None:
    result = run_clocked(*words)

    assert result.exit_code == 0, result.stderr
    check_golden(file, result.stdout)


def test_a_dry_run_changes_nothing(queues: Clocked, run_clocked: Run, client: redis.Redis) -> None:
    before = everything(client)

    for words in (["set", "short", "#", "--message-ttl", "5m"], ["delete", "base"]):
        assert run_clocked("policy", *words, "--dry-run").exit_code == 0

    assert everything(client) == before
    assert queues.queue("mails").options()["message_ttl"] == 3_600_000


def test_deaths_are_counted_and_asked_for(queues: Clocked, run_clocked: Run, client: redis.Redis) -> None:
    before = everything(client)

    result = run_clocked("policy", "set", "short", "orders.#", "--message-ttl", "5m")

    assert result.exit_code == 2
    assert "14 messages would expire" in result.stderr
    assert "--yes" in result.stderr
    assert everything(client) == before
    done = run_clocked("policy", "set", "short", "orders.#", "--message-ttl", "5m", "--yes")
    assert "14 messages expired" in done.stdout
    assert queues.queue("orders.eu").stats().ready == 0


def test_options_come_from_flags_and_a_change_without_deaths_asks_nothing(run: Run, broker: Broker) -> None:
    words = ["--message-ttl", "5m", "--max-length", "5", "--none", "overflow", "--priority", "3", "--regex"]

    assert run("policy", "set", "p", "^o", *words).exit_code == 0

    [policy] = broker.policies()
    assert dict(policy.definition) == {"message_ttl": 300_000, "max_length": 5, "overflow": None}
    assert (policy.priority, policy.syntax) == (3, "regex")
    assert run("policy", "delete", "p").exit_code == 0


WARNINGS = [
    (["set", "p", "nothing.*", "--lease", "1m"], "no queue"),
    (["set", "p", "orders", "--dead-letter", "orders"], "orders"),
    (["set", "p", "dead", "--message-ttl", "1h"], "dead"),
    (["set", "q", "orders", "--lease", "5m"], "same"),
]


@pytest.mark.parametrize("words, named", WARNINGS)
def test_a_strange_policy_is_set_with_a_warning(run: Run, broker: Broker, words: list[str], named: str) -> None:
    broker.declare_queue("orders", dead_letter="dead")
    broker.declare_queue("dead")
    broker.set_policy("same", "orders", {"lease": "5m"})

    result = run("policy", *words)

    assert result.exit_code == 0
    [line] = result.stderr.splitlines()
    assert line.startswith("rqttl: warning: ")
    assert named in line
    warnings = json.loads(run("policy", *words, "--json").stdout)["warnings"]
    assert [f"rqttl: warning: {warning}" for warning in warnings] == [line]


def test_a_missing_policy_is_named_with_a_similar_one(run: Run, broker: Broker) -> None:
    broker.set_policy("short-lived", "#", {"lease": "1m"})

    for command in ("show", "delete"):
        line = failed(run("policy", command, "short-livd"), 3)
        assert "did you mean short-lived?" in line
        assert "[policy_not_found]" in line


BAD = [
    ["p", "#"],
    ["p", "(", "--regex", "--lease", "1m"],
    ["p", "#", "--lease", "60"],
    ["p", "#", "--none", "frobnicate"],
    ["p", "#", "--none", "message-ttl", "--message-ttl", "5m"],
    ["p", "#", "--lease", "1m", "--priority", "9999999"],
]


@pytest.mark.parametrize("words", BAD, ids=" ".join)
def test_a_bad_policy_changes_nothing(run: Run, broker: Broker, client: redis.Redis, words: list[str]) -> None:
    broker.declare_queue("orders").enqueue(b"x")
    broker.set_policy("p", "other", {"max_length": 7})
    before = everything(client)

    failed(run("policy", "set", *words, "--yes"), 2)

    assert everything(client) == before


@pytest.mark.spec("POL-19")
def test_a_user_who_may_change_no_queue_reads_that_a_reaper_does_it(
    run: Run, broker: Broker, client: redis.Redis, url_of_user: Callable[..., str]
) -> None:
    broker.declare_queue("orders")
    reads = ["+@connection", "+time", "+smembers", "+sscan", "+hget", "+hgetall", "+hmget"]
    rules = ["~rqttl:policies{rqttl}", "%R~rqttl:*", *reads, "+evalsha", "+script|load", "+hset", "+hdel"]

    result = run("policy", "set", "p", "#", "--lease", "1m", "--url", url_of_user(*rules))

    assert (result.exit_code, result.stdout) == (0, "policy p set: no queue has changed yet\n")
    assert result.stderr == "rqttl: this user may not change 1 queue: a reaper does it\n"
    broker.reconcile()
    assert broker.queue("orders").options()["lease"] == 60_000


def test_a_policy_that_cannot_be_read_is_named_with_the_remedy(run: Run, broker: Broker, client: redis.Redis) -> None:
    client.hset("rqttl:policies{rqttl}", mapping={"version": 3, "policy broken": "{"})

    listed = run("policy", "ls")
    damage = "the field 'policy broken' of the stored policies cannot be read: policy 'broken': expected JSON, got '{'"
    assert (listed.exit_code, listed.stderr.startswith(f"rqttl: {damage}")) == (3, True)
    assert listed.stderr.endswith(": look at it, then HDEL it [damaged]\n")
    for words in (["policy", "set", "other", "#", "--max-length", "3", "--yes"], ["export"]):
        assert (run(*words).exit_code, "'policy broken'" in run(*words).stderr) == (3, True)

    client.hdel("rqttl:policies{rqttl}", "policy broken")
    assert run("policy", "set", "other", "#", "--max-length", "3", "--yes").exit_code == 0


def test_a_missing_queue_is_explained_by_its_name(run: Run, broker: Broker) -> None:
    broker.set_policy("short", "orders.#", {"message_ttl": "5m"})

    result = run("explain", "orders.eu", "--ttl", "1h")

    assert (result.exit_code, result.stderr) == (0, "")
    first, *_, last = result.stdout.splitlines()
    assert first == "queue orders.eu: does not exist yet; by its name alone, with policy short"
    assert last.startswith("sent now, the message expires at 20")
    assert json.loads(run("explain", "orders.eu", "--json").stdout)["exists"] is False
