"""The transport as kombu uses it: routing, priorities, settling, prefetch, arguments, names, URLs, forks."""

import logging
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import msgpack
import pytest
import redis
from celery.worker.consumer.connection import Connection as StartConnection
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.exceptions import ChannelError
from redis.exceptions import NoPermissionError

from rqttl import Broker, InvalidInput, Message, QueueFull, QueueMismatch
from rqttl.celery.translation import LEVELS, _usual, escape
from rqttl.protocol.keys import Keyspace
from rqttl.protocol.roles import rules
from tests.servers import Server
from tests.waiting import until

Connect = Callable[..., Any]
WHEN = datetime(2026, 1, 2, tzinfo=timezone.utc)
ROUTES = "rqttl:routes{rqttl}"
PLAIN = Queue("q", Exchange("x"), "k")


def take(channel: Any, queues: Any, number: int, *, ack: bool = True, **options: Any) -> list[Any]:
    """The next messages of queues."""
    taken: list[Any] = []
    with Consumer(channel, queues, on_message=taken.append, **options):
        while len(taken) < number:
            channel.connection.client.drain_events(timeout=20)
        for message in taken if ack and not options.get("no_ack") else ():
            message.ack()
    return taken


@pytest.fixture
def channel(connect: Connect) -> Any:
    """A channel on which the queue `q` is declared, and bound."""
    made = connect().channel()
    PLAIN(made).declare()
    return made


def send(channel: Any, *sent: Any, **options: Any) -> None:
    """Send to the queue `q`, or as the options say."""
    for body in sent:
        Producer(channel).publish(body, **{"routing_key": "q", **options})


def bodies(messages: list[Any]) -> list[Any]:
    return [message.decode() for message in messages]


# Routing


@pytest.mark.parametrize(
    "kind, bound, key, reached",
    [
        ("direct", {"a": "k", "b": "k", "c": "other"}, "k", ["a", "b"]),
        ("fanout", {"a": "", "b": "any"}, "k", ["a", "b"]),
        ("topic", {"a": "stock.*", "b": "stock.#", "c": "*.eu", "d": "#"}, "stock.us", ["a", "b", "d"]),
        ("topic", {"a": "stock.us", "b": "stock.#", "c": "#.eu"}, "stock.us.eu", ["b", "c"]),
        ("direct", {"a": "k"}, "unknown", []),
    ],
)
def test_an_exchange_sends_to_the_queues_that_are_bound(
    connect: Connect, kind: str, bound: dict[str, str], key: str, reached: list[str]
) -> None:
    exchange, channel = Exchange("x", kind), connect().channel()
    queues = {name: Queue(name, exchange, routing_key)(channel) for name, routing_key in bound.items()}
    for queue in queues.values():
        queue.declare()

    Producer(connect().channel(), exchange).publish({"a": 1}, routing_key=key, headers={"when": WHEN})

    assert [name for name in queues if channel._size(name)] == reached
    for name in reached:
        [message] = take(channel, queues[name], 1)
        assert (message.decode(), message.headers) == ({"a": 1}, {"when": WHEN})
        assert message.delivery_info == {"exchange": "x", "routing_key": key, "redelivered": False}


@pytest.mark.parametrize("kind", ["fanout", "topic"])
def test_a_queue_that_is_bound_now_gets_what_is_sent_now(connect: Connect, kind: str) -> None:
    exchange, key = Exchange("x", kind), "k"
    sender, channel = Producer(connect().channel(), exchange), connect().channel()
    for number, name in enumerate(("first", "second")):
        Queue(name, exchange, key)(channel).declare()
        sender.publish(number, routing_key=key)

    assert [channel._size(name) for name in ("first", "second")] == [2, 1]


def test_a_direct_exchange_remembers_matches_and_looks_again_without_one(connect: Connect, client: redis.Redis) -> None:
    sender, channel = Producer(connect().channel(), Exchange("x")), connect().channel()
    sender.publish(0, routing_key="k")
    PLAIN(channel).declare()
    sender.publish(1, routing_key="k")
    assert channel._size("q") == 1

    before = client.info("commandstats")["cmdstat_zrangebylex"]["calls"]
    for number in range(5):
        sender.publish(number, routing_key="k")
    assert client.info("commandstats")["cmdstat_zrangebylex"]["calls"] == before

    channel.queue_delete("q")
    Queue("new", Exchange("x"), "k")(channel).declare()
    sender.publish(6, routing_key="k")  # it meets the queue that is gone
    assert channel._size("new") == 1


