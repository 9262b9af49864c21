"""`operation=redrive` and `operation=purge`: each letter moves or goes once, and stays where it cannot."""

from collections.abc import Callable

import pytest

from rqttl import Broker, Queue
from tests.spark.letters import bury
from tests.spark.writing import LETTERS, Job, counts, ids

Make = Callable[..., Job]
CHOSEN = "queue string, sequence string"


@pytest.fixture
def job(redis_url: str) -> Make:
    """Makes jobs: `job("redrive")`."""
    return lambda operation, ddl=CHOSEN, **options: Job(redis_url, ddl, {"operation": operation, **options})


def rows(letters: Queue) -> list[tuple[str, str]]:
    """The letters of a queue as the batch reader gives them."""
    return [(letter.queue, letter.sequence) for letter in letters.peek(100_000)]


def with_source(letters: Queue) -> list[tuple[str, str, str]]:
    return [(one.queue, one.sequence, one.deaths[0].queue) for one in letters.peek(100_000)]


def test_letters_go_back_to_where_they_died(job: Make, broker: Broker) -> None:
    letters = bury(broker, 700)
    bury(broker, 20, source="stocks", first=700)

    assert counts(job("redrive").task(rows(letters), size=300)) == {"moved": 720}

    assert ids(broker.queue("orders")) == [f"m-{i}" for i in range(700)]
    assert ids(broker.queue("stocks")) == [f"m-{i}" for i in range(700, 720)]
    assert (ids(letters), letters.stats().redriven) == ([], 720)
    assert broker.queue("orders").peek(1)[0].deaths[0].reason == "maxlen"


def test_the_column_source_says_where_to(job: Make, broker: Broker) -> None:
    letters = bury(broker, 300)
    broker.declare_queue("elsewhere")
    chosen = with_source(letters)

    report = job("redrive", LETTERS).task([*chosen[:200], *((*one[:2], "elsewhere") for one in chosen[200:])])

    assert counts(report)["moved"] == 300
    assert len(ids(broker.queue("orders"))) == 200
    assert ids(broker.queue("elsewhere")) == [f"m-{i}" for i in range(200, 300)]


def test_a_second_time_they_are_unavailable(job: Make, broker: Broker) -> None:
    letters = bury(broker, 100)
    for ddl, chosen in ((CHOSEN, rows(letters)), (LETTERS, with_source(letters))):
        again = job("redrive", ddl)
        first, second = again.task(chosen), again.task(chosen)

        assert (first.counts["moved"], first.counts["unavailable"]) in ((100, 0), (0, 100))
        assert (second.counts["moved"], second.counts["unavailable"]) == (0, 100)
    assert len(ids(broker.queue("orders"))) == 100


def test_a_letter_without_room_stays_and_is_told(job: Make, broker: Broker) -> None:
    letters = bury(broker, 10)
    broker.queue("orders").update(max_length=6, overflow="reject-publish")
    chosen = rows(letters)

    report = job("redrive").task(chosen)

    assert counts(report) == {"moved": 6, "refused queue_full": 4}
    assert report.named["queue_full"] == [f"orders/dead/{sequence}" for _, sequence in chosen[6:]]
    assert report.causes["queue_full"] == "queue 'orders' is full: max_length"
    assert (len(ids(broker.queue("orders"))), ids(letters)) == (6, [f"m-{i}" for i in range(6, 10)])


@pytest.mark.parametrize(
    "change, reason, cause",
    [
        ({"source": "nobody"}, "not_found", "queue 'nobody' of column source does not exist"),
        ({"source": "orders/dead"}, "same_queue", "column source names queue 'orders/dead', which it is in"),
        ({"source": None}, "no_source", "column source is null, so there is no queue to put it back into"),
        ({"source": "a b"}, "invalid_name", ""),
        ({"queue": None}, "no_queue", ""),
        ({"queue": "a b"}, "invalid_name", ""),
        ({"sequence": None}, "no_sequence", ""),
        ({"sequence": "7-1"}, "invalid_sequence", ""),
    ],
)
def test_a_row_that_names_no_letter_or_no_place_for_it_is_refused_alone(
    change: dict[str, str | None], reason: str, cause: str, job: Make, broker: Broker
) -> None:
    letters = bury(broker, 5)
    chosen: list[tuple[str | None, ...]] = [*with_source(letters)]
    row = dict(zip(("queue", "sequence", "source"), chosen[2], strict=True))
    chosen[2] = tuple({**row, **change}.values())

    report = job("redrive", LETTERS).task(chosen)

    assert counts(report) == {"moved": 4, f"refused {reason}": 1}
    assert report.causes[reason] == (cause or report.causes[reason])
    assert ids(letters) == ["m-2"]


def test_without_the_column_source_a_message_that_never_died_stays(job: Make, broker: Broker) -> None:
    letters = bury(broker, 2)
    letters.enqueue(b"x", id="alive")

    assert counts(job("redrive").task(rows(letters))) == {"moved": 2, "refused no_source": 1}
    assert ids(letters) == ["alive"]


@pytest.mark.parametrize("operation", ["redrive", "purge"])
@pytest.mark.parametrize("ddl", [CHOSEN, LETTERS])
def test_letters_of_a_deleted_queue_are_unavailable(operation: str, ddl: str, job: Make, broker: Broker) -> None:
    letters = bury(broker, 3)
    chosen = rows(letters) if ddl == CHOSEN else with_source(letters)
    letters.delete()

    assert counts(job(operation, ddl).task(chosen))["unavailable"] == 3


def test_a_purge_removes_these_letters_and_no_others(job: Make, broker: Broker) -> None:
    letters = bury(broker, 1_000)
    chosen = rows(letters)[::2]

    assert counts(job("purge").task(chosen, size=200)) == {"purged": 500, "unavailable": 0}
    assert counts(job("purge").task(chosen)) == {"purged": 0, "unavailable": 500}
    assert ids(letters) == [f"m-{i}" for i in range(1, 1_000, 2)]
    assert letters.stats().purged == 500


def test_the_queue_of_all_letters_may_be_an_option(job: Make, broker: Broker) -> None:
    letters = bury(broker, 10)
    sequences = [(sequence,) for _, sequence in rows(letters)]

    assert counts(job("purge", "sequence string", queue="orders/dead").task(sequences[:4]))["purged"] == 4
    assert counts(job("redrive", "sequence string", queue="orders/dead").task(sequences[4:]))["moved"] == 6
    assert ids(letters) == []
