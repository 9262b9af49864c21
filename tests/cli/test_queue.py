"""`rqttl queue`: declare, update, touch."""

from __future__ import annotations

import json

import click
import pytest
import redis

from rqttl import Broker, Queue
from rqttl.cli.common.option_text import flag, format_value, to_json
from rqttl.cli.queue.update import update
from rqttl.options import OPTIONS, Option
from tests.cli import golden
from tests.cli.conftest import Run
from tests.contract.clocked import Clocked, at


def sample(option: Option) -> tuple[list[str], float | str | bool]:
    """Words of a command line that give an option a value other than its default, and that value."""
    name = flag(option.name)
    if option.kind == "duration":
        return [name, "5m"], 300_000
    if option.kind == "count":
        return [name, "10"], 10
    if option.kind == "size":
        return [name, "10MB"], 10_000_000
    if option.kind == "number":
        return (["--redelivery-jitter", "0.5"], 0.5) if option.default == 0 else ([name, "1.5"], 1.5)
    if option.kind == "choice":
        return [name, option.choices[-1]], option.choices[-1]
    if option.kind == "target":
        return [name, "dead.{queue}"], "dead.{queue}"
    assert option.kind == "flag"
    return [name], True


ALL = [word for option in OPTIONS.values() for word in sample(option)[0]]
VALUES = {name: sample(option)[1] for name, option in OPTIONS.items()}


def test_every_option_can_be_declared(run: Run, broker: Broker) -> None:
    result = run("queue", "declare", "orders", *ALL)

    assert (result.exit_code, result.stdout, result.stderr) == (0, "queue orders created\n", "")
    assert dict(broker.queue("orders").options()) == VALUES


def test_declare_says_whether_it_created_the_queue(run_clocked: Run, clocked: Clocked) -> None:
    def declared(queue: str) -> list[object]:
        text, document = (run_clocked("queue", "declare", queue, *flags).stdout for flags in ((), ("--json",)))
        return [text, json.loads(document)["declared"]]

    clocked.declare_queue("source", dead_letter="dead").enqueue(b"x", ttl=0)

    assert declared("orders") == ["queue orders created\n", "existing"]
    assert declared("orders") == ["queue orders exists already, with these options\n", "existing"]
    assert declared("dead") == ["queue dead declared; a dead letter had created it\n", "existing"]
    assert clocked.declare_queue("new").declared == "created"
    assert clocked.queue("new").declared is None


def test_declaring_again_with_equal_options_changes_nothing(run: Run) -> None:
    assert [run("queue", "declare", "orders", "--message-ttl", ttl).exit_code for ttl in ("60s", "1m", "60000ms")] == [
        0
    ] * 3


def test_declare_can_answer_in_json(run: Run) -> None:
    answer = json.loads(run("queue", "declare", "orders", "--max-length", "5", "--json").stdout)

    assert answer["queue"] == "orders"
    assert (answer["options"]["max_length"], answer["options"]["lease_ms"]) == (5, 30_000)


def test_every_option_of_a_queue_is_a_flag_of_update() -> None:
    assert {flag(name) for name in OPTIONS} <= {word for one in update.params for word in one.opts}


def test_every_option_can_be_updated_and_unset(run: Run, broker: Broker) -> None:
    broker.declare_queue("orders")

    assert run("queue", "update", "orders", *ALL).exit_code == 0
    assert dict(broker.queue("orders").options()) == VALUES

    unset = [word for name in OPTIONS for word in ("--unset", name)]
    assert run("queue", "update", "orders", *unset).exit_code == 0
    assert broker.queue("orders").options().non_default == {}


UPDATE = (
    "queue",
    "update",
    "orders",
    "--message-ttl",
    "5m",
    "--max-deliveries",
    "3",
    "--no-never-expire",
    "--dead-letter-expired",
    "",
    "--unset",
    "max_length",
    "--unset",
    "min-ttl",
)


def prepared(clocked: Clocked) -> None:
    clocked.declare_queue(
        "orders",
        message_ttl="1h",
        max_deliveries=3,
        never_expire=True,
        max_length=12345,
        lease="1m",
        dead_letter="dead",
    )


def test_update_says_what_has_changed_and_what_was_so_before(run_clocked: Run, clocked: Clocked) -> None:
    prepared(clocked)

    result = run_clocked(*UPDATE)

    assert (result.exit_code, result.stderr) == (0, "")
    golden.check("queue-update.txt", result.stdout)
    assert clocked.queue("orders").options().non_default == {
        "message_ttl": 300_000,
        "max_deliveries": 3,
        "lease": 60_000,
        "dead_letter": "dead",
        "dead_letter_expired": "",
    }


def test_update_can_answer_in_json(run_clocked: Run, clocked: Clocked) -> None:
    prepared(clocked)

    before = clocked.queue("orders").options()

    answer = json.loads(run_clocked(*UPDATE, "--json").stdout)

    assert answer.pop("before") == to_json(before)
    assert answer.pop("after") == to_json(clocked.queue("orders").options())
    golden.check("queue-update.json", json.dumps(answer) + "\n")