def test_a_binding_of_a_queue_that_ended_goes_in_silence(
    connect: Connect, client: redis.Redis, looker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    exchange, channel = Exchange("x", "fanout"), connect().channel()
    for name in ("reply", "stays"):
        Queue(name, exchange, auto_delete=name == "reply")(channel).declare()
    looker.queue("reply").delete()

    Producer(connect().channel(), exchange).publish(1)

    assert client.zrange(ROUTES, 0, -1) == [b"x\0stays\0"]
    assert looker.queue("stays").stats().ready == 1
    assert caplog.messages == []


def test_a_thousand_reply_queues_come_and_go_and_leave_no_binding(connect: Connect, client: redis.Redis) -> None:
    channel, exchange = connect().channel(), Exchange("reply")
    exchange(channel).declare()
    for number in range(1_000):
        channel.queue_declare(f"{number}.reply", auto_delete=True, arguments={"x-expires": 1 if number % 2 else 60_000})
        channel.queue_bind(f"{number}.reply", "reply", f"{number}")
        if number % 2 == 0:
            channel.after_reply_message_received(f"{number}.reply")
    Queue("last", exchange, "last")(channel).declare()

    def only_last() -> bool:
        channel.queue_bind("last", "reply", os.urandom(8).hex())
        return all(b"\0last\0" in route for route in client.zrange(ROUTES, 0, -1))

    until(only_last)


def test_what_an_operator_deletes_is_made_again_by_those_who_declared_it(channel: Any, looker: Broker) -> None:
    looker.queue("q").delete()
    send(channel, 1)
    send(channel, 2, exchange="x", routing_key="k")
    assert bodies(take(channel, PLAIN, 2)) == [1, 2]


def test_unbinding_and_deleting_an_exchange_act_for_everybody(
    connect: Connect, channel: Any, client: redis.Redis
) -> None:
    Queue("other", Exchange("x"), "k")(channel).declare()
    channel.queue_unbind("q", "x", "k")
    Producer(connect().channel(), Exchange("x")).publish(1, routing_key="k")
    assert [channel._size(name) for name in ("q", "other")] == [0, 1]
    channel.exchange_delete("x")
    assert client.zrange(ROUTES, 0, -1) == []


# Delays, deadlines, priorities


def test_messages_of_higher_priority_come_first(connect: Connect, looker: Broker) -> None:
    queue, channel = Queue("q", max_priority=10), connect().channel()
    queue(channel).declare()
    for sender in (channel, connect().channel()):  # one that declared it, and one that did not
        for priority in (None, 2, 3, 5, 6, 9, 0, 255):
            Producer(sender).publish(priority, routing_key="q", priority=priority)
    other = connect().channel()
    order = bodies(take(other, Queue("q", no_declare=True), 16))

    assert sorted(looker.queues()) == ["q", *(f"q/p{level}" for level in sorted(LEVELS))]
    assert order == [9, 255, 9, 255, 6, 6, 3, 5, 3, 5, None, 2, 0, None, 2, 0]
    assert other._purge("q") == 0


def task(**headers: Any) -> dict[str, Any]:
    return {"task": "t", "id": "1", "root_id": "1", **headers}


def test_a_task_arrives_at_its_eta_and_its_deadline_is_a_time(channel: Any, looker: Broker) -> None:
    now = datetime.now(timezone.utc)
    late, naive = now + timedelta(hours=1), (now + timedelta(hours=2)).replace(tzinfo=None)
    sent = [
        task(eta=late.isoformat(), expires=(late + timedelta(minutes=1)).isoformat()),
        task(eta=naive.isoformat()),
        task(expires=(now + timedelta(hours=3)).isoformat()),
    ]
    for headers in sent:
        send(channel, [], headers=headers)
    send(channel, [], expiration=3600)
    send(channel, [], headers={"eta": "noon"})  # no task: it means nothing to kombu

    first, second = looker.queue("q").peek(state="scheduled")
    assert (first.until, first.expires_at) == (trimmed(late), trimmed(late + timedelta(minutes=1)))
    assert second.until == trimmed(naive.replace(tzinfo=timezone.utc))
    third, fourth, fifth = looker.queue("q").peek()
    assert third.expires_at == trimmed(now + timedelta(hours=3))
    assert fourth.expires_at is not None
    assert now < fourth.expires_at
    assert fifth.expires_at is None


def test_an_expired_task_that_is_redriven_has_no_deadline(connect: Connect, looker: Broker) -> None:
    channel = connect().channel()
    PLAIN(channel).declare()
    soon = datetime.now(timezone.utc) + timedelta(seconds=0.1)
    Producer(channel).publish([], routing_key="q", headers=task(expires=soon.isoformat()))
    until(lambda: looker.queue("q").stats().deaths["expired"] == 1)
    looker.queue("q/dead").redrive()
    [message] = take(channel, PLAIN, 1)
    assert message.headers["expires"] is None


def trimmed(time: datetime) -> datetime:
    return time.replace(microsecond=time.microsecond // 1000 * 1000)


# Settling and prefetch


def test_settled_messages_go_where_they_should(connect: Connect, looker: Broker) -> None:
    channel = connect(queue_options={"max_deliveries": 2}).channel()
    PLAIN(channel).declare()
    send(channel, 0, 1, 2)
    acked, rejected, returned = take(channel, PLAIN, 3, ack=False)
    acked.ack()
    rejected.reject()
    returned.requeue()
    [again] = take(channel, PLAIN, 1, ack=False)
    assert (again.decode(), again.delivery_info["redelivered"]) == (2, True)
    again.requeue()  # the second failure of two

    until(lambda: looker.queue("q").stats().acked == 1)
    dead = looker.queue("q/dead").peek()
    assert [(view.body, view.deaths[0].reason) for view in dead] == [(b"1", "rejected"), (b"2", "delivery_limit")]


def test_a_channel_that_closes_gives_back_what_it_has_as_no_failure(connect: Connect, looker: Broker) -> None:
    connection = connect(queue_options={"max_deliveries": 1})
    channel = connection.channel()
    PLAIN(channel).declare()
    send(channel, *range(5))
    channel.basic_qos(0, 4, False)
    first, _ = take(channel, PLAIN, 2, ack=False)
    first.ack()
    channel.close()

    assert [(view.body, view.delivery_count) for view in looker.queue("q").peek()] == [
        (b"%d" % number, 0) for number in (1, 2, 3, 4)
    ]
    assert looker.queue("q").stats().leased == 0


def test_no_more_than_the_prefetch_count_is_unsettled_while_it_changes(channel: Any, looker: Broker) -> None:
    total = 10_000
    send(channel, 0)
    [view] = looker.queue("q").peek()
    same = Message(view.body, headers=view.headers, content_type="application/json")
    looker.queue("q").enqueue_many([same] * (total - 1))
    held: list[Any] = []
    with Consumer(channel, [PLAIN], on_message=held.append):
        for limit in [3, 7, 9, 2, 50, 1] * 4:
            for message in held:
                message.ack()
            held.clear()
            channel.basic_qos(0, limit, False)
            for _ in range(total // 24):
                if len(held) == limit:
                    held.pop(0).ack()
                channel.connection.client.drain_events(timeout=20)
                assert len(held) <= limit
                assert len(channel._deliveries) <= 50
            if limit == 50:
                assert len(held) > 9
        for message in held:
            message.ack()


def test_a_cancelled_consumer_keeps_its_leases_and_the_limit_holds_beside_the_new_one(
    connect: Connect, looker: Broker
) -> None:
    channel = connect(lease="1s").channel()
    for name in ("q", "other"):
        Queue(name)(channel).declare()
        send(channel, *range(4), routing_key=name)
    channel.basic_qos(0, 3, False)
    held: list[Any] = []
    consumer = Consumer(channel, [Queue("q")], on_message=held.append)
    consumer.consume()
    while len(held) < 2:
        channel.connection.client.drain_events(timeout=20)
    consumer.add_queue(Queue("other"))
    consumer.consume()  # a new pump
    while len(held) < 3:
        channel.connection.client.drain_events(timeout=20)
    with pytest.raises(socket.timeout):
        channel.connection.client.drain_events(timeout=2.5)  # two lengths of a lease
    leased = {name: looker.queue(name).stats() for name in ("q", "other")}
    assert sum(stats.leased for stats in leased.values()) == 3
    consumer.cancel()
    for message in held:
        message.ack()
    until(lambda: sum(looker.queue(name).stats().acked for name in leased) == 3)


def test_messages_of_no_ack_consumers_are_done_when_they_are_handed_out(channel: Any, looker: Broker) -> None:
    channel.basic_qos(0, 1, False)
    send(channel, 0, 1, 2)
    assert bodies(take(channel, PLAIN, 3, no_ack=True)) == [0, 1, 2]
    until(lambda: looker.queue("q").stats().acked == 3)


def test_a_message_is_taken_by_hand(connect: Connect, looker: Broker) -> None:
    channel = connect().channel()
    assert channel.basic_get("q") is None
    PLAIN(channel).declare()
    assert channel.basic_get("q") is None
    send(channel, 1)
    looker.queue("q").enqueue(b"not of kombu")
    send(channel, 2)
    assert [channel.basic_get("q", no_ack=True).decode() for _ in range(2)] == [1, 2]
    assert looker.queue("q").stats().leased == 0


# Broken envelopes

PLAIN_FIELDS: list[Any] = [False, "utf-8", "x", "k", {}, {}]
BROKEN_TASKS: list[dict[str, Any]] = [
    *({"id": value} for value in (None, 1, b"1", ("a",))),
    *({"id": "1", name: 1} for name in ("eta", "expires", "group", "parent_id", "root_id", "stamps", "timelimit")),
    *({"id": "1", name: "noon"} for name in ("eta", "expires", "retries", "stamps", "timelimit")),
    *({"id": "1", "timelimit": [1] * length} for length in (0, 1, 3)),
    *({"id": "1", "stamped_headers": names} for names in (1, "x", [None])),
]


def replaced(place: int, value: object) -> bytes:
    return bytes(msgpack.packb([*PLAIN_FIELDS[:place], value, *PLAIN_FIELDS[place + 1 :]]))


BROKEN: list[dict[str, Any]] = [
    *({"kombu": value} for value in ("text", 1, None, b"", b"\xc1", b"\x91" * 2000, b"\xdd\xff\xff\xff\xff")),
    *({"kombu": msgpack.packb(value)} for value in (1, "x", None, {"a": 1}, (), [1, 2], [*PLAIN_FIELDS, 7])),
    *({"kombu": replaced(place, value)} for place, value in ((1, 1), (2, []), (3, {}), (4, None), (4, "ab"), (5, 5))),
    *({"kombu": replaced(4, {"a": msgpack.ExtType(code, data)})} for code, data in ((2, b""), (1, b"{"), (1, b"\xff"))),
    *({"kombu": replaced(4, headers), "task": "t"} for headers in BROKEN_TASKS),
    {"kombu": replaced(4, {"id": "1"}), "task": b"t"},
    {},
]


def test_broken_envelopes_are_dead_letters_with_the_reason(channel: Any, looker: Broker) -> None:
    looker.queue("q").enqueue_many([Message(b"x", headers=headers) for headers in BROKEN])
    send(channel, "good")

    assert bodies(take(channel, PLAIN, 1)) == ["good"]
    reasons = [view.deaths[0].description for view in looker.queue("q/dead").peek(100)]
    assert len(reasons) == len(BROKEN) >= 40
    assert all(reasons)


def test_what_is_packed_comes_out_again(channel: Any) -> None:
    usual = _usual("1")
    values = {"uuid": UUID(int=1), "decimal": Decimal("1.5"), 5: b"x"}
    odd = {"stamps": {"a": [1]}, "timelimit": [3, None], "retries": 2, **values}
    plain: dict[Any, Any] = {**usual, "task": "t"}
    for headers in (plain, {**plain, **odd}, {"task": "t", "id": "1"}, odd, {"task": 5}):
        send(channel, b"\0", headers=dict(headers), content_type="x/y", correlation_id="1")
        [message] = take(channel, PLAIN, 1)
        assert message.headers == headers
        assert (message.body, message.content_type, message.content_encoding) == (b"\0", "x/y", "binary")
        assert message.properties["correlation_id"] == "1"


# Declarations


DEAD = {"dead_letter": "q/dead", "max_deliveries": 20}


@pytest.mark.parametrize(
    "declared, options",
    [
        ({"message_ttl": 1.5, "expires": 60}, {**DEAD, "message_ttl": 1500, "expires": 60_000}),
        ({"max_length": 3, "max_length_bytes": 999}, {**DEAD, "max_length": 3, "max_length_bytes": 999}),
        ({"auto_delete": True}, {"expires": 60_000}),
        ({"exclusive": True}, {"expires": 60_000}),
        ({"durable": False}, {**DEAD, "lease": 9000}),
        ({"queue_arguments": {"x-message-ttl": 0}}, {**DEAD, "message_ttl": 0}),
        ({"queue_arguments": {"x-message-ttl": 1500, "x-expires": 9}}, {**DEAD, "message_ttl": 1500, "expires": 9}),
        (
            {"queue_arguments": {"x-max-length": 5, "x-max-length-bytes": 7, "x-overflow": "reject-publish"}},
            {**DEAD, "max_length": 5, "max_length_bytes": 7, "overflow": "reject-publish"},
        ),
        ({"queue_arguments": {"x-dead-letter-routing-key": "dead@x"}}, {**DEAD, "dead_letter": "dead-x40x"}),
        ({"queue_arguments": {"x-delivery-limit": 2}}, {**DEAD, "max_deliveries": 3}),
        ({"queue_arguments": {"x-queue-type": "quorum", "x-single-active-consumer": False}}, DEAD),
    ],
)
def test_a_declaration_becomes_options(
    connect: Connect, looker: Broker, declared: dict[str, Any], options: dict[str, object]
) -> None:
    usual = {"lease": "9s"} if "durable" in declared else {}
    Queue("q", **declared)(connect(queue_options=usual).channel()).declare()

    assert looker.queue("q").options().non_default == options


REFUSED: list[tuple[Callable[[Any], object], str]] = [
    (lambda c: Queue("q", queue_arguments={"x-single-active-consumer": True})(c).declare(), "x-single-active-consumer"),
    (lambda c: Queue("q", queue_arguments={"x-dead-letter-exchange": "dlx"})(c).declare(), "x-dead-letter-routing-key"),
    (lambda c: Exchange("x", "headers")(c).declare(), "exchange: type: expected one of direct, topic, fanout"),
    (lambda c: Exchange("x")(c).bind_to("y"), "exchange_bind"),
    (lambda c: Queue("q" * 129)(c).declare(), "1 to 128"),
    (lambda c: Queue("q", queue_arguments={"x-max-length": -1})(c).declare(), "max_length"),
]


@pytest.mark.parametrize("call, reason", REFUSED)
def test_what_rqttl_does_not_keep_is_refused_with_the_reason(
    connect: Connect, call: Callable[[Any], object], reason: str
) -> None:
    with pytest.raises((InvalidInput, NotImplementedError), match=reason):
        call(connect().channel())


def test_an_argument_without_effect_and_green_threads_are_warned_of(
    connect: Connect, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    Queue("q", queue_arguments={"x-unheard-of": 1})(connect().channel()).declare()
    assert caplog.messages == ["queue q: rqttl does nothing for the argument x-unheard-of"]

    class Monkey:
        is_module_patched = staticmethod(lambda name: True)

    monkeypatch.setitem(sys.modules, "gevent.monkey", Monkey)
    with pytest.warns(UserWarning, match="gevent and eventlet"):
        connect().transport  # noqa: B018


@pytest.mark.parametrize("how, length, warned", [("keep", 5, True), ("update", 7, False), ("raise", 5, False)])
def test_a_rolling_deploy_with_other_arguments(
    connect: Connect, looker: Broker, caplog: pytest.LogCaptureFixture, how: str, length: int, warned: bool
) -> None:
    name = f"q-{how}"
    Queue(name, max_length=5)(connect().channel()).declare()
    for _ in range(2):
        try:
            Queue(name, max_length=7)(connect(on_mismatch=how).channel()).declare()
        except QueueMismatch:
            assert how == "raise"
        else:
            assert how != "raise"

    assert looker.queue(name).options()["max_length"] == length
    assert len([text for text in caplog.messages if "on_mismatch" in text]) == warned


def test_a_passive_declaration_changes_nothing(connect: Connect, looker: Broker) -> None:
    channel = connect().channel()
    with pytest.raises(ChannelError, match="NOT_FOUND"):
        channel.queue_declare("q", passive=True)
    Queue("q", max_length=3)(channel).declare()
    send(channel, 1)
    assert channel.queue_declare("q", passive=True).message_count == 1
    assert looker.queue("q").options()["max_length"] == 3


@pytest.mark.parametrize("name", ["celery@host.de", "größe", "_x", "a b", "{x", "x-x40y", "celery"])
def test_names_that_rqttl_refuses_are_escaped(connect: Connect, looker: Broker, name: str) -> None:
    channel = connect().channel()
    queue = Queue(name, Exchange("x", "fanout"))
    queue(channel).declare()
    Producer(channel, queue.exchange).publish(1)
    assert bodies(take(channel, queue, 1)) == [1]
    assert looker.queues() == [escape(name)]
    channel.queue_delete(name)
    assert looker.queues() == []


def test_a_full_queue_refuses_the_publisher(connect: Connect) -> None:
    channel = connect().channel()
    Queue("q", max_length=1, queue_arguments={"x-overflow": "reject-publish"})(channel).declare()
    send(channel, 1)
    with pytest.raises(QueueFull):
        send(channel, 2)


# URLs and secrets


@pytest.mark.parametrize(
    "url, shown",
    [
        ("redis://:hunter2@h:1/2", "redis://:**@h:1/2"),
        ("redis://me:hunter2@h", "redis://me:**@h"),
        (
            "rqttl+redis+sentinel://me:hunter2@h:1,i:2/s?sentinel_password=hunter2",
            "rqttl+redis+sentinel://me:**@h:1,i:2/s?sentinel_password=**",
        ),
        ("rqttl://h/0?password=hunter2&db=1", "redis://h/0?password=**&db=1"),
        ("redis://me:hunter2/@h", "redis://me:**@h"),
        ("unix:///tmp/s", "unix:///tmp/s"),
    ],
)
def test_no_text_has_a_password(url: str, shown: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    own = None if url.startswith("rqttl") else "rqttl.celery:Transport"
    connection = Connection(url, transport=own, connect_timeout=1)

    assert connection.as_uri() == shown
    assert connection.as_uri(include_password=True).count("hunter2") == url.count("hunter2")
    if "sentinel" not in url and "unix" not in url:
        with pytest.raises(Exception) as error:  # noqa: PT011
            connection.ensure_connection(max_retries=1, interval_start=0)
        assert "hunter2" not in f"{error.value!r} {caplog.text} {connection!r}"
    connection.release()


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hunter2@h:1/2",
        "rqttl://h:1/0?username=me&password=hunter2",
        "redis-sentinel://me:hunter2@h:1,i:2/s?sentinel_password=hunter2",
    ],
)
def test_what_celery_shows_of_a_connection_has_no_password(app_of: Callable[[str], Any], url: str) -> None:
    app = app_of(url)
    with app.connection() as connection, connection.clone() as clone, pickle.loads(pickle.dumps(clone)) as again:  # noqa: S301
        for each in (connection, clone, again):
            step = SimpleNamespace(connection=each)
            shown = [each.as_uri(), each, StartConnection.info(None, step), {**each.info(), "password": None}]
            assert "hunter2" not in str(shown)
            assert each.as_uri(include_password=True).count("hunter2") == url.count("hunter2")
    assert "hunter2" not in app.bugreport()


def test_a_connection_may_be_given_in_parts_and_with_tls() -> None:
    from rqttl.celery.transport import _url

    parts = Connection("h", userid="u", password="p/@", port=1, virtual_host="2", transport="rqttl.celery:Transport")
    assert _url(parts) == "redis://u:p%2F%40@h:1/2"
    options = {"ssl_cert_reqs": __import__("ssl").CERT_NONE, "ssl_ca_certs": "/ca"}
    secure = Connection("redis://h/0", ssl=options, transport="rqttl.celery:Transport")
    assert _url(secure) == "rediss://h/0?ssl_cert_reqs=none&ssl_ca_certs=%2Fca"


@pytest.mark.parametrize("kind", ["cluster", "sentinel"])
def test_strings_alone_name_a_cluster_and_sentinels(kind: str, tmp_path: Path) -> None:
    url = f"redis-{kind}://h:1,i:2/{'main' if kind == 'sentinel' else ''}"
    settings = f"broker_transport = 'rqttl.celery:Transport'\nbroker_url = {url!r}\n"
    (tmp_path / "celeryconfig.py").write_text(settings)
    code = (
        "from celery import Celery; app = Celery(); app.config_from_object('celeryconfig');"
        "transport = app.connection_for_write().transport; print(transport.driver_name, transport.as_uri(''))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["rqttl", url.replace("-", "+", 1)]


def test_a_wrong_option_is_refused(connect: Connect) -> None:
    with pytest.raises(InvalidInput, match="on_mismatch: expected one of keep, update, raise"):
        connect(on_mismatch="ignore").channel()


# Processes and threads


def test_a_child_after_a_fork_uses_nothing_of_its_parent(channel: Any, looker: Broker) -> None:
    connection = channel.connection.client
    send(channel, "parent")
    held: list[Any] = []
    with Consumer(channel, [PLAIN], on_message=held.append):
        connection.drain_events(timeout=20)
        if (child := os.fork()) == 0:
            try:
                assert [channel._pumps, dict(channel.qos._delivered)] == [[], {}]
                send(channel, "child")
                connection.release()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        connection.drain_events(timeout=20)
        for message in held:
            message.ack()
    assert bodies(held) == ["parent", "child"]
    until(lambda: looker.queue("q").stats().acked == 2)


def test_an_error_of_the_thread_that_fetches_is_raised_and_the_next_call_goes_on(
    channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = channel.connection.client
    send(channel, 1)
    enter = connection.transport.broker.consume(["q"]).__class__.__enter__
    failures = [NoPermissionError("no rights")]

    def once(consumer: Any) -> Any:
        if failures:
            raise failures.pop()
        return enter(consumer)

    monkeypatch.setattr("rqttl.consuming.consumer.Consumer.__enter__", once)
    taken: list[Any] = []
    with Consumer(channel, [PLAIN], on_message=taken.append):
        with pytest.raises(NoPermissionError):
            connection.drain_events(timeout=20)
        connection.drain_events(timeout=20)
        taken[0].ack()
    assert isinstance(NoPermissionError(), connection.connection_errors)


def test_a_channel_that_closes_in_an_outage_tries_once(
    connect: Connect, start_server: Callable[..., Server], caplog: pytest.LogCaptureFixture
) -> None:
    server = start_server()
    channel = connect(url=server.url).channel()
    PLAIN(channel).declare()
    send(channel, *range(9))
    channel.basic_qos(0, 5, False)
    take(channel, PLAIN, 5, ack=False)
    server.kill()
    channel.close()

    assert sum("could not settle message" in text for text in caplog.messages) == 1


def test_a_program_needs_no_more_rights_than_a_producer_and_consumer(
    connect: Connect, redis_url: str, restricted: Callable[..., redis.Redis]
) -> None:
    rights, _ = rules(["producer", "consumer"], Keyspace())
    restricted("reset", "on", "nopass", "resetchannels", *rights)
    connection = connect(url=f"{redis_url}?username=half")
    channel = connection.channel()
    queue, fan = Queue("q", Exchange("x"), "k", max_priority=5), Exchange("f", "fanout")
    reply = Queue("r", fan, auto_delete=True)
    for each in (queue, reply):
        each(channel).declare()
    Producer(channel, Exchange("x")).publish(1, routing_key="k", priority=3)
    Producer(channel, fan).publish(2)

    assert sorted(bodies(take(channel, [queue, reply], 2))) == [1, 2]
    channel.after_reply_message_received("r")
    channel.close()
