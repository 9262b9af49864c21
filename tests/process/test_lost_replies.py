"""Calls that reach Redis, and whose replies do not come back."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

import rqttl
from rqttl.protocol import scripts
from rqttl.store import exchanges
from rqttl.store.driver import driver_of
from tests.contract.looks import one
from tests.drivers import broker_of, drop_connections
from tests.process.proxy import Proxy, client_of
from tests.repository import lua_files
from tests.servers import Server
from tests.waiting import PATIENCE

LOG = "rqttl:{orders}:log"
FAULTS = ("cut", "swallow")

Connect = Callable[[], rqttl.Broker]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many attempts as ever, with hardly a pause."""
    monkeypatch.setattr(exchanges, "PAUSES", (0.001, 0.001, 0.001, 0.001))


@pytest.fixture(params=["no retries", "the retries of redis-py"])
def broker(request: pytest.FixtureRequest, proxy: Proxy) -> Iterator[rqttl.Broker]:
    """A broker behind the proxy, on a client as `connect` makes it, or as people make it."""
    retry: dict[str, Any] = {"retry": Retry(NoBackoff(), 0)} if request.param == "no retries" else {}
    with rqttl.Broker(client_of(proxy, **retry)) as broker:
        yield broker


@pytest.fixture
def orders(broker: rqttl.Broker, client: redis.Redis) -> rqttl.Queue:
    """A queue whose scripts are all loaded."""
    for path in lua_files("commands"):
        client.script_load(scripts.load(path.stem).text)
    broker.declare_queue("dead")
    return broker.declare_queue("orders", dead_letter="dead")


def stored(client: Any) -> list[tuple[bytes, bytes]]:
    """The sequences and bodies in the log."""
    return [(one, body) for one, fields in client.xrange(LOG) for body in fields.values()]


def leased(orders: rqttl.Queue) -> rqttl.Delivery:
    orders.enqueue(b"x")
    return one(orders)


# Calls that must not be repeated


@pytest.mark.parametrize("fault", FAULTS)
def test_an_enqueue_is_carried_out_once_and_its_reply_does_not_answer_the_next_call(
    orders: rqttl.Queue, proxy: Proxy, fault: str
) -> None:
    before = proxy.executed
    proxy.spoil(fault)

    with pytest.raises(rqttl.OutcomeUnknown) as unknown:
        orders.enqueue(b"first")

    assert (unknown.value.queue, unknown.value.action) == ("orders", "enqueue")
    assert isinstance(unknown.value.__cause__, redis.ConnectionError | redis.TimeoutError)
    assert proxy.executed == before + 1
    receipt = orders.enqueue(b"second")
    assert [one.body for one in orders.peek()] == [b"first", b"second"]
    assert orders.peek()[1].id == receipt.id


@pytest.mark.parametrize("fault", FAULTS)
def test_batches_that_went_out_together_are_carried_out_once(
    orders: rqttl.Queue, proxy: Proxy, client: redis.Redis, fault: str
) -> None:
    bodies = [b"%d" % i for i in range(1000)]
    orders.enqueue_many(bodies)
    orders.purge()
    proxy.spoil(fault)

    with pytest.raises(rqttl.OutcomeUnknown):
        orders.enqueue_many(bodies)

    there = [body for _, body in stored(client)]
    assert there == bodies[: len(there)]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("by", ["the queue", "the call"])
def test_messages_whose_duplicates_would_be_known_are_sent_again_and_stored_once(
    orders: rqttl.Queue, proxy: Proxy, fault: str, by: str
) -> None:
    window = "1m" if by == "the call" else None
    if window is None:
        orders.update(duplicate_window="1m")
    batch = [rqttl.Message(b"%d" % i, id=str(i)) for i in range(600)]
    proxy.spoil(fault)
    orders.enqueue_many(batch, duplicate_window=window)
    assert [one.body for one in orders.peek(1000)] == [message.body for message in batch]
    proxy.spoil(fault)
    with pytest.raises(rqttl.OutcomeUnknown):
        orders.enqueue_many([*batch[:3], b"without an id"], duplicate_window=window)


