from __future__ import annotations

from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.semconv._incubating.attributes import messaging_attributes as conventions
from opentelemetry.semconv.attributes import error_attributes, server_attributes
from opentelemetry.trace import SpanKind, StatusCode

from rqttl import Broker, Delivery, InvalidInput, Message, QueueFull, Reject, Release, Retry, connect_async
from rqttl.telemetry import names
from tests.telemetry.recording import Recording, attributes, links, parent, place

pytestmark = pytest.mark.once

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CREATED = (0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331)


def refuse(why: str) -> None:
    """Refuse the message at hand."""
    raise Reject(why)


def test_enqueue_process_redrive_and_the_second_process_are_one_trace(broker: Broker, recording: Recording) -> None:
    recording.instrument(broker)
    dead = broker.declare_queue("dead")
    orders = broker.declare_queue("orders", dead_letter="dead")
    orders.enqueue(b"body")
    first = orders.receive()
    assert first is not None
    with first:
        refuse("bad")
    assert dead.redrive() == 1
    second = orders.receive()
    assert second is not None
    with second:
        pass
    enqueued = recording.one("enqueue orders")
    failed, done = recording.spans("process orders")
    assert enqueued.kind is SpanKind.PRODUCER
    for span in failed, done:
        assert span.kind is SpanKind.CONSUMER
        assert parent(span) == place(enqueued)
        assert links(span) == [place(enqueued)]
    assert [parent(span) for span in recording.spans("receive orders")] == [None, None]
    assert [links(span) for span in recording.spans("receive orders")] == [[place(enqueued)], [place(enqueued)]]
    assert attributes(failed)[names.ERROR_TYPE] == "rejected"
    assert attributes(done)[names.REASON] == "rejected"
    assert recording.spans("redrive dead") == []


def test_spans_have_the_attributes_of_the_conventions_and_neither_bodies_nor_headers(
    broker: Broker, recording: Recording
) -> None:
    recording.instrument(broker)
    queue = broker.declare_queue("orders")
    receipt = queue.enqueue({"n": 1}, headers={"customer": "hidden"}, ttl="60s")
    delivery = queue.receive()
    assert delivery is not None
    assert delivery.decode() == {"n": 1}
    with delivery:
        pass
    server = attributes(recording.one("enqueue orders"))[server_attributes.SERVER_ADDRESS]
    common = {
        conventions.MESSAGING_SYSTEM: "rqttl",
        conventions.MESSAGING_DESTINATION_NAME: "orders",
        server_attributes.SERVER_ADDRESS: server,
        conventions.MESSAGING_MESSAGE_ID: receipt.id,
        conventions.MESSAGING_MESSAGE_BODY_SIZE: len(delivery.body),
    }
    kinds = {"enqueue": "send", "receive": "receive", "process": "process"}
    own: dict[str, dict[str, Any]] = {
        "enqueue": {"messaging.rqttl.ttl_ms": 60_000},
        "receive": {},
        "process": {"messaging.rqttl.delivery_count": 1},
    }
    for name, kind in kinds.items():
        operation = {conventions.MESSAGING_OPERATION_NAME: name, conventions.MESSAGING_OPERATION_TYPE: kind}
        found = attributes(recording.one(f"{name} orders"))
        found.pop(server_attributes.SERVER_PORT, None)
        assert found == {**common, **operation, **own[name]}


def test_the_names_are_those_of_the_conventions() -> None:
    from opentelemetry.semconv._incubating.metrics import messaging_metrics as metrics
    from opentelemetry.semconv.schemas import Schemas

    assert {
        name: name
        for name in vars(names).values()
        if isinstance(name, str)
        and name.startswith(
            (
                "messaging.s",
                "messaging.d",
                "messaging.o",
                "messaging.m",
                "messaging.b",
                "messaging.c",
                "messaging.p",
                "server.",
                "error.",
            )
        )
    } == {
        names.SYSTEM: conventions.MESSAGING_SYSTEM,
        names.DESTINATION: conventions.MESSAGING_DESTINATION_NAME,
        names.TEMPLATE: conventions.MESSAGING_DESTINATION_TEMPLATE,
        names.OPERATION_NAME: conventions.MESSAGING_OPERATION_NAME,
        names.OPERATION_TYPE: conventions.MESSAGING_OPERATION_TYPE,
        names.MESSAGE_ID: conventions.MESSAGING_MESSAGE_ID,
        names.BODY_SIZE: conventions.MESSAGING_MESSAGE_BODY_SIZE,
        names.MESSAGE_COUNT: conventions.MESSAGING_BATCH_MESSAGE_COUNT,
        names.SERVER_ADDRESS: server_attributes.SERVER_ADDRESS,
        names.SERVER_PORT: server_attributes.SERVER_PORT,
        names.ERROR_TYPE: error_attributes.ERROR_TYPE,
        names.SENT_MESSAGES: metrics.MESSAGING_CLIENT_SENT_MESSAGES,
        names.CONSUMED_MESSAGES: metrics.MESSAGING_CLIENT_CONSUMED_MESSAGES,
        names.OPERATION_DURATION: metrics.MESSAGING_CLIENT_OPERATION_DURATION,
        names.PROCESS_DURATION: metrics.MESSAGING_PROCESS_DURATION,
    }
    types = {kind.value for kind in conventions.MessagingOperationTypeValues}
    assert {operation.type for operation in (names.ENQUEUE, names.CREATE, names.RECEIVE, names.PROCESS)} <= types
    assert {operation.type for operation in names.SETTLE.values()} <= types
    assert names.SCHEMA in {schema.value for schema in Schemas}


