"""`rqttl queue declare`, `update` and `touch`."""

from __future__ import annotations

import json

import pytest

from rqttl import Broker, Queue
from rqttl.cli.common.option_flags import flag, to_json
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
    result = run("queue", "declare", "orders", *ALL, "--json")

    assert (result.exit_code, result.stderr) == (0, "")
    answer = json.loads(result.stdout)
    assert (answer["queue"], answer["options"]["max_length"], answer["options"]["lease_ms"]) == ("orders", 10, 300_000)
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


def test_every_option_can_be_updated_and_unset(run: Run, broker: Broker) -> None:
    broker.declare_queue("orders")

    assert run("queue", "update", "orders", *ALL).exit_code == 0
    assert dict(broker.queue("orders").options()) == VALUES

    unset = [word for name in OPTIONS for word in ("--unset", name)]
    assert run("queue", "update", "orders", *unset).exit_code == 0
    assert broker.queue("orders").options().non_default == {}


UPDATE = ["queue", "update", "orders", "--message-ttl", "5m", "--max-deliveries", "3", "--no-never-expire"]
UPDATE += ["--dead-letter-expired", "", "--unset", "max_length", "--unset", "min-ttl"]


def prepared(clocked: Clocked) -> None:
    options = {"message_ttl": "1h", "lease": "1m", "dead_letter": "dead"}
    clocked.declare_queue("orders", **options, max_deliveries=3, never_expire=True, max_length=12345)  # type: ignore[arg-type]


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


def test_a_dry_run_of_update_shows_the_difference_and_changes_nothing(run_clocked: Run, clocked: Clocked) -> None:
    prepared(clocked)
    before = clocked.queue("orders").options()

    text, answer = run_clocked(*UPDATE, "--dry-run"), run_clocked(*UPDATE, "--dry-run", "--json")

    golden.check("queue-update-dry-run.txt", text.stdout)
    assert clocked.queue("orders").options() == before
    line, done = json.loads(answer.stdout), json.loads(run_clocked(*UPDATE, "--json").stdout)
    assert (line.pop("dry_run"), done.pop("dry_run")) == (True, False)
    assert line == done
    assert done.pop("before") == to_json(before)
    assert done.pop("after") == to_json(clocked.queue("orders").options())
    golden.check("queue-update.json", json.dumps(done) + "\n")


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

    answer = json.loads(run_clocked(*DEADLY, "--dry-run", "--json").stdout)
    dry, done = run_clocked(*DEADLY, "--dry-run"), run_clocked(*DEADLY, "--yes")

    assert (answer["expired"], answer["trimmed"]) == (6, 1)

    assert (dry.stderr, done.stderr) == ("", "")
    golden.check("queue-update-deaths-dry-run.txt", dry.stdout)
    golden.check("queue-update-deaths.txt", done.stdout)
    stats = queue.stats()
    assert (stats.ready, stats.deaths["expired"], stats.deaths["maxlen"]) == (3, 6, 1)


def test_an_update_that_nobody_agreed_to_lets_no_message_die(run_clocked: Run, clocked: Clocked) -> None:
    queue = waiting_letters(clocked)
    before = queue.options()

    result = run_clocked(*DEADLY)

    assert (result.exit_code, result.stdout) == (2, "")
    golden.check("queue-update-unanswered.txt", result.stderr.replace("`cli", "`rqttl"))
    assert (queue.options(), queue.stats().ready) == (before, 10)


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


def test_a_pause_is_declared_changed_and_printed_as_people_write_it(run: Run, broker: Broker) -> None:
    words = ("--redelivery-delay", "10s", "--redelivery-multiplier", "2", "--redelivery-jitter", "0.25")
    assert run("queue", "declare", "orders", *words).exit_code == 0
    assert dict(broker.queue("orders").options().non_default) == {
        "redelivery_delay": 10_000,
        "redelivery_multiplier": 2,
        "redelivery_jitter": 0.25,
    }

    changed = run("queue", "update", "orders", "--redelivery-multiplier", "1.5").stdout.splitlines()
    printed = run("queue", "show", "orders").stdout

    assert [line.split() for line in changed[1:]] == [["--redelivery-multiplier", "2", "->", "1.5"]]
    for line in ("--redelivery-delay", "10s"), ("--redelivery-multiplier", "1.5"), ("--redelivery-jitter", "0.25"):
        assert list(line) in [one.split() for one in printed.splitlines()]


def test_a_pause_cannot_be_unset_below_what_shapes_it(run: Run, broker: Broker) -> None:
    broker.declare_queue("orders", redelivery_delay="10s", redelivery_jitter=0.5)

    result = run("queue", "update", "orders", "--unset", "redelivery-delay")

    assert (result.exit_code, result.stdout) == (2, "")
    assert broker.queue("orders").options()["redelivery_delay"] == 10_000