@pytest.fixture
def subscribed(broker: rqttl.Broker, orders: rqttl.Queue) -> list[rqttl.Queue]:
    """Two subscriptions of the topic `news`."""
    topic = broker.declare_topic("news")
    return [topic.subscribe(name) for name in ("eu", "us")]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.spec("TE-23")
def test_copies_are_stored_once_and_sent_again_where_duplicates_would_be_known(
    broker: rqttl.Broker, subscribed: list[rqttl.Queue], proxy: Proxy, fault: str
) -> None:
    """A reply of `publish` is lost."""
    topic = broker.topic("news")
    batch = [rqttl.Message(b"%d" % i, id=str(i)) for i in range(300)]
    proxy.spoil(fault, script="publish")
    receipts = topic.enqueue_many(batch, duplicate_window="1m")
    proxy.spoil(fault, script="publish")
    with pytest.raises(rqttl.OutcomeUnknown) as unknown:
        topic.enqueue_many([rqttl.Message(b"300", id="300"), b"without an id"], duplicate_window="1m")

    assert (unknown.value.queue, unknown.value.action) == ("news", "publish")
    expected = [*(message.body for message in batch), b"300", b"without an id"]
    assert [[one.body for one in queue.peek(1000)] for queue in subscribed] == [expected] * 2
    assert [isinstance(one, rqttl.Receipt) and one.id for one in receipts] == [message.id for message in batch]
    assert topic.stats().copies == 2 * len(expected)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("queues", [100, 1], ids=["at once", "in steps"])
@pytest.mark.spec("TE-23")
def test_passing_on_is_repeated_and_happens_once(
    broker: rqttl.Broker,
    subscribed: list[rqttl.Queue],
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    queues: int,
) -> None:
    monkeypatch.setattr("rqttl.flows.topics.QUEUES", queues)
    topic, texts = broker.topic("news"), [b"%d" % i for i in range(3)]
    topic.pause()
    topic.enqueue_many(texts)
    proxy.spoil(fault, fault, script="publish")

    topic.resume()

    assert [[one.body for one in queue.peek()] for queue in subscribed] == [texts] * 2
    assert (topic.stats().ready, topic.stats().copies) == (0, 6)


@pytest.mark.usefixtures("subscribed")
@pytest.mark.parametrize("fault", FAULTS)
def test_who_unbinds_a_queue_is_told_that_it_was_bound(broker: rqttl.Broker, proxy: Proxy, fault: str) -> None:
    proxy.spoil(fault, script="update")

    assert broker.topic("news").unbind("news/eu") is True
    assert broker.topic("news").bindings().keys() == {"news/us"}


def test_messages_handed_out_for_good_may_be_lost_with_the_reply(orders: rqttl.Queue, proxy: Proxy) -> None:
    orders.enqueue(b"x")
    proxy.spoil("cut")

    with pytest.raises(rqttl.OutcomeUnknown):
        orders.receive(auto_ack=True)

    assert orders.stats().acked == 1


@pytest.mark.parametrize(
    "action, call, words",
    [
        *[(action, action, []) for action in ("purge", "delete")],
        *[("intervene", call, ["me"]) for call in ("delete_message", "expire", "dead_letter")],
        *[("cancel", "cancel", ["me"]), ("move", "move", ["me", "dead"])],
    ],
)
def test_a_call_that_removes_messages_is_not_repeated(
    orders: rqttl.Queue, proxy: Proxy, action: str, call: str, words: list[str]
) -> None:
    orders.enqueue(b"x", id="me")
    proxy.spoil("cut", "cut", script=action)

    with pytest.raises(rqttl.OutcomeUnknown) as unknown:
        getattr(orders, call)(*words)

    assert unknown.value.action == action


