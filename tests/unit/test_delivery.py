"""A delivery: its attributes, and settles that fail. No Redis."""

from collections.abc import Sequence

import pytest
import redis

from rqttl import BrokerClosed, Delivery, OutcomeUnknown, QueueNotFound, QueueOptions
from rqttl.delivery import Settler
from rqttl.protocol.commands import Options
from rqttl.protocol.keys import Keyspace
from rqttl.units import as_datetime

NOW = 1_700_000_000_000
PLACE = b"1700000000000-100000"


def delivery(
    failure: Exception | None = None, lease: int | None = None, failed: int = 0, **options: object
) -> Delivery:
    """A delivery whose settles fail with this error."""

    def settle(how: str, deliveries: Sequence[Delivery], *_: object) -> None:
        for one in deliveries:
            one.check_unsettled()
        if failure:
            raise failure

    known = Options.plain(QueueOptions.read_stored("orders", options)).config(Keyspace(), b"v1")
    return Delivery(Settler(settle), known, (PLACE, b"", b"x"), b"1700000030000007", failed, lease)


def test_a_plain_message_shows_its_place_as_id_and_when_it_came() -> None:
    one = delivery()

    assert (one.id, one.queue, one.body, one.headers, one.deaths) == (PLACE.decode(), "orders", b"x", {}, ())
    assert one.content_type == "application/octet-stream"
    assert (one.enqueued_at, one.expires_at) == (as_datetime(NOW), None)
    assert one.leased_until == as_datetime(NOW + 30_000)
    assert (one.delivery_count, one.settled) == (1, None)
    assert repr(one) == f"<Delivery '{PLACE.decode()}' of 'orders', 1 bytes, delivery 1>"


def test_a_context_leaves_alone_what_was_settled_within() -> None:
    with delivery() as one:
        one.settled = "reject"

    assert one.settled == "reject"


@pytest.mark.parametrize(
    "failure",
    [QueueNotFound("orders"), OutcomeUnknown("orders", "nack"), redis.ConnectionError("gone"), BrokerClosed()],
    ids=lambda failure: type(failure).__name__,
)
def test_the_exception_of_the_handler_gets_through_any_failure_of_the_return(
    failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ZeroDivisionError), delivery(failure):
        _ = 1 / 0

    (record,) = caplog.records
    assert (record.levelname, record.name) == ("WARNING", "rqttl.delivery")
    assert str(failure) in record.getMessage()
    assert isinstance(failure.__context__, ZeroDivisionError)
    with pytest.raises(type(failure)), delivery(failure):
        pass


def test_a_renewal_without_a_length_asks_for_what_was_granted() -> None:
    assert delivery().lease == 30_000
    assert delivery(lease=5).lease == 5
