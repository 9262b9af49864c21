"""`rqttl queue`: declare, list, show."""

from __future__ import annotations

import json
import shlex
import subprocess

import pytest

from rqttl import Broker
from rqttl.cli.queue_options import flag, shown
from rqttl.options import OPTIONS
from tests.cli.conftest import Run
from tests.cli.processes import command

GIVEN = {
    "message_ttl": ("60s", 60_000),
    "default_ttl": ("30s", 30_000),
    "min_ttl": ("1500ms", 1_500),
    "max_ttl": ("20000", 20_000),
    "never_expire": (None, True),
    "max_length": ("10", 10),
    "max_length_bytes": ("1000", 1_000),
    "overflow": ("reject-publish", "reject-publish"),
    "dead_letter": ("dead.{queue}", "dead.{queue}"),
    "dead_letter_expired": ("expired", "expired"),
    "dead_letter_maxlen": ("", ""),
    "dead_letter_rejected": ("rejected", "rejected"),
    "dead_letter_delivery_limit": ("failed", "failed"),
    "lease": ("5m", 300_000),
    "max_deliveries": ("3", 3),
    "max_message_bytes": ("1024", 1_024),
}


def test_every_option_can_be_declared(run: Run, broker: Broker) -> None:
    flags = [
        word for name, (word, _) in GIVEN.items() for word in ([flag(name)] if word is None else [flag(name), word])
    ]

    result = run("queue", "declare", "orders", *flags)

    assert (result.exit_code, result.stdout, result.stderr) == (0, "queue orders is there\n", "")
    assert dict(broker.queue("orders").options()) == {name: value for name, (_, value) in GIVEN.items()}
    assert GIVEN.keys() == OPTIONS.keys()


def test_declaring_again_with_equal_options_changes_nothing(run: Run) -> None:
    assert [run("queue", "declare", "orders", "--message-ttl", ttl).exit_code for ttl in ("60s", "1m", "60000")] == [
        0
    ] * 3


def test_declare_can_answer_in_json(run: Run) -> None:
    answer = json.loads(run("queue", "declare", "orders", "--max-length", "5", "--json").stdout)

    assert answer["queue"] == "orders"
    assert (answer["options"]["max_length"], answer["options"]["lease"]) == (5, 30_000)


def test_no_queue_is_an_empty_answer_and_a_note(run: Run) -> None:
    result = run("queue", "ls")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "rqttl: no queue\n")

    assert run("queue", "ls", "x*").stderr == "rqttl: no queue matches x*\n"
    assert run("queue", "ls", "--json").stdout == "[]\n"


def test_ls_lists_what_each_queue_holds_and_the_totals(run: Run, broker: Broker) -> None:
    broker.declare_queue("orders").enqueue_many([b"x" * 1000] * 1234)
    broker.declare_queue("mails").enqueue_many([b"x"] * 3)
    broker.queue("mails").receive()

    lines = run("queue", "ls").stdout.splitlines()

    assert [line.split()[0] for line in lines if not line.startswith("─")] == ["queue", "mails", "orders", "2"]
    assert lines[0].split() == ["queue", "ready", "leased", "delayed", "bytes", "oldest", "dead"]
    assert lines[2].split()[1:4] == ["2", "1", "0"]
    assert lines[3].split()[1:6] == ["1,234", "0", "0", "1.2", "MB"]
    assert lines[-1].split()[:4] == ["2", "queues", "1,236", "1"]


@pytest.mark.slow
def test_closed_streams_are_no_bug(redis_url: str) -> None:
    words = " ".join(map(shlex.quote, command("queue", "ls", "--url", redis_url)))

    done = subprocess.run(["sh", "-c", f"{words} <&- >&-"], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "rqttl: no queue\n")


def test_ls_takes_a_pattern(run: Run, broker: Broker) -> None:
    for name in ("orders", "orders.dead", "mails", "Orders"):
        broker.declare_queue(name)

    def listed(pattern: str) -> list[str]:
        return [one["queue"] for one in json.loads(run("queue", "ls", pattern, "--json").stdout)]

    assert listed("orders*") == ["orders", "orders.dead"]
    assert listed("[mo]?????") == ["orders"]


def test_ls_in_another_namespace_lists_other_queues(run: Run, broker: Broker) -> None:
    broker.declare_queue("orders")
    run("--namespace", "other", "queue", "declare", "mails")

    assert "orders" in run("queue", "ls").stdout
    assert "orders" not in run("queue", "ls", "--namespace", "other").stdout


def test_show_tells_depth_deaths_targets_and_options(run: Run, broker: Broker) -> None:
    orders = broker.declare_queue("orders", dead_letter="dead", dead_letter_expired="", max_length=5, lease="1h")
    orders.enqueue(b"gone", ttl=0)
    orders.enqueue_many([b"a", b"b"])
    delivery = orders.receive()
    assert delivery is not None
    delivery.reject()

    lines = [line.split() for line in run("queue", "show", "orders").stdout.splitlines()]

    assert ["queue", "orders"] in lines
    assert ["ready", "1", "(1", "B)"] in lines
    assert ["expired", "1", "1", "(dropped)"] in lines
    assert ["rejected", "1", "0", "dead"] in lines
    assert ["--dead-letter", "dead"] in lines
    assert ["--dead-letter-expired", "(drop)"] in lines
    assert ["--max-length", "5"] in lines
    assert ["--lease", "1h"] in lines


def test_show_can_answer_in_json(run: Run, broker: Broker) -> None:
    broker.declare_queue("orders", dead_letter="dead.{queue}", dead_letter_maxlen="").enqueue(b"abc")

    answer = json.loads(run("queue", "show", "orders", "--json").stdout)

    assert (answer["queue"], answer["ready"], answer["ready_bytes"], answer["enqueued"]) == ("orders", 1, 3, 1)
    assert answer["oldest_ready_age_ms"] >= 0
    assert answer["dead_letters_go_to"]["expired"] == "dead.orders"
    assert answer["dead_letters_go_to"]["maxlen"] is None
    assert answer["options"]["dead_letter"] == "dead.{queue}"


def test_show_of_a_plain_queue_says_that_all_is_default(run: Run, broker: Broker) -> None:
    broker.declare_queue("orders")

    assert run("queue", "show", "orders").stdout.splitlines()[-1].split(maxsplit=1) == [
        "options",
        "all at their defaults",
    ]


@pytest.mark.parametrize(
    "name, value, text",
    [
        ("message_ttl", 90_000, "90s"),
        ("message_ttl", None, "-"),
        ("never_expire", True, "yes"),
        ("max_length", 12345, "12,345"),
        ("dead_letter_expired", "", "(drop)"),
        ("overflow", "drop-head", "drop-head"),
    ],
)
def test_values_are_shown_as_people_write_them(name: str, value: int | str | bool | None, text: str) -> None:
    assert shown(OPTIONS[name], value) == text
