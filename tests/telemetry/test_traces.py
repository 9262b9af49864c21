import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.semconv._incubating.attributes import messaging_attributes as conventions
from opentelemetry.semconv.attributes import error_attributes, server_attributes
from opentelemetry.trace import SpanKind, StatusCode

from rqttl import (
    Broker,
    Delivery,
    InvalidInput,
    Message,
    MessageTooLarge,
    Queue,
    QueueFull,
    Reject,
    Release,
    Retry,
    connect_async,
)
from rqttl.telemetry import tracing
from tests.contract.looks import one
from tests.telemetry.conftest import Recording, attributes, links, parent, place
from tests.worker.processes import SITE, WorkerProcess

pytestmark = pytest.mark.once


@pytest.fixture
def queue(broker: Broker, recording: Recording) -> Queue:
    """The queue `orders` of a broker with telemetry."""
    recording.instrument(broker)
    return broker.declare_queue("orders")


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
    with one(orders):
        refuse("bad")
    assert dead.redrive() == 1
    with one(orders):
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
    assert attributes(failed)[tracing.ERROR_TYPE] == "rejected"
    assert attributes(done)[tracing.REASON] == "rejected"
    assert recording.spans("redrive dead") == []


def test_spans_have_the_attributes_of_the_conventions_and_neither_bodies_nor_headers(
    queue: Queue, recording: Recording
) -> None:
    receipt = queue.enqueue(b"hidden", headers={"customer": "hidden"}, ttl="60s")
    delivery = one(queue)
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


def test_a_scheduled_message_keeps_its_trace_and_tells_its_due_time(queue: Queue, recording: Recording) -> None:
    receipt = queue.enqueue(b"x", delay="1h")
    assert receipt.deliver_at is not None
    queue.enqueue_many([Message(b"y", deliver_at=2_000_000_000_000), b"z"])
    queue.reschedule(receipt.id, delay="0s")
    queue.sweep()
    one(queue).ack()
    with one(queue):
        pass

    enqueued, _ = recording.spans("enqueue orders")
    assert attributes(enqueued)[tracing.DELIVER_AT] == receipt.deliver_at.isoformat()
    later, now = map(attributes, recording.spans("create orders"))
    assert later[tracing.DELIVER_AT] == "2033-05-18T03:33:20+00:00"
    assert tracing.DELIVER_AT not in now
    assert parent(recording.one("process orders")) == place(enqueued)


def test_the_names_are_those_of_the_conventions() -> None:
    from opentelemetry.semconv._incubating.metrics import messaging_metrics as metrics
    from opentelemetry.semconv.schemas import Schemas

    modules = (conventions, metrics, server_attributes, error_attributes)
    standard = {value for module in modules for value in vars(module).values() if isinstance(value, str)}
    ours = {value for name, value in vars(tracing).items() if name.isupper() and isinstance(value, str)}
    ours = {value for value in ours if value.startswith(("messaging.", "server.", "error.")) and "rqttl" not in value}
    assert len(ours) > 14
    assert ours <= standard
    types = {kind.value for kind in conventions.MessagingOperationTypeValues}
    assert set(tracing.TYPES.values()) <= types
    assert tracing.SCHEMA in {schema.value for schema in Schemas}


def test_a_batch_has_a_create_span_for_each_message_and_is_linked_to_them(queue: Queue, recording: Recording) -> None:
    receipts = queue.enqueue_many([b"a", Message(b"b", headers={"traceparent": TRACE}), {"c": 1}])
    batch = recording.one("enqueue orders")
    created = recording.spans("create orders")
    assert batch.kind is SpanKind.CLIENT
    assert [span.kind for span in created] == [SpanKind.PRODUCER] * 2
    assert links(batch) == [place(created[0]), CREATED, place(created[1])]
    assert attributes(batch)[tracing.MESSAGE_COUNT] == 3
    assert [attributes(span)[tracing.MESSAGE_ID] for span in created] == [receipts[0].id, receipts[2].id]  # type: ignore[union-attr]  # receipts
    deliveries = queue.receive_many(3)
    assert deliveries[1].headers == {"traceparent": TRACE}
    assert deliveries[2].decode() == {"c": 1}
    received = recording.one("receive orders")
    assert links(received) == links(batch)
    assert attributes(received)[tracing.MESSAGE_COUNT] == 3
    for delivery in deliveries:
        with delivery:
            pass
    assert [parent(span) for span in recording.spans("process orders")] == links(batch)