def test_a_batch_has_a_create_span_for_each_message_and_is_linked_to_them(broker: Broker, recording: Recording) -> None:
    recording.instrument(broker)
    queue = broker.declare_queue("orders")
    receipts = queue.enqueue_many([b"a", Message(b"b", headers={"traceparent": TRACE}), {"c": 1}])
    batch = recording.one("enqueue orders")
    created = recording.spans("create orders")
    assert batch.kind is SpanKind.CLIENT
    assert [span.kind for span in created] == [SpanKind.PRODUCER] * 2
    assert links(batch) == [place(created[0]), CREATED, place(created[1])]
    assert attributes(batch)[names.MESSAGE_COUNT] == 3
    assert [attributes(span)[names.MESSAGE_ID] for span in created] == [receipts[0].id, receipts[2].id]  # type: ignore[union-attr]  # receipts
    deliveries = queue.receive_many(3)
    assert deliveries[1].headers == {"traceparent": TRACE}
    assert deliveries[2].decode() == {"c": 1}
    received = recording.one("receive orders")
    assert links(received) == links(batch)
    assert attributes(received)[names.MESSAGE_COUNT] == 3
    for delivery in deliveries:
        with delivery:
            pass
    assert [parent(span) for span in recording.spans("process orders")] == links(batch)


def test_the_context_goes_from_the_sender_to_the_handler_with_its_baggage(broker: Broker, recording: Recording) -> None:
    recording.instrument(broker)
    queue = broker.declare_queue("orders")
    tracer = recording.tracers.get_tracer("shop")
    with tracer.start_as_current_span("request") as request:
        token = context.attach(baggage.set_baggage("customer", "7"))
        queue.enqueue(b"x")
        context.detach(token)
    assert set(queue.peek()[0].headers) == {"traceparent", "baggage"}
    seen = []

    def handle(delivery: Delivery) -> None:
        seen.append((baggage.get_baggage("customer"), trace.get_current_span().get_span_context().span_id))
        with delivery, tracer.start_as_current_span("work"):
            pass

    queue.run(handle, wait=0)
    process = recording.one("process orders")
    assert seen == [("7", process.context.span_id)]
    assert parent(recording.one("work")) == place(process)
    assert process.context.trace_id == request.get_span_context().trace_id
    assert trace.get_current_span().get_span_context().is_valid is False


def test_with_parent_link_the_span_of_a_handler_is_only_linked(broker: Broker, recording: Recording) -> None:
    recording.instrument(broker, parent="link")
    queue = broker.declare_queue("orders")
    queue.enqueue(b"x")
    queue.run(lambda _: None, wait=0)
    process = recording.one("process orders")
    assert parent(process) is None
    assert links(process) == [place(recording.one("enqueue orders"))]


@pytest.mark.parametrize(
    "raised, kind",
    [(ValueError("secret"), "ValueError"), (Retry(), "retry"), (Reject(), "rejected"), (Release(), None)],
    ids=str,
)
def test_a_failed_handler_has_the_type_of_its_error_and_not_its_text(
    broker: Broker, recording: Recording, raised: Exception, kind: str | None
) -> None:
    recording.instrument(broker)
    queue = broker.declare_queue("orders", max_deliveries=1)
    queue.enqueue(b"x")
    delivery = queue.receive()
    assert delivery is not None
    try:
        with delivery:
            raise raised
    except ValueError:
        pass
    process = recording.one("process orders")
    assert attributes(process).get(names.ERROR_TYPE) == kind
    assert process.status.status_code is (StatusCode.UNSET if kind is None else StatusCode.ERROR)
    assert "secret" not in process.to_json()
    (point,) = recording.points(names.PROCESS_DURATION)
    assert point.attributes.get(names.ERROR_TYPE) == kind


def test_a_refused_message_has_the_code_of_the_refusal(broker: Broker, recording: Recording) -> None:
    recording.instrument(broker)
    queue = broker.declare_queue("orders", max_length=1, overflow="reject-publish")
    queue.enqueue(b"x")
    with pytest.raises(QueueFull):
        queue.enqueue(b"y")
    assert isinstance(queue.enqueue_many([b"z", b"z"])[0], QueueFull)
    with pytest.raises(InvalidInput):
        queue.enqueue(b"y", headers={"bad": object()})  # type: ignore[dict-item]  # what a test of it needs
    failed = [attributes(span).get(names.ERROR_TYPE) for span in recording.spans("enqueue orders")]
    assert failed == [None, QueueFull.code, None, InvalidInput.code]
    assert [attributes(span)[names.ERROR_TYPE] for span in recording.spans("create orders")] == [QueueFull.code] * 2
    sent = {point.attributes.get(names.ERROR_TYPE): point.value for point in recording.points(names.SENT_MESSAGES)}
    assert sent == {None: 1, QueueFull.code: 3, InvalidInput.code: 1}