def test_a_dry_run_of_update_shows_the_difference_and_changes_nothing(run_clocked: Run, clocked: Clocked) -> None:
    prepared(clocked)
    before = clocked.queue("orders").options()

    text, answer = run_clocked(*UPDATE, "--dry-run"), run_clocked(*UPDATE, "--dry-run", "--json")

    golden.check("queue-update-dry-run.txt", text.stdout)
    assert clocked.queue("orders").options() == before
    line, done = json.loads(answer.stdout), json.loads(run_clocked(*UPDATE, "--json").stdout)
    assert (line.pop("dry_run"), done.pop("dry_run")) == (True, False)
    assert line == done


def test_an_update_that_changes_nothing_says_so(run: Run, broker: Broker) -> None:
    broker.declare_queue("orders", lease="1m")

    result = run("queue", "update", "orders", "--lease", "60s")

    assert result.stdout == "queue orders: nothing changed\n--lease  1m, as before\n"


def waiting_letters(clocked: Clocked) -> Queue:
    """Ten messages, the first six 2 s old."""
    queue = clocked.declare_queue("orders", dead_letter="dead", dead_letter_maxlen="")
    queue.enqueue_many([b"x"] * 6)
    clocked.advance(2_000)
    queue.enqueue_many([b"y"] * 4)
    return queue


DEADLY = ("queue", "update", "orders", "--message-ttl", "1s", "--max-length", "3")


def test_an_update_counts_the_messages_that_die_by_it(run_clocked: Run, clocked: Clocked) -> None:
    queue = waiting_letters(clocked)

    dry, done = run_clocked(*DEADLY, "--dry-run"), run_clocked(*DEADLY, "--yes")

    assert (dry.stderr, done.stderr) == ("", "")
    golden.check("queue-update-deaths-dry-run.txt", dry.stdout)
    golden.check("queue-update-deaths.txt", done.stdout)
    stats = queue.stats()
    assert (stats.ready, stats.deaths["expired"], stats.deaths["maxlen"]) == (3, 6, 1)


def test_an_update_tells_programs_its_counts(run_clocked: Run, clocked: Clocked) -> None:
    waiting_letters(clocked)

    for extra in ("--dry-run", "--yes"):
        answer = json.loads(run_clocked(*DEADLY, extra, "--json").stdout)

        assert (answer["expired"], answer["trimmed"]) == (6, 1)


def test_an_update_that_nobody_agreed_to_lets_no_message_die(run_clocked: Run, clocked: Clocked) -> None:
    queue = waiting_letters(clocked)
    before = queue.options()

    result = run_clocked(*DEADLY)

    assert (result.exit_code, result.stdout) == (2, "")
    golden.check("queue-update-unanswered.txt", result.stderr.replace("`cli", "`rqttl"))
    assert (queue.options(), queue.stats().ready) == (before, 10)


def test_an_update_that_lets_no_message_die_asks_nothing(run_clocked: Run, clocked: Clocked) -> None:
    waiting_letters(clocked)

    result = run_clocked("queue", "update", "orders", "--message-ttl", "1h", "--max-length", "10")

    assert (result.exit_code, result.stderr) == (0, "")


@pytest.mark.parametrize(
    "words, line",
    [
        ([], "nothing to change: give an option, or --unset OPTION"),
        (["--lease", "1m", "--unset", "lease"], "--lease is given a value and unset"),
        (
            ["--unset", "mesage-ttl"],
            "invalid value for '--unset': no queue option is called 'mesage-ttl'; did you mean --unset message-ttl?",
        ),
        (["--unset", "xyz"], "invalid value for '--unset': no queue option is called 'xyz'"),
        (
            ["--overflow", "xyz"],
            "invalid value for '--overflow': 'xyz' is not one of 'drop-head', 'reject-publish', 'reject-publish-dlx'",
        ),
        (["--max-length", "many"], "invalid value for '--max-length': 'many' is not a valid integer"),
    ],
)
def test_a_wrong_update_is_one_line(run: Run, broker: Broker, words: list[str], line: str) -> None:
    broker.declare_queue("orders", lease="2m")

    result = run("queue", "update", "orders", *words)

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.replace("`cli", "`rqttl") == f"rqttl: {line} (see `rqttl queue update --help`)\n"
    assert broker.queue("orders").options().non_default == {"lease": 120_000}


@pytest.mark.parametrize("extra", [[], ["--dry-run"]])
def test_an_update_that_contradicts_options_in_force_is_refused(run: Run, broker: Broker, extra: list[str]) -> None:
    broker.declare_queue("orders", max_ttl="1m")

    result = run("queue", "update", "orders", "--min-ttl", "2m", *extra)

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "rqttl: --min-ttl: 2m is more than --max-ttl, 1m [invalid_option]\n"


