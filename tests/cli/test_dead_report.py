"""`rqttl dead report`: counts by source, reason, hour and queue, with bars."""

import json
import subprocess
from typing import Any

import pytest

from rqttl import Broker, Message, Queue
from rqttl.cli.common.output import Progress
from rqttl.inspector import dead_letters
from tests.cli.conftest import Die, Run, check_golden
from tests.cli.processes import command, environment, on_terminal
from tests.contract.clocked import Clocked

HOUR = 3_600_000
#: A name for which no line of 80 cells has room.
LONG = "partners/" + "long-name." * 11


def table(printed: str, title: str) -> dict[str, int]:
    """The counts of the table that begins with this title."""
    [lines] = [part.splitlines() for part in printed.split("\n\n") if part.startswith(title)]
    cells = [line.split("   ") for line in lines[2:]]
    return {name.strip(): int(next(filter(str.strip, numbers)).replace(",", "")) for name, *numbers in cells}


def test_letters_are_counted_by_source_reason_and_hour(run_clocked: Run, letters: Queue) -> None:
    result = run_clocked("dead", "report", "orders/dead")

    assert (result.exit_code, result.stderr) == (0, "")
    check_golden("dead-report.txt", result.stdout)
    check_golden("dead-report.json", run_clocked("dead", "report", "orders/dead", "--json").stdout)


def test_several_queues_are_one_report_and_may_be_matched(run_clocked: Run, die: Die) -> None:
    die(0, 3, "orders", "orders/dead")
    die(0, 2, "mails", "mails/dead")
    die(0, 1, "jobs", "failed")

    document = json.loads(run_clocked("dead", "report", "*/dead", "failed", "failed", "--by", "queue", "--json").stdout)
    assert (document["queues"], document["count"]) == (["failed", "mails/dead", "orders/dead"], 6)
    assert document["by"] == {
        "queue": [
            {"queue": "orders/dead", "count": 3},
            {"queue": "mails/dead", "count": 2},
            {"queue": "failed", "count": 1},
        ]
    }
    printed = run_clocked("dead", "report", "*/dead", "failed", "--by", "queue").stdout
    assert table(printed, "queue") == {"orders/dead": 3, "mails/dead": 2, "failed": 1}
    assert printed.startswith("dead letters  6 (6 B) in failed, mails/dead, orders/dead\n")
    die(0, 1, "logs", "logs/dead")
    assert (
        "(7 B) in failed, logs/dead, mails/dead and 1 other queue\n"
        in run_clocked("dead", "report", "*/dead", "failed").stdout
    )


@pytest.mark.parametrize("since", ["30m", "2023-11-14T23:13:20Z"])
def test_letters_that_died_before_the_time_are_not_read(
    since: str, run_clocked: Run, die: Die, monkeypatch: pytest.MonkeyPatch
) -> None:
    die(0, 300)
    die(HOUR - 1, 2)
    die(HOUR, 5)
    read: list[int] = []
    monkeypatch.setattr(Progress, "advance", lambda _progress, _size, count: read.append(count))

    document = json.loads(run_clocked("dead", "report", "dead", "--newer-than", since, "--json").stdout)

    newer = 7 if since == "30m" else 5
    assert (document["count"], sum(read)) == (newer, newer)


@pytest.mark.parametrize(
    "apart, times, unit, first",
    [
        (HOUR, dead_letters.MOST_TIMES, "hour", "2023-11-14 22:00"),
        (HOUR, dead_letters.MOST_TIMES + 1, "day", "2023-11-14"),
        (24 * HOUR, dead_letters.MOST_TIMES + 1, "month", "2023-11"),
    ],
)
def test_many_hours_are_counted_by_a_longer_unit(
    run_clocked: Run, die: Die, apart: int, times: int, unit: str, first: str
) -> None:
    for i in range(times):
        die(i * apart)

    result = run_clocked("dead", "report", "dead", "--by", "hour")

    counts = table(result.stdout, f"{unit} (UTC)")
    assert (next(iter(counts)), len(counts) <= dead_letters.MOST_TIMES) == (first, True)
    assert (f"so by {unit}: " in result.stderr) == (unit != "hour")
    document = json.loads(run_clocked("dead", "report", "dead", "--json").stdout)
    assert sum(counts.values()) == sum(one["count"] for one in document["by"]["hour"])


