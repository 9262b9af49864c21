"""`rqttl queue ls` and `show`: which queues, in which order, their totals; and all that is known of one."""

import json
from collections.abc import Callable

import pytest
import redis

from rqttl import Broker, Message
from rqttl.cli.common.params import flag, to_json
from rqttl.options import OPTIONS
from rqttl.protocol.keys import Keyspace
from rqttl.protocol.roles import rules
from tests.cli.conftest import Run, check_golden
from tests.contract.clocked import Clocked
from tests.half_done import on_the_way
from tests.lua.states import everything

NO_QUEUE = "rqttl: no queue yet: `rqttl queue declare QUEUE` creates one\n"


def three(clocked: Clocked) -> None:
    """Three queues of which each is the first in another respect."""
    clocked.declare_queue("mails", dead_letter="mails/dead").enqueue_many([Message(b"gone", ttl="10ms"), b"old"])
    clocked.advance(184_000)
    clocked.queue("mails").sweep()
    orders = clocked.declare_queue("orders")
    orders.enqueue_many([b"x"] * 1234)
    first, *_ = orders.receive_many(3)
    first.nack("1h")
    clocked.declare_queue("pictures").enqueue_many([b"x" * 1_000_000] * 2)
    clocked.declare_queue("empty")
    clocked.advance(1_000)


def test_no_queue_is_an_empty_answer_and_a_note(run: Run) -> None:
    result = run("queue", "ls")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", NO_QUEUE)

    assert run("queue", "ls", "x*", "[y]").stderr == "rqttl: no queue matches x* or [y]\n"
    assert run("queue", "ls", "x*", "-q").stdout == ""
    assert run("queue", "ls", "--json").stdout == "[]\n"


def test_ls_lists_what_each_queue_holds_and_the_totals(run_clocked: Run, clocked: Clocked) -> None:
    three(clocked)

    result = run_clocked("queue", "ls")

    assert (result.exit_code, result.stderr) == (0, "")
    check_golden("queue-ls.txt", result.stdout)
    check_golden("queue-ls.json", run_clocked("queue", "ls", "m*", "empty", "--json").stdout)


def test_names_alone_are_for_shell_loops(run: Run, broker: Broker) -> None:
    broker.declare_queue("b")
    broker.declare_queue("a")

    assert run("queue", "ls", "-q").stdout == "a\nb\n"
    assert run("queue", "ls", "-q", "--json").stdout == '[{"queue": "a"}, {"queue": "b"}]\n'


def test_a_damaged_queue_is_named_with_its_key(run: Run, broker: Broker, client: redis.Redis) -> None:
    broker.declare_queue("bad")
    client.set("rqttl:{bad}:log", "not ours")
    line = (
        "rqttl: queue 'bad' cannot be read: the key rqttl:{bad}:log has another type than rqttl gave it: "
        "look at it, then rename or delete it [damaged]\n"
    )

    for words in (["queue", "ls"], ["stats"], ["stats", "--json"]):
        assert (run(*words).exit_code, run(*words).stderr) == (3, line)

    broker.declare_queue("good")
    result = run("queue", "ls")
    assert "good" in result.stdout
    assert "queue 'bad' cannot be read now: the key rqttl:{bad}:log has another type" in result.stderr


LOOKS = (
    ("queue", "ls"),
    ("queue", "show", "orders"),
    ("stats",),
    ("stats", "--watch", "--count", "1"),
    ("doctor",),
    ("doctor", "orders"),
)


@pytest.mark.parametrize("words", LOOKS, ids=" ".join)
def test_a_user_who_may_only_read_can_look(
    run: Run, broker: Broker, client: redis.Redis, url_of_user: Callable[..., str], words: tuple[str, ...]
) -> None:
    broker.declare_queue("orders").enqueue(b"x")
    before = everything(client)

    result = run("--url", url_of_user(*rules(["reader"], Keyspace(), redis="6.2")[0]), *words)

    assert result.exit_code == 0, result.output
    assert ("1 sound queue" if "doctor" in words else "orders") in result.stdout
    assert everything(client) == before


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
    first, second, third, fourth, _ = queue.receive_many(5)
    first.reject("no such item")
    second.nack("5m")
    third.ack()
    fourth.renew("90s")
    clocked.advance(500)


@pytest.mark.usefixtures("orders")
def test_show_tells_all_of_a_queue(run_clocked: Run) -> None:
    result = run_clocked("queue", "show", "orders", "--utc")

    assert (result.exit_code, result.stderr) == (0, "")
    check_golden("queue-show-utc.txt", result.stdout)


@pytest.mark.usefixtures("orders")
def test_show_can_answer_in_json(run_clocked: Run, clocked: Clocked) -> None:
    result = run_clocked("queue", "show", "orders", "--json")

    answer = json.loads(result.stdout)
    assert answer.pop("options") == to_json(clocked.queue("orders").options())
    check_golden("queue-show.json", json.dumps(answer) + "\n")


def test_show_can_print_the_options_at_their_defaults_too(run: Run, broker: Broker) -> None:
    broker.declare_queue("orders", lease="1m", dead_letter_expired="")

    lines = run("queue", "show", "orders", "--all").stdout.splitlines()[-len(OPTIONS) :]

    defaults = dict(line.split(maxsplit=1) for line in lines)
    assert list(defaults) == [flag(name) for name in OPTIONS]
    assert (defaults["--lease"], defaults["--dead-letter-expired"]) == ("1m", "(drop)")
    assert (defaults["--max-ttl"], defaults["--overflow"]) == ("(none)", "drop-head (default)")


@pytest.mark.parametrize("words", [("ls",), ("show", "orders")], ids=" ".join)
def test_a_look_says_when_nobody_sweeps_and_changes_nothing(
    run_clocked: Run, clocked: Clocked, client: redis.Redis, words: tuple[str, ...]
) -> None:
    clocked.declare_queue("orders").enqueue(b"x", ttl="1s")
    clocked.advance(187_000)
    before = everything(client)

    result = run_clocked("queue", *words)

    assert ("overdue    the oldest due work waits 3m 6s\n" in result.stdout) == (words[0] == "show")
    assert result.stderr == "rqttl: no reaper runs: oldest due work waits 3m 6s (`rqttl reaper` does it)\n"
    assert everything(client) == before
    clocked.queue("orders").sweep()
    assert run_clocked("queue", *words).stderr == ""


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
    broker.set_policy("cap", "#", {"max_deliveries": 7}, operator=True)

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


def test_letters_on_the_way_to_other_slots_are_told_by_target(
    client: redis.Redis, clocked: Clocked, run_clocked: Run
) -> None:
    clocked.declare_queue("idle")
    with on_the_way(client, 1200):
        assert "on their way  1,200 dead letters to dead\n" in run_clocked("queue", "show", "orders").stdout
        assert json.loads(run_clocked("queue", "show", "orders", "--json").stdout)["outgoing"] == {"dead": 1200}
        title, _, idle, orders, *_, total = run_clocked("stats").stdout.splitlines()
        at = title.index("outgoing")
        assert [line[at : at + 8].strip() for line in (idle, orders, total)] == ["0", "1,200", "1,200"]
    assert "outgoing" not in run_clocked("stats", "idle").stdout