def test_a_message_to_a_topic_is_one_span_and_its_context_is_in_each_copy(broker: Broker, recording: Recording) -> None:
    recording.instrument(broker)
    topic = broker.declare_topic("news")
    queues = [topic.subscribe(name) for name in ("a", "b")]
    topic.enqueue(b"now")
    topic.pause()
    topic.enqueue(b"later")
    topic.resume()
    topic.enqueue_many([b"1", b"2"])
    created = recording.spans("create news")
    now, later, batch = recording.spans("enqueue news")
    assert links(batch) == [place(span) for span in created]
    for queue in queues:
        for delivery in queue.receive_many(4):
            with delivery:
                pass
        processed = recording.spans(f"process {queue.name}")
        assert [parent(span) for span in processed] == [place(span) for span in (now, later, *created)]
    assert {span.name.split()[0] for span in recording.spans()} == {"enqueue", "create", "receive", "process"}


@pytest.mark.parametrize("many", [False, True])
def test_a_message_without_room_for_the_context_goes_without_it(queue: Queue, recording: Recording, many: bool) -> None:
    full = {"filler": "x" * 65_510}
    message = Message(b"x", headers=full)
    if many:
        queue.enqueue_many([message, b"y"])
    else:
        queue.enqueue(message)
    assert queue.peek()[0].headers == full
    with one(queue):
        pass
    assert parent(recording.one("process orders")) is None
    with pytest.raises(MessageTooLarge, match="headers: 65565 bytes"):
        queue.enqueue(b"x", headers={"filler": "x" * 65_550})


def test_the_context_goes_from_the_sender_to_the_handler_with_its_baggage(queue: Queue, recording: Recording) -> None:
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
    delivery = one(queue)
    try:
        with delivery:
            raise raised
    except ValueError:
        pass
    process = recording.one("process orders")
    assert attributes(process).get(tracing.ERROR_TYPE) == kind
    assert process.status.status_code is (StatusCode.UNSET if kind is None else StatusCode.ERROR)
    assert "secret" not in process.to_json()
    (point,) = recording.points(tracing.PROCESS_DURATION)
    assert point.attributes.get(tracing.ERROR_TYPE) == kind


def test_a_refused_message_has_the_code_of_the_refusal(broker: Broker, recording: Recording) -> None:
    recording.instrument(broker)
    queue = broker.declare_queue("orders", max_length=1, overflow="reject-publish")
    queue.enqueue(b"x")
    with pytest.raises(QueueFull):
        queue.enqueue(b"y")
    assert isinstance(queue.enqueue_many([b"z", b"z"])[0], QueueFull)
    with pytest.raises(InvalidInput):
        queue.enqueue(b"y", headers={"bad": object()})  # type: ignore[dict-item]  # what a test of it needs
    failed = [attributes(span).get(tracing.ERROR_TYPE) for span in recording.spans("enqueue orders")]
    assert failed == [None, QueueFull.code, None, InvalidInput.code]
    assert [attributes(span)[tracing.ERROR_TYPE] for span in recording.spans("create orders")] == [QueueFull.code] * 2
    sent = {point.attributes.get(tracing.ERROR_TYPE): point.value for point in recording.points(tracing.SENT_MESSAGES)}
    assert sent == {None: 1, QueueFull.code: 3, InvalidInput.code: 1}


