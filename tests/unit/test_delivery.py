"""A delivery: its attributes, and its single settle. No Redis: its settler only records calls."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest
import redis

from rqttl import (
    AlreadySettled,
    BrokerClosed,
    Delivery,
    InvalidInput,
    LeaseLost,
    OutcomeUnknown,
    QueueNotFound,
    QueueOptions,
)
from rqttl.delivery import LOST, Settler, check_unsettled, lease_of, mark
from rqttl.protocol.commands import Options
from rqttl.protocol.keys import Keyspace
from rqttl.units import as_datetime

NOW = 1_700_000_000_000
PLACE = b"1700000000000-100000"


class Notebook:
    """A settler that records its calls."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []
        self.failure: Exception | None = None

    def settle(self, how: str, deliveries: Sequence[Delivery], *more: object) -> None:
        self.told.append((how, [one.id for one in deliveries], *(word for word in more if word is not None)))
        if self.failure:
            raise self.failure
        for one in deliveries:
            check_unsettled(one)
            if how != "renew":
                mark(one, how)


def delivery(
    header: bytes = b"",
    body: bytes = b"x",
    token: bytes = b"1700000030000007",
    failed: int = 0,
    lease: int | None = None,
    settler: Notebook | None = None,
    **options: object,
) -> Delivery:
    known = Options.plain(QueueOptions.read_stored("orders", options)).config(Keyspace(), b"v1")
    return Delivery(Settler((settler or Notebook()).settle), known, (PLACE, header, body), token, failed, lease)


def test_a_plain_message_shows_its_place_as_id_and_when_it_came() -> None:
    one = delivery()

    assert (one.id, one.queue, one.body, one.headers, one.deaths) == (PLACE.decode(), "orders", b"x", {}, ())
    assert one.content_type == "application/octet-stream"
    assert (one.enqueued_at, one.expires_at) == (as_datetime(NOW), None)
    assert one.leased_until == as_datetime(NOW + 30_000)
    assert (one.delivery_count, one.settled) == (1, None)
    assert repr(one) == f"<Delivery '{PLACE.decode()}' of 'orders', 1 bytes, delivery 1>"


def test_the_header_of_the_sender_is_shown() -> None:
    one = delivery(b"1700000000500;2;;me\x92\x01\x81\xa1a\x01", b"\x93\x01\x02\x03", failed=2)

    assert (one.id, one.headers, one.content_type, one.delivery_count) == ("me", {"a": 1}, "application/msgpack", 3)
    assert one.decode() == [1, 2, 3]
    assert one.expires_at == as_datetime(NOW + 500)


def test_the_deadline_in_force_is_the_earlier_one() -> None:
    assert delivery(b"1700000000500", message_ttl=400).expires_at == as_datetime(NOW + 400)
    assert delivery(b"1700000000300", message_ttl=400).expires_at == as_datetime(NOW + 300)


def test_bytes_decode_to_themselves_and_broken_msgpack_to_a_typed_error() -> None:
    assert delivery(body=b"\xc1").decode() == b"\xc1"
    with pytest.raises(InvalidInput):
        delivery(b";;;\x92\x01\xc0", b"\xc1").decode()


def test_handed_out_for_good_it_needs_no_settling() -> None:
    one = delivery(token=b"")

    assert (one.leased_until, one.settled) == (None, "auto_ack")
    with pytest.raises(AlreadySettled, match=r"\(auto_ack\)"):
        check_unsettled(one)


def test_settling_tells_the_settler() -> None:
    book = Notebook()
    for settle in ("ack", "nack", "reject", "renew"):
        getattr(delivery(b";1;;a", settler=book), settle)()
    delivery(b";1;;a", settler=book).nack(delay="5s", description="why")
    delivery(b";1;;a", settler=book).reject("why")
    delivery(b";1;;a", settler=book).renew(timedelta(seconds=1))

    assert book.told == [
        ("ack", ["a"]),
        ("nack", ["a"]),
        ("reject", ["a"]),
        ("renew", ["a"]),
        ("nack", ["a"], "5s", "why"),
        ("reject", ["a"], "why"),
        ("renew", ["a"], timedelta(seconds=1)),
    ]


def test_whose_lease_was_lost_stays_lost() -> None:
    one = delivery()
    mark(one, LOST)

    with pytest.raises(LeaseLost):
        one.ack()


def test_a_context_leaves_alone_what_was_settled_within() -> None:
    book = Notebook()
    with delivery(b";1;;a", settler=book) as one:
        one.reject("no")

    assert book.told == [("reject", ["a"], "no")]


@pytest.mark.parametrize(
    "failure",
    [QueueNotFound("orders"), OutcomeUnknown("orders", "nack"), redis.ConnectionError("gone"), BrokerClosed()],
    ids=lambda failure: type(failure).__name__,
)
def test_the_exception_of_the_handler_gets_through_any_failure_of_the_return(
    failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    book = Notebook()
    book.failure = failure

    with pytest.raises(ZeroDivisionError), delivery(settler=book):
        _ = 1 / 0

    (record,) = caplog.records
    assert (record.levelname, record.name) == ("WARNING", "rqttl.delivery")
    assert str(failure) in record.getMessage()
    assert isinstance(failure.__context__, ZeroDivisionError)
    with pytest.raises(type(failure)), delivery(settler=book):
        pass


def test_a_renewal_without_a_length_asks_for_what_was_granted() -> None:
    assert lease_of(delivery()) == 30_000
    assert lease_of(delivery(lease=5)) == 5