def test_redelivering_now_and_dry_runs_are_repeated(orders: rqttl.Queue, proxy: Proxy) -> None:
    orders.enqueue(b"x", id="me", delay="1h")
    for call in (orders.expire, orders.redeliver_now):
        proxy.spoil("cut", script="intervene")
        assert call("me", dry_run=call == orders.expire) == 1
    assert orders.stats().ready == 1


# Calls that are repeated


@pytest.mark.parametrize("fault,times", [("cut", 1), ("cut", 4), ("swallow", 1)])
@pytest.mark.parametrize("settle, delay", [("ack", None), ("nack", None), ("nack", "1h"), ("reject", None)])
def test_a_settle_is_repeated_happens_once_and_our_own_success_is_not_lost_to_us(
    orders: rqttl.Queue, proxy: Proxy, fault: str, times: int, settle: str, delay: rqttl.Duration | None
) -> None:
    delivery = leased(orders)
    proxy.spoil(*[fault] * times)

    delivery.nack(delay) if settle == "nack" else getattr(delivery, settle)()

    stats, dead = orders.stats(), broker_of(orders).queue("dead").peek()
    assert (stats.acked, stats.leased) == (int(settle == "ack"), 0)
    left = [] if settle != "nack" else [("ready" if delay is None else "delayed", 1)]
    assert [(message.state, message.delivery_count) for message in orders.peek()] == left
    assert [letter.deaths[0].count for letter in dead] == [1] * (settle == "reject")


@pytest.mark.parametrize("fault", FAULTS)
def test_letters_go_back_once_and_count_as_moved(orders: rqttl.Queue, proxy: Proxy, fault: str) -> None:
    orders.enqueue_many([b"1", b"2"])
    orders.reject_many(orders.receive_many(2))
    dead = broker_of(orders).queue("dead")
    proxy.spoil(fault, script="redrive")

    told = dead.redrive_many([(letter.sequence, "orders") for letter in dead.peek()])

    assert [one.outcome for one in told] == ["moved", "moved"]
    assert [one.body for one in orders.peek()] == [b"1", b"2"]
    assert dead.stats().redriven == 2


@pytest.mark.parametrize("fault", FAULTS)
def test_a_receive_is_repeated_and_what_the_first_one_took_comes_back(
    orders: rqttl.Queue, proxy: Proxy, fault: str
) -> None:
    orders.enqueue_many([b"1", b"2", b"3"])
    proxy.spoil(fault)

    assert one(orders).body == b"2"
    assert [(one.body, one.state) for one in orders.peek()] == [(b"1", "leased"), (b"2", "leased"), (b"3", "ready")]


def test_options_and_statistics_are_simply_asked_for_again(orders: rqttl.Queue, proxy: Proxy) -> None:
    for command in ("TIME", "XLEN", "SSCAN"):
        proxy.spoil("cut", command=command)
        assert orders.options().dead_letter == "dead"
        assert broker_of(orders).stats(sweep=False)["orders"].ready == 0
    proxy.spoil("cut")
    assert orders.stats().ready == 0
    proxy.spoil("cut")
    orders.update(max_length=3)
    proxy.spoil("cut")
    broker_of(orders).declare_queue("orders", dead_letter="dead", max_length=3)


def test_after_the_last_attempt_the_error_of_redis_py_passes_unchanged(orders: rqttl.Queue, proxy: Proxy) -> None:
    before = proxy.executed
    proxy.spoil(*["cut"] * 5)

    with pytest.raises(redis.ConnectionError):
        orders.touch()

    assert proxy.executed == before + 5


# Calls that never reach Redis


@pytest.mark.parametrize("broker", ["no retries"], indirect=True)  # redis-py's own take 20 seconds
def test_the_error_of_redis_py_passes_unchanged_and_nothing_is_sent_if_no_server_listens(
    orders: rqttl.Queue, proxy: Proxy, client: redis.Redis
) -> None:
    proxy.stop_listening()
    drop_connections(driver_of(orders))
    executed = proxy.executed

    with pytest.raises(redis.ConnectionError) as refused:
        orders.enqueue(b"x")

    assert type(refused.value) is redis.ConnectionError
    assert proxy.executed == executed
    assert client.xlen(LOG) == 0