def test_metrics_count_messages_and_seconds(queue: Queue, recording: Recording) -> None:
    queue.enqueue_many([b"x"] * 3)
    queue.run(lambda _: None, wait=0)
    assert [point.value for point in recording.points(tracing.SENT_MESSAGES)] == [3]
    assert [point.value for point in recording.points(tracing.CONSUMED_MESSAGES)] == [3]
    (process,) = recording.points(tracing.PROCESS_DURATION)
    assert (process.count, tuple(process.explicit_bounds)) == (3, tracing.BOUNDARIES)
    operations = {point.attributes[tracing.OPERATION_NAME] for point in recording.points(tracing.OPERATION_DURATION)}
    assert operations == {"enqueue", "receive"}
    typed = {
        metric
        for metric in (
            tracing.SENT_MESSAGES,
            tracing.CONSUMED_MESSAGES,
            tracing.PROCESS_DURATION,
            tracing.OPERATION_DURATION,
        )
        if any(tracing.OPERATION_TYPE in point.attributes for point in recording.points(metric))
    }
    assert typed == {tracing.OPERATION_DURATION}


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
    assert attributes(recording.one("redrive dead"))[tracing.OPERATION_TYPE] == "settle"


def test_a_queue_that_matches_a_template_goes_by_it_in_names_and_metrics(broker: Broker, recording: Recording) -> None:
    recording.instrument(broker, templates=["tenant.*"])
    broker.declare_queue("tenant.7").enqueue(b"x")
    span = recording.one("enqueue tenant.*")
    assert attributes(span)[tracing.TEMPLATE] == "tenant.*"
    assert attributes(span)[tracing.DESTINATION] == "tenant.7"
    (point,) = recording.points(tracing.SENT_MESSAGES)
    assert point.attributes[tracing.TEMPLATE] == "tenant.*"
    assert tracing.DESTINATION not in point.attributes


async def _asyncio(url: str, recording: Recording) -> None:
    async with connect_async(url) as broker:
        recording.instrument(broker, settle=True)
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
    assert [attributes(span).get(tracing.ERROR_TYPE) for span in process] == ["rejected", None, None]
    assert {parent(span) for span in recording.spans("work")} == {place(span) for span in process[1:]}
    assert attributes(process[0])[tracing.SERVER_ADDRESS]
    settled = Counter(span.name for span in recording.spans("ack orders", "reject orders", "redrive dead"))
    assert settled == {"ack orders": 2, "reject orders": 1, "redrive dead": 1}
    received = [link for span in recording.spans("receive orders") for link in links(span)]
    assert Counter(received) == {place(created[0]): 2, place(created[1]): 1}


