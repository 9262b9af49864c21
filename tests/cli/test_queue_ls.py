"""`rqttl queue ls`: which queues, in which order, and their totals."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import redis
from click.testing import CliRunner

from rqttl import Broker, Message
from rqttl.cli import cli
from tests.cli import golden
from tests.cli.conftest import Run
from tests.cli.processes import command
from tests.contract.clocked import Clocked
from tests.lua.states import everything
from tests.servers import Server

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


def names(run: Run, *words: str) -> list[str]:
    result = run("queue", "ls", *words, "--quiet")
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout.splitlines()


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
    golden.check("queue-ls.txt", result.stdout)


def test_ls_can_answer_in_json(run_clocked: Run, clocked: Clocked) -> None:
    three(clocked)

    golden.check("queue-ls.json", run_clocked("queue", "ls", "m*", "empty", "--json").stdout)


def test_a_single_queue_has_no_totals(run: Run, broker: Broker) -> None:
    broker.declare_queue("orders")

    assert "1 queue" not in run("queue", "ls").stdout


@pytest.mark.parametrize(
    "key, order",
    [
        ("name", ["empty", "mails", "mails/dead", "orders", "pictures"]),
        ("depth", ["orders", "pictures", "mails", "mails/dead", "empty"]),
        ("age", ["mails", "mails/dead", "orders", "pictures", "empty"]),
        ("bytes", ["pictures", "orders", "mails/dead", "mails", "empty"]),
        ("dead", ["mails", "empty", "mails/dead", "orders", "pictures"]),
    ],
)
def test_ls_sorts_with_the_largest_first_and_equal_ones_by_name(
    run_clocked: Run, clocked: Clocked, key: str, order: list[str]
) -> None:
    three(clocked)

    assert names(run_clocked, "--sort", key) == order
    assert names(run_clocked, "--sort", key, "--reverse") == order[::-1]
    listed = json.loads(run_clocked("queue", "ls", "--sort", key, "--json").stdout)
    assert [one["queue"] for one in listed] == order
    table = run_clocked("queue", "ls", "--sort", key).stdout.splitlines()
    assert [line.split()[0] for line in table[2:-1]] == order


def test_ls_takes_patterns(run: Run, broker: Broker) -> None:
    for name in ("orders", "orders/dead", "mails", "Orders"):
        broker.declare_queue(name)

    assert names(run, "orders*") == ["orders", "orders/dead"]
    assert names(run, "[mo]?????") == ["orders"]
    assert names(run, "mail?", "orders", "*s") == ["Orders", "mails", "orders"]


def test_names_alone_are_for_shell_loops(run: Run, broker: Broker) -> None:
    broker.declare_queue("b")
    broker.declare_queue("a")

    assert run("queue", "ls", "-q").stdout == "a\nb\n"
    assert run("queue", "ls", "-q", "--json").stdout == '[{"queue": "a"}, {"queue": "b"}]\n'


def test_many_queues_are_listed_as_few_are(run: Run, broker: Broker) -> None:
    for i in range(199):
        broker.declare_queue(f"q{i:03}")
    broker.queue("q007").enqueue_many([b"x" * 100] * 1234)
    few = run("queue", "ls").stdout.splitlines()
    for i in range(199, 230):
        broker.declare_queue(f"q{i:03}")
    many = run("queue", "ls").stdout.splitlines()

    def without_age(line: str) -> list[str]:
        return line.split()[:6]

    # the columns stand where they stood; only the totals name more queues
    assert [line.rstrip() for line in few[:9]] == [line.rstrip() for line in many[:9]]
    assert without_age(few[-1])[2:] == without_age(many[-1])[2:]
    assert (len(few), len(many)) == (199 + 3, 230 + 3)


def test_ls_in_another_namespace_lists_other_queues(run: Run, broker: Broker) -> None:
    broker.declare_queue("orders")
    run("--namespace", "other", "queue", "declare", "mails")

    assert "orders" in run("queue", "ls").stdout
    assert "orders" not in run("queue", "ls", "--namespace", "other").stdout


@pytest.mark.slow
def test_closed_streams_are_no_bug(redis_url: str) -> None:
    words = " ".join(map(shlex.quote, command("queue", "ls", "--url", redis_url)))

    done = subprocess.run(["sh", "-c", f"{words} <&- >&-"], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, NO_QUEUE)


def test_one_damaged_queue_hides_no_other(run: Run, broker: Broker, client: redis.Redis) -> None:
    broker.declare_queue("orders").enqueue(b"x")
    broker.declare_queue("bad")
    client.set("rqttl:{bad}:log", "not ours")
    line = (
        "rqttl: queue 'bad' cannot be read: the key rqttl:{bad}:log has another type than rqttl gave it: "
        "look at it, then rename or delete it [damaged]\n"
    )

    for words in (["queue", "ls"], ["stats"]):
        result = run(*words)
        assert (result.exit_code, result.stderr) == (3, line)
        assert "orders" in result.stdout

    result = run("queue", "ls", "--json")
    assert result.exit_code == 3
    orders, bad = json.loads(result.stdout)
    assert (orders["queue"], orders["ready"]) == ("orders", 1)
    assert (bad["queue"], bad["error"]) == ("bad", "damaged")
    assert json.loads(run("stats", "--json").stdout)["queues"][1] == bad


def test_several_damaged_queues_are_all_named(run: Run, broker: Broker, client: redis.Redis) -> None:
    for name in ("a", "b"):
        broker.declare_queue(name)
        client.set(f"rqttl:{{{name}}}:log", "not ours")

    *lines, last = run("queue", "ls").stderr.splitlines()

    assert [line.split()[2] for line in lines] == ["'a'", "'b'"]
    assert last == "rqttl: 2 queues cannot be read; the lines above say why"


def test_ls_says_that_due_work_waits_and_changes_nothing(
    run_clocked: Run, clocked: Clocked, client: redis.Redis
) -> None:
    clocked.declare_queue("orders").enqueue(b"x", ttl="1s")
    clocked.advance(10_801_000)
    before = everything(client)

    result = run_clocked("queue", "ls")

    assert result.stderr == "rqttl: no reaper runs: oldest due work waits 3h (`rqttl reaper` does it)\n"
    assert everything(client) == before
    clocked.queue("orders").sweep()
    assert run_clocked("queue", "ls").stderr == ""


LOOKS = (
    ("queue", "ls"),
    ("queue", "show", "orders", "--sources"),
    ("stats",),
    ("stats", "--watch", "--count", "1"),
    ("doctor",),
    ("doctor", "orders"),
)


@pytest.mark.parametrize("words", LOOKS, ids=" ".join)
def test_a_user_who_may_only_read_can_look(
    broker: Broker, client: redis.Redis, server: Server, words: tuple[str, ...]
) -> None:
    broker.declare_queue("orders").enqueue(b"x")
    client.execute_command("ACL", "SETUSER", "monitor", "reset", "on", ">s", "~rqttl:*", *reading_rules())
    before = everything(client)
    try:
        result = CliRunner().invoke(cli, ["--url", f"unix://monitor:s@{server.socket}", *words])
    finally:
        client.execute_command("ACL", "DELUSER", "monitor")

    assert result.exit_code == 0, result.output
    assert ("1 sound queue" if "doctor" in words else "orders") in result.stdout
    assert everything(client) == before


def reading_rules() -> list[str]:
    """The commands that deploy/README.md gives to a user who may only look."""
    text = (Path(__file__).parents[2] / "deploy" / "README.md").read_text(encoding="utf-8")
    found = re.search(r"ACL SETUSER monitor (.*)", text)
    assert found is not None
    return [word for word in found[1].split() if word.startswith("+")]