def test_a_connection_that_fails_is_tried_again_even_for_an_enqueue(
    orders: rqttl.Queue, proxy: Proxy, client: redis.Redis
) -> None:
    drop_connections(driver_of(orders))
    proxy.spoil("refuse", "refuse")

    orders.enqueue(b"x")

    assert client.xlen(LOG) == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"-LOADING Redis is loading the dataset in memory\r\n",
        b"-READONLY You can't write against a read only replica.\r\n",
        b"-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.\r\n",
        b"-MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.\r\n",
        b"-NOREPLICAS Not enough good replicas to write.\r\n",
        b"-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.\r\n",
        b"-ERR Error running script (call to f_1): @user_script: 1: -NOREPLICAS Not enough good replicas to write.\r\n",
        b"-ERR Error running script (call to f_1): @user_script:1: -READONLY You can't write against a read only\r\n",
    ],
)
def test_a_server_that_cannot_serve_now_is_asked_again(
    orders: rqttl.Queue, proxy: Proxy, client: redis.Redis, answer: bytes
) -> None:
    proxy.spoil(answer, answer)

    orders.enqueue(b"x")

    assert client.xlen(LOG) == 1


def test_an_error_among_replies_that_come_together_leaves_no_reply_behind(
    orders: rqttl.Queue, full_memory: Callable[..., Any]
) -> None:
    bodies = [b"x"] * 1000
    orders.enqueue_many(bodies)
    with full_memory():
        with pytest.raises(redis.ResponseError):
            orders.enqueue_many(bodies)
        assert orders.options().dead_letter == "dead"
    assert orders.stats().ready == 1000


@pytest.fixture
def behind_proxy(proxy: Proxy) -> Iterator[rqttl.Queue]:
    """A queue behind the proxy."""
    with rqttl.connect(f"redis://127.0.0.1:{proxy.port}") as broker:
        yield broker.declare_queue("orders", dead_letter="dead")