@pytest.mark.parametrize("options", [{"parent": "child"}, {"templates": "a.*"}, {"templates": ["a*"]}])
def test_bad_options_are_refused(broker: Broker, recording: Recording, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        recording.instrument(broker, **options)
    assert broker.observer is None


@pytest.mark.parametrize(
    "value", ["", "garbage", TRACE.replace("00-", "ff-", 1), f"00-{'0' * 32}-{'1' * 16}-01", b"\xff", 5, None], ids=repr
)
def test_a_context_that_cannot_be_read_gives_way_to_that_of_the_sender(
    queue: Queue, recording: Recording, value: Any
) -> None:
    token = context.attach(baggage.set_baggage("customer", "7"))
    queue.enqueue(b"x", headers={"traceparent": value, "baggage": "a=1", "shop": 3})
    context.detach(token)
    queue.run(lambda _: None, wait=0)
    sent, process = recording.one("enqueue orders"), recording.one("process orders")
    assert (sent.kind, parent(process), links(process)) == (SpanKind.PRODUCER, place(sent), [place(sent)])
    queue.enqueue(b"x", headers={"traceparent": value, "baggage": "a=1", "shop": 3})
    assert {**queue.peek()[0].headers, "traceparent": None} == {"traceparent": None, "baggage": "a=1", "shop": 3}


@pytest.mark.parametrize("wrong", [[("a", "b")], [], "a", 5, {"shop": object}], ids=repr)
def test_wrong_headers_are_refused_as_without_an_observer(
    broker: Broker, recording: Recording, wrong: Any, caplog: pytest.LogCaptureFixture
) -> None:
    queue = broker.declare_queue("orders")
    with pytest.raises(InvalidInput) as refusal:
        queue.enqueue(b"x", headers=wrong)
    recording.instrument(broker)
    with pytest.raises(InvalidInput, match=re.escape(str(refusal.value))):
        queue.enqueue(b"x", headers=wrong)
    assert caplog.records == []


#: The module that Python imports at its start: `opentelemetry-instrument` brings one, too.
AT_START = """
from tests.telemetry.handlers import configure
from rqttl.telemetry.instrumentor import RqttlInstrumentor
configure()
RqttlInstrumentor().instrument()
"""


def run_worker(url: str, home: Path, how: str, *arguments: str, call: str = "work") -> None:
    """Run `rqttl worker` until the queue `orders` is empty. `how` is the way in which telemetry is configured."""
    (home / SITE).mkdir()
    if how == "start":
        (home / SITE / "sitecustomize.py").write_text(AT_START)
    words = ["orders", "--burst", "--call", f"tests.telemetry.handlers:{call}", *arguments]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RQTTL_TEST_TELEMETRY", how)
        worker = WorkerProcess(url, home, *words)
    assert worker.end() == 0, worker.log()
    worker.remove()


def spans(home: Path) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """The spans of all processes by name, each with the name of its file."""
    found: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for path in home.glob("spans-*"):
        for line in path.read_text().splitlines():
            span = json.loads(line)
            found.setdefault(span["name"], []).append((path.name, span))
    return found


def ids(span: dict[str, Any]) -> tuple[int, int]:
    """The ids of the trace and of a span in JSON."""
    return int(span["context"]["trace_id"], 16), int(span["context"]["span_id"], 16)


def parent_of(span: dict[str, Any]) -> tuple[int, int]:
    """The ids of the trace and of the parent of a span in JSON."""
    return int(span["context"]["trace_id"], 16), int(span["parent_id"] or "0", 16)


@pytest.mark.parametrize(
    "how, call, arguments",
    [
        ("module", "work", ["--processes", "2"]),
        ("start", "work", ["--processes", "1", "--threads", "2"]),
        ("start", "work_async", ["--processes", "1"]),
        ("start", "work", ["--processes", "0"]),
    ],
    ids=["configured by the module", "configured at the start", "coroutines", "in the worker"],
)
def test_a_span_of_a_handler_in_a_child_belongs_to_the_trace_of_its_sender(
    queue: Queue, redis_url: str, recording: Recording, tmp_path: Path, how: str, call: str, arguments: list[str]
) -> None:
    for number in range(4):
        queue.enqueue(b"%d" % number)
    run_worker(redis_url, tmp_path, how, *arguments, call=call)
    sent = {place(span) for span in recording.spans("enqueue orders")}
    found = spans(tmp_path)
    process = {ids(span): (file, span) for file, span in found["process orders"]}
    assert {parent_of(span) for _, span in process.values()} == sent
    assert len(process) == 4
    assert sorted(parent_of(span) for _, span in found["work"]) == sorted(process)
    for file, span in found["work"]:
        assert file == process[parent_of(span)][0]
    links = [
        (int(link["context"]["trace_id"], 16), int(link["context"]["span_id"], 16))
        for _, span in found.get("receive orders", [])
        for link in span["links"]
    ]
    assert set(links) == (sent if how == "start" else set())  # the module is not imported in the worker itself
    in_children = "0" not in arguments
    received_in = {file for file, _ in found.get("receive orders", [])}
    assert received_in.isdisjoint(file for file, _ in process.values()) is (in_children or not received_in)