def test_the_tables_come_once_and_in_the_order_that_was_asked_for(run_clocked: Run, letters: Queue) -> None:
    words = ("--by", "hour", "--by", "source", "--by", "hour", "--utc")

    printed = run_clocked("dead", "report", "orders/dead", *words).stdout

    assert [part.split()[0] for part in printed.split("\n\n")] == ["dead", "hour", "source"]
    document = json.loads(run_clocked("dead", "report", "orders/dead", "--json", *words).stdout)
    assert list(document["by"]) == ["hour", "source"]
    assert "'--by'" in run_clocked("dead", "report", "orders/dead", "--by", "day").stderr


def test_letters_of_one_error_are_one_row_that_selects_them(run: Run, broker: Broker) -> None:
    queue = broker.declare_queue("orders", dead_letter="dead")
    queue.enqueue_many([b"x"] * 5)
    texts = ("KeyError: 'a-1'", "KeyError: 'b'\nmore", "KeyError: 'a-1' [red]*", "\x1b[31m", None)
    for delivery, why in zip(queue.receive_many(5), texts, strict=True):
        delivery.reject(why)

    result = run("dead", "report", "dead", "--by", "error")
    counts = {"KeyError: …": 2, "(none)": 1, "KeyError: … [red]…": 1, "\\x1b[…m": 1}
    assert table(result.stdout, "error") == counts
    rows = json.loads(run("dead", "report", "dead", "--by", "error", "--json").stdout)["by"]["error"]
    assert [row["count"] for row in rows] == [2, 1, 1, 1]
    for row in rows:
        words = ("dead", "redrive", "dead", "--error", row["error"])
        planned = json.loads(run(*words, "--dry-run", "--json").stdout)["would_redrive"]
        assert planned == json.loads(run(*words, "--yes", "--json").stdout)["redriven"] == row["count"]


@pytest.mark.parametrize(
    "words, count",
    [
        (("--source", "mails"), 3),
        (("--reason", "rejected", "--reason", "maxlen"), 3),
        (("--header", "region=eu"), 4),
        (("--source", "mails", "--header", "region=us"), 0),
        (("--error", "no such*"), 2),
    ],
)
def test_only_what_the_filters_mean_is_counted(
    run_clocked: Run, letters: Queue, words: tuple[str, ...], count: int
) -> None:
    letters.enqueue(b"by hand")
    assert json.loads(run_clocked("dead", "report", "orders/dead", "--json", *words).stdout)["count"] == count

    result = run_clocked("dead", "report", "orders/dead", *words)

    assert result.stderr == ("" if count else "rqttl: no such dead letters in orders/dead\n")
    assert result.stdout.startswith(f"dead letters  {count} (") == bool(count)


def test_notes_count_letters_that_are_not_ready_and_messages_that_never_died(run_clocked: Run, letters: Queue) -> None:
    letters.enqueue_many([b"by hand"] * 2)
    letters.receive_many(3)[2].nack("5m")

    result = run_clocked("dead", "report", "orders/dead", "--json")

    answer = {name: json.loads(result.stdout)[name] for name in ("count", "leased", "delayed", "never_died")}
    assert answer == {"count": 7, "leased": 2, "delayed": 1, "never_died": 2}
    assert result.stderr == ("rqttl: of these, 2 leased and 1 delayed\nrqttl: 2 messages never died: not counted\n")