def test_metrics_count_messages_and_seconds(broker: Broker, recording: Recording) -> None:
    recording.instrument(broker)
    queue = broker.declare_queue("orders")
    queue.enqueue_many([b"x"] * 3)
    queue.run(lambda _: None, wait=0)
    assert [point.value for point in recording.points(names.SENT_MESSAGES)] == [3]
    assert [point.value for point in recording.points(names.CONSUMED_MESSAGES)] == [3]
    (process,) = recording.points(names.PROCESS_DURATION)
    assert (process.count, tuple(process.explicit_bounds)) == (3, names.BOUNDARIES)
    operations = {point.attributes[names.OPERATION_NAME] for point in recording.points(names.OPERATION_DURATION)}
    assert operations == {"enqueue", "receive"}
    typed = {
        metric
        for metric in (names.SENT_MESSAGES, names.CONSUMED_MESSAGES, names.PROCESS_DURATION, names.OPERATION_DURATION)
        if any(names.OPERATION_TYPE in point.attributes for point in recording.points(metric))
    }
    assert typed == {names.OPERATION_DURATION}


def test_settle_spans_are_off_unless_they_are_asked_for(broker: Broker, recording: Recording) -> None:
    end = recording.instrument(broker)
    queue = broker.declare_queue("orders", dead_letter="dead")
    queue.enqueue_many([b"x"] * 4)
    for delivery, settle in zip(queue.receive_many(4), [Delivery.ack] * 4, strict=True):
        settle(delivery)
    assert recording.spans("ack orders") == []
    end()
    assert broker.observer is None
    recording.instrument(broker, settle=True)
    queue.enqueue(b"x")
    queue.enqueue(b"y")
    created = recording.spans("enqueue orders")[-2:]
    first, second = queue.receive_many(2)
    first.nack(0)
    second.reject()
    queue.run(lambda _: None, wait=0)
    broker.queue("dead").redrive()
    assert links(recording.one("nack orders")) == [place(created[0])]
    assert links(recording.one("reject orders")) == [place(created[1])]
    assert links(recording.one("ack orders")) == [place(created[0])]
    assert attributes(recording.one("redrive dead"))[names.OPERATION_TYPE] == "settle"


def test_a_queue_that_matches_a_template_goes_by_it_in_names_and_metrics(broker: Broker, recording: Recording) -> None:
    recording.instrument(broker, templates=["tenant.*"])
    broker.declare_queue("tenant.7").enqueue(b"x")
    span = recording.one("enqueue tenant.*")
    assert attributes(span)[names.TEMPLATE] == "tenant.*"
    assert attributes(span)[names.DESTINATION] == "tenant.7"
    (point,) = recording.points(names.SENT_MESSAGES)
    assert point.attributes[names.TEMPLATE] == "tenant.*"
    assert names.DESTINATION not in point.attributes


async def _asyncio(url: str, recording: Recording) -> None:
    async with connect_async(url) as broker:
        recording.instrument(broker)
        dead = await broker.declare_queue("dead")
        queue = await broker.declare_queue("orders", dead_letter="dead")
        await queue.enqueue_many([b"a", b"b"])
        delivery = await queue.receive()
        assert delivery is not None
        async with delivery:
            refuse("bad")
        assert await dead.redrive() == 1

        async def handle(_: object) -> None:
            with recording.tracers.get_tracer("shop").start_as_current_span("work"):
                pass

        await queue.run(handle, concurrency=2, wait=0)


def test_asyncio_makes_the_same_traces(redis_url: str, recording: Recording) -> None:
    import asyncio

    asyncio.run(_asyncio(redis_url, recording))
    created = recording.spans("create orders")
    process = recording.spans("process orders")
    assert links(recording.one("enqueue orders")) == [place(span) for span in created]
    assert sorted(parent(span) or (0, 0) for span in process) == sorted(
        [place(created[0]), place(created[0]), place(created[1])]
    )
    assert [attributes(span).get(names.ERROR_TYPE) for span in process] == ["rejected", None, None]
    assert {parent(span) for span in recording.spans("work")} == {place(span) for span in process[1:]}
    assert attributes(process[0])[names.SERVER_ADDRESS]


def test_a_second_instrument_takes_the_place_of_the_first(broker: Broker, recording: Recording) -> None:
    recording.instrument(broker)
    recording.instrument(broker)
    broker.declare_queue("orders").enqueue(b"x")
    assert len(recording.spans("enqueue orders")) == 1


@pytest.mark.parametrize("options", [{"parent": "child"}, {"templates": "a.*"}, {"templates": ["a*"]}])
def test_bad_options_are_refused(broker: Broker, recording: Recording, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        recording.instrument(broker, **options)
    assert broker.observer is None