@pytest.fixture
def late(behind_proxy: rqttl.Queue, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[rqttl.Delivery]:
    """A delivery whose lease is over; before a call is repeated, another consumer handles the message."""
    behind_proxy.enqueue(b"x")
    delivery = one(behind_proxy, lease="1ms")
    assert any(swept.reclaimed for _ in range(100_000) for swept in behind_proxy.sweep())
    with rqttl.connect(redis_url) as other:

        def handle(pause: float) -> None:
            one(other.queue("orders")).ack()

        monkeypatch.setattr(time, "sleep", handle)
        yield delivery


@pytest.mark.parametrize("settle", ["ack", "nack", "reject"])
def test_a_repeated_settle_does_not_claim_the_work_of_another_consumer(
    behind_proxy: rqttl.Queue, proxy: Proxy, late: rqttl.Delivery, settle: str
) -> None:
    proxy.spoil("cut")

    with pytest.raises(rqttl.OutcomeUnknown, match=late.id) as unknown:
        getattr(late, settle)()

    assert (unknown.value.queue, unknown.value.action, unknown.value.ids) == ("orders", settle, (late.id,))
    assert late.settled == "outcome unknown"
    with pytest.raises(rqttl.AlreadySettled, match="outcome unknown"):
        late.ack()


@pytest.mark.parametrize("action", ["enqueue", "schedule", "reschedule", "ack", "nack", "reject"])
@pytest.mark.parametrize("last", [b"", b"-OOM command not allowed when used memory > 'maxmemory'.\r\n"])
def test_after_the_last_attempt_the_outcome_of_a_call_that_may_have_been_carried_out_is_unknown(
    proxy: Proxy, action: str, last: bytes
) -> None:
    with rqttl.connect(f"redis://127.0.0.1:{proxy.port}") as broker:
        queue = broker.declare_queue("orders", duplicate_window="1m")
        queue.enqueue(b"x")
        delivery = queue.receive()
        senders: dict[str, Callable[[], object]] = {
            "enqueue": lambda: queue.enqueue(b"x", id="x"),
            "schedule": lambda: queue.enqueue(b"x", id="x", delay="1h"),
            "reschedule": lambda: queue.reschedule("x", delay="1h"),
        }
        call = senders.get(action) or getattr(delivery, action)
        proxy.spoil(*["cut"] * (1 if last else 5), *[last] * bool(last))

        with pytest.raises(rqttl.OutcomeUnknown) as unknown:
            call()

        assert unknown.value.action == action
        assert isinstance(unknown.value.__cause__, redis.ResponseError if last else redis.ConnectionError)


def test_a_call_whose_reply_was_lost_before_its_script_was_forgotten_is_not_told_as_not_carried_out(
    proxy: Proxy,
) -> None:
    with rqttl.connect(f"redis://127.0.0.1:{proxy.port}") as broker:
        queue = broker.declare_queue("orders")
        queue.enqueue_many([b"x", b"y"])
        first, delivery = queue.receive_many(2)
        first.ack()  # Redis knows the script now
        gone = b"-NOSCRIPT No matching script. Please use EVAL.\r\n"
        loaded = b"$40\r\n" + b"0" * 40 + b"\r\n" + gone
        proxy.spoil("cut", gone, *[loaded] * 5, script="ack")

        with pytest.raises(rqttl.OutcomeUnknown) as unknown:
            delivery.ack()

        assert (unknown.value.action, queue.stats().acked) == ("ack", 2)
        assert isinstance(unknown.value.__cause__, rqttl.ScriptsForgotten)


def test_batches_that_went_out_together_keep_their_order_where_the_script_is_gone(
    orders: rqttl.Queue, client: redis.Redis
) -> None:
    bodies = [b"%d" % i for i in range(1500)]
    orders.enqueue_many(bodies)
    orders.purge()
    client.script_flush()

    receipts = orders.enqueue_many(bodies)

    assert [one.body for one in orders.peek(2000)] == bodies
    assert [one.id for one in receipts if isinstance(one, rqttl.Receipt)] == [one.id for one in orders.peek(2000)]


def test_a_script_that_is_gone_after_each_loading_is_a_typed_error(proxy: Proxy) -> None:
    with redis.Redis("127.0.0.1", proxy.port, socket_timeout=PATIENCE) as client, rqttl.Broker(client) as broker:
        queue = broker.declare_queue("orders")
        gone = b"-NOSCRIPT No matching script. Please use EVAL.\r\n"
        proxy.spoil(gone, *[b"$40\r\n" + b"0" * 40 + b"\r\n" + gone] * 5, script="touch")

        with pytest.raises(rqttl.RqttlError, match="touch: Redis forgot it again and again") as forgotten:
            queue.touch()

        assert forgotten.value.code == "scripts_forgotten"


def test_a_user_who_may_make_no_transaction_sends_batches_all_the_same(
    orders: rqttl.Queue, restricted: Callable[..., redis.Redis]
) -> None:
    bodies = [b"%d" % i for i in range(1000)]

    with rqttl.Broker(restricted("-multi", "-exec")) as broker:
        broker.queue("orders").enqueue_many(bodies)

    assert [one.body for one in orders.peek(2000)] == bodies


def test_a_message_can_be_acked_under_full_memory_although_its_script_is_forgotten(
    start_server: Callable[..., Server],
) -> None:
    server = start_server()
    with server.client() as client, rqttl.Broker(client) as broker:
        queue = broker.declare_queue("orders")
        queue.enqueue(b"x")
        delivery = one(queue)
        client.config_set("maxmemory", 1)
        client.script_flush()

        delivery.ack()

        assert queue.stats().acked == 1