def test_a_report_without_letters_is_an_empty_answer_and_a_note(run: Run, broker: Broker) -> None:
    broker.declare_queue("a/dead")
    broker.declare_queue("b/dead")

    result = run("dead", "report", "a/dead")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "rqttl: no dead letters in a/dead\n")
    assert run("dead", "report", "*/dead").stderr == "rqttl: no dead letters in 2 queues\n"
    assert run("dead", "report", "c.*").stderr == "rqttl: no queue matches c.*\n"
    assert json.loads(run("dead", "report", "c.*", "--json").stdout) == {
        "queues": [],
        "count": 0,
        "leased": 0,
        "delayed": 0,
        "bytes": 0,
        "oldest_at": None,
        "newest_at": None,
        "never_died": 0,
        "by": {"source": [], "reason": [], "hour": []},
    }


def test_a_missing_queue_is_refused_before_any_is_read(
    run: Run, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.declare_queue("a/dead")
    monkeypatch.setattr(Queue, "peek", None)

    for others in ((), ("a.*",)):
        result = run("dead", "report", "a/dead", *others, "b/dead")
        assert (result.exit_code, result.stdout) == (3, "")
        assert result.stderr == "rqttl: queue 'b/dead' does not exist; did you mean a/dead? [not_found]\n"


def test_a_matched_queue_that_goes_meanwhile_is_passed_and_a_named_one_is_refused(
    run: Run, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        broker.declare_queue(name, dead_letter=f"{name}/dead").enqueue_many([Message(b"x", ttl=0)] * 3)
    peek = Queue.peek

    def deleted(queue: Queue, *arguments: Any, **named: Any) -> list[Any]:
        if queue.name == "b/dead":
            queue.delete()
        return peek(queue, *arguments, **named)

    monkeypatch.setattr(Queue, "peek", deleted)

    assert json.loads(run("dead", "report", "*/dead", "--json").stdout)["count"] == 6
    broker.declare_queue("b/dead")
    assert run("dead", "report", "*/dead", "b/dead").exit_code == 3


def test_beyond_the_limit_sources_are_counted_together(run_clocked: Run, die: Die) -> None:
    for n in range(1, 8):
        die(0, n, f"orders-{n}")

    result = run_clocked("dead", "report", "dead", "--by", "source", "--limit", "3")

    assert table(result.stdout, "source") == {"orders-7": 7, "orders-6": 6, "orders-5": 5, "(4 others)": 10}
    document = json.loads(run_clocked("dead", "report", "dead", "--limit", "3", "--json").stdout)
    assert len(document["by"]["source"]) == 7
    assert len(table(run_clocked("dead", "report", "dead", "--limit", "7").stdout, "source")) == 7


@pytest.fixture
def long_named(clocked: Clocked, die: Die) -> None:
    for n, name in ((9, "orders"), (4, "mails"), (1, LONG)):
        die(n * HOUR, n, name)


@pytest.mark.slow
@pytest.mark.usefixtures("long_named")
@pytest.mark.parametrize("columns", [80, 24])
def test_a_report_fits_a_terminal_and_nothing_is_cut(redis_url: str, columns: int) -> None:
    screen = on_terminal("dead", "report", "dead", "--url", redis_url, columns=columns, NO_COLOR="1", TZ="UTC")

    assert max(map(len, screen.split("\n"))) <= columns
    assert LONG in "".join(line.split("   ")[0].strip() for line in screen.split("\n"))
    if columns == 80:
        rows = [line for line in screen.split("\n") if line.startswith("orders ")]
        assert (len(rows), len(rows[0]), rows[0][-1]) == (1, 80, "█")


@pytest.mark.slow
@pytest.mark.usefixtures("long_named")
def test_there_are_no_bars_if_the_encoding_has_no_blocks(redis_url: str) -> None:
    latin = environment(RQTTL_URL=redis_url, PYTHONIOENCODING="latin-1")

    done = subprocess.run(command("dead", "report", "dead"), env=latin, capture_output=True, check=True)

    assert done.stdout.isascii()
    assert b" 64.3%\n" in done.stdout
    assert done.stderr == b""
