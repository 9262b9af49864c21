"""The context of a trace in the headers of a message."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry import baggage, context
from opentelemetry.trace import SpanKind

from rqttl import Broker, InvalidInput
from rqttl.protocol.codec import MAX_HEADER_BYTES
from tests.telemetry.recording import Recording, links, parent, place
from tests.telemetry.test_traces import CREATED, TRACE

pytestmark = pytest.mark.once


def test_a_single_message_that_brings_its_own_context_keeps_it(broker: Broker, recording: Recording) -> None:
    recording.instrument(broker)
    queue = broker.declare_queue("orders")
    queue.enqueue(b"x", headers={"traceparent": TRACE, "baggage": "a=1"})
    assert queue.peek()[0].headers == {"traceparent": TRACE, "baggage": "a=1"}
    span = recording.one("enqueue orders")
    assert (span.kind, links(span)) == (SpanKind.CLIENT, [CREATED])


@pytest.mark.parametrize(
    "value", ["", "garbage", TRACE.replace("00-", "ff-", 1), f"00-{'0' * 32}-{'1' * 16}-01", b"\xff", 5, None], ids=repr
)
def test_a_context_that_cannot_be_read_gives_way_to_that_of_the_sender(
    broker: Broker, recording: Recording, value: Any
) -> None:
    recording.instrument(broker)
    queue = broker.declare_queue("orders")
    token = context.attach(baggage.set_baggage("customer", "7"))
    queue.enqueue(b"x", headers={"traceparent": value, "baggage": "a=1", "shop": 3})
    context.detach(token)
    queue.run(lambda _: None, wait=0)
    sent, process = recording.one("enqueue orders"), recording.one("process orders")
    assert (sent.kind, parent(process), links(process)) == (SpanKind.PRODUCER, place(sent), [place(sent)])
    queue.enqueue(b"x", headers={"traceparent": value, "baggage": "a=1", "shop": 3})
    assert {**queue.peek()[0].headers, "traceparent": None} == {"traceparent": None, "baggage": "a=1", "shop": 3}


@pytest.mark.parametrize("wrong", [[("a", "b")], [], "a", 5, {"traceparent": object}, {"baggage": object}], ids=repr)
def test_wrong_headers_are_refused_as_without_an_observer(
    broker: Broker, recording: Recording, wrong: Any, caplog: pytest.LogCaptureFixture
) -> None:
    queue = broker.declare_queue("orders")
    refusals = []
    for end in (None, recording.instrument):
        if end is not None:
            end(broker)
        token = context.attach(baggage.set_baggage("customer", "7"))
        with pytest.raises(InvalidInput) as refusal:
            queue.enqueue(b"x", headers=wrong)
        context.detach(token)
        refusals.append(str(refusal.value))
    assert refusals[0] == refusals[1]
    assert caplog.records == []


def test_headers_that_have_no_room_for_a_context_are_sent_without_it(broker: Broker, recording: Recording) -> None:
    recording.instrument(broker)
    queue = broker.declare_queue("orders")
    with_context = []
    for length in range(MAX_HEADER_BYTES - 150, MAX_HEADER_BYTES - 20):
        queue.enqueue(b"x", headers={"a": "v" * length})
        delivery = queue.receive(auto_ack=True)
        assert delivery is not None
        assert len(str(delivery.headers["a"])) == length
        with_context.append("traceparent" in delivery.headers)

    assert with_context == sorted(with_context, reverse=True)
    assert {*with_context} == {True, False}
