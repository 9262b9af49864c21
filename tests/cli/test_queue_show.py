"""`rqttl queue show`: all that is known of one queue."""

from __future__ import annotations

import json

import pytest

from rqttl import Broker, Message
from rqttl.cli.common.option_text import flag, to_json
from rqttl.options import OPTIONS
from rqttl.store.driver import driver_of
from tests.cli import golden
from tests.cli.conftest import Run
from tests.contract.clocked import Clocked


@pytest.fixture
def orders(clocked: Clocked) -> None:
    """A queue with something of everything, and others that dead-letter into it."""
    queue = clocked.declare_queue(
        "orders", dead_letter="dead", dead_letter_expired="", max_length=50_000, lease="1h", expires="2d"
    )
    clocked.declare_queue("mails", dead_letter_rejected="orders", dead_letter_expired="orders")
    clocked.declare_queue("bills", dead_letter="{queue}/dead")
    clocked.declare_queue("plain", dead_letter="orders")
    queue.enqueue_many([Message(b"gone", ttl="100ms"), *[b"x" * 1000] * 1234])
    clocked.advance(2_000)
    one, two, three, four = queue.receive_many(4)
    one.reject("no such item")
    two.nack("5m")
    three.ack()
    four.renew("90s")
    with_lease = queue.receive()
    assert with_lease is not None
    clocked.advance(500)


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize(
    "words, name",
    [([], "queue-show.txt"), (["--utc"], "queue-show-utc.txt"), (["--sources"], "queue-show-sources.txt")],
)
def test_show_tells_all_of_a_queue(run_clocked: Run, words: list[str], name: str) -> None:
    result = run_clocked("queue", "show", "orders", *words)

    assert (result.exit_code, result.stderr) == (0, "")
    golden.check(name, result.stdout)


@pytest.mark.usefixtures("orders")
def test_show_can_answer_in_json(run_clocked: Run, clocked: Clocked) -> None:
    result = run_clocked("queue", "show", "orders", "--sources", "--json")

    answer = json.loads(result.stdout)
    assert answer.pop("options") == to_json(clocked.queue("orders").options())
    golden.check("queue-show.json", json.dumps(answer, indent=2) + "\n")
    without = json.loads(run_clocked("queue", "show", "orders", "--json").stdout)
    assert answer.keys() ^ without.keys() == {"dead_letters_come_from", "options"}


def test_show_can_print_the_options_at_their_defaults_too(run: Run, broker: Broker) -> None:
    broker.declare_queue("orders", lease="1m", dead_letter_expired="")

    lines = run("queue", "show", "orders", "--all").stdout.splitlines()[-len(OPTIONS) :]

    defaults = dict(line.split(maxsplit=1) for line in lines)
    assert list(defaults) == [flag(name) for name in OPTIONS]
    assert (defaults["--lease"], defaults["--dead-letter-expired"]) == ("1m", "(drop)")
    assert (defaults["--max-ttl"], defaults["--overflow"]) == ("(none)", "drop-head (default)")


def test_show_says_when_nobody_sweeps(run_clocked: Run, clocked: Clocked) -> None:
    clocked.declare_queue("orders").enqueue(b"x", ttl="1s")
    clocked.advance(187_000)

    result = run_clocked("queue", "show", "orders")

    assert "overdue    the oldest due work waits 3m 6s" in result.stdout.splitlines()
    assert result.stderr == "rqttl: no reaper runs: oldest due work waits 3m 6s (`rqttl reaper` does it)\n"
    clocked.queue("orders").sweep()
    swept = run_clocked("queue", "show", "orders")
    assert ("overdue" in swept.stdout, swept.stderr) == (False, "")


def test_show_of_a_plain_queue_says_that_all_is_default(run: Run, broker: Broker) -> None:
    broker.declare_queue("orders")

    assert run("queue", "show", "orders").stdout.splitlines()[-1].split(maxsplit=1) == [
        "options",
        "all at their defaults",
    ]


def test_a_queue_into_which_no_other_dead_letters_says_so(run: Run, broker: Broker) -> None:
    broker.declare_queue("orders", dead_letter="dead")

    assert "(no queue)" in run("queue", "show", "orders", "--sources").stdout
    answer = json.loads(run("queue", "show", "orders", "--sources", "--json").stdout)
    assert answer["dead_letters_come_from"] == {}


def test_dead_letters_that_went_in_a_circle_are_counted(run: Run, broker: Broker) -> None:
    broker.declare_queue("a", dead_letter="b", message_ttl=0)
    broker.declare_queue("b", dead_letter="a", message_ttl=0)
    broker.queue("a").enqueue(b"x")
    broker.queue("b").sweep()

    printed = run("queue", "show", "a").stdout + run("queue", "show", "b").stdout

    assert [line.split() for line in printed.splitlines() if line.startswith("cycle")] == [
        ["cycle", "-", "1", "(dropped)"]
    ]


def test_options_name_their_sources_where_policies_match(run: Run, broker: Broker) -> None:
    broker.declare_queue("orders", lease="1h", max_length=50)
    broker.set_policy("short", "orders", {"message_ttl": "5m", "max_length": 100})
    broker.set_operator_policy("cap", "#", {"max_deliveries": 7})

    lines = run("queue", "show", "orders").stdout.splitlines()[-4:]
    assert {" ".join(line.split()) for line in lines} == {
        "--lease 1h (declared)",
        "--message-ttl 5m (policy short)",
        "--max-length 50 (declared)",
        "--max-deliveries 7 (operator policy cap)",
    }
    answer = json.loads(run("queue", "show", "orders", "--json").stdout)["option_sources"]
    sources = {entry["option"]: entry["source"] for entry in answer}
    assert (sources["message_ttl_ms"], sources["overflow"]) == ("policy short", "default")


def test_a_queue_is_shown_where_policies_are_damaged(run: Run, broker: Broker) -> None:
    broker.declare_queue("orders", max_length=50)
    driver_of(broker).store.client.hset("rqttl:policies", mapping={"version": 1, "policy x": "{"})

    result = run("queue", "show", "orders")

    assert result.exit_code == 0
    assert "--max-length  50" in result.stdout
    assert "the field 'policy x' of the stored policies cannot be read" in result.stderr