@pytest.mark.parametrize("written", ["max-length", "max_length", "--max-length"])
def test_the_name_of_an_option_is_understood_however_it_is_written(run: Run, broker: Broker, written: str) -> None:
    broker.declare_queue("orders", max_length=5)

    assert run("queue", "update", "orders", "--unset", written).exit_code == 0
    assert broker.queue("orders").options().non_default == {}


def test_names_of_options_are_completed() -> None:
    unset = next(param for param in update.params if param.name == "unset")

    items = unset.shell_complete(click.Context(update), "max-l")

    assert [item.value for item in items] == ["max-length", "max-length-bytes"]


MISSING = [
    ("update", "nope", "--lease", "1m"),
    ("update", "nope", "--lease", "1m", "--dry-run"),
    ("show", "nope"),
    ("ls", "nope"),
    ("ls", "o*", "nope"),
    ("touch", "nope"),
    ("purge", "nope"),
    ("purge", "nope", "--yes"),
    ("purge", "nope", "--dry-run"),
    ("delete", "nope"),
    ("delete", "nope", "--yes"),
    ("delete", "nope", "--dry-run"),
]


@pytest.mark.parametrize("words", MISSING, ids=" ".join)
def test_a_missing_queue_is_refused_in_one_line(run: Run, broker: Broker, words: tuple[str, ...]) -> None:
    broker.declare_queue("orders")

    result = run("queue", *words)

    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == ("rqttl: queue 'nope' does not exist: `rqttl queue declare nope` creates it [not_found]\n")
    assert broker.queues() == ["orders"]


@pytest.mark.parametrize("words", MISSING, ids=" ".join)
def test_a_queue_with_nearly_the_same_name_is_named(run: Run, broker: Broker, words: tuple[str, ...]) -> None:
    broker.declare_queue("orders.eu")

    result = run("queue", *(word.replace("nope", "order.eu") for word in words))

    assert result.exit_code == 3
    assert result.stderr == "rqttl: queue 'order.eu' does not exist; did you mean orders.eu? [not_found]\n"


@pytest.mark.parametrize("words", MISSING, ids=" ".join)
def test_a_name_that_no_queue_can_have_is_wrong_usage(run: Run, words: tuple[str, ...]) -> None:
    result = run("queue", *(word.replace("nope", "n/o p e") for word in words if word != "o*"))

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("words", MISSING, ids=" ".join)
def test_without_redis_the_answer_is_one_line(words: tuple[str, ...], run: Run, impatient: None) -> None:
    result = run("queue", *words, "--url", "unix:///nowhere/redis.sock")

    assert (result.exit_code, result.stdout.replace("[]\n", "")) == (4, "")
    assert result.stderr.startswith("rqttl: Redis does not answer: ")
    assert result.stderr.count("\n") == 1


def test_touch_lets_the_lifetime_begin_anew(run_clocked: Run, clocked: Clocked) -> None:
    for name in ("orders", "mails"):
        clocked.declare_queue(name, expires="1s")
    clocked.advance(900)

    result = run_clocked("queue", "touch", "orders", "mails", "orders")

    assert (result.exit_code, result.stdout) == (0, "queue orders touched\nqueue mails touched\n")
    assert clocked.queue("mails").stats().ends_at == at(1_900)


def test_touch_can_answer_in_json_and_names_missing_queues(run: Run, broker: Broker) -> None:
    broker.declare_queue("orders")

    result = run("queue", "touch", "nope", "orders", "--json")

    assert result.exit_code == 3
    assert json.loads(result.stdout) == [{"queue": "nope", "error": "not_found"}, {"queue": "orders", "touched": True}]
    assert result.stderr == (
        "rqttl: queue 'nope' does not exist: `rqttl queue declare nope` creates it [not_found]\n"
        "rqttl: 1 of 2 queues refused; the lines above say why\n"
    )


def test_results_before_an_error_are_still_printed(run: Run, broker: Broker, client: redis.Redis) -> None:
    broker.declare_queue("orders")
    client.set("rqttl:{broken}:meta", "not a hash")

    result = run("queue", "touch", "orders", "broken", "mails", "--json")

    assert result.exit_code == 3
    assert json.loads(result.stdout) == [{"queue": "orders", "touched": True}]
    assert "the key rqttl:{broken}:meta is a string" in result.stderr


@pytest.mark.parametrize(
    "name, value, text",
    [
        ("message_ttl", 90_000, "90s"),
        ("message_ttl", None, "(none)"),
        ("never_expire", True, "yes"),
        ("max_length", 12345, "12,345"),
        ("redelivery_multiplier", 2, "2"),
        ("redelivery_jitter", 0.25, "0.25"),
        ("dead_letter_expired", "", "(drop)"),
        ("overflow", "drop-head", "drop-head"),
    ],
)
def test_values_are_printed_as_people_write_them(name: str, value: float | str | bool | None, text: str) -> None:
    assert format_value(OPTIONS[name], value) == text
