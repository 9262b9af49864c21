"""The rules of `rqttl acl generate`: a role may make its own calls; others are refused before they change anything."""

import os
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import partial

import pytest
import redis
from redis.exceptions import NoPermissionError

from rqttl import Broker, Message, results
from rqttl.broker import wipe
from rqttl.doctor import examine
from rqttl.flows import routes
from rqttl.flows.routes import Route
from rqttl.inspector.dead_letters import DeadLetterFilter, DeadLetters
from rqttl.metrics import collector
from rqttl.protocol import scripts
from rqttl.protocol.keys import Keyspace
from rqttl.protocol.roles import ROLES, rules
from rqttl.reaper import Reaper
from rqttl.store.driver import driver_of
from tests.cluster_servers import ClusterServers
from tests.conftest import CLUSTER
from tests.contract.looks import bodies
from tests.contract.test_passing_on import dies
from tests.drivers import redis_of
from tests.lua.states import everything
from tests.servers import Server
from tests.waiting import until

pytestmark = pytest.mark.once

As = Callable[[str], Broker]
REDIS = "6.2" if os.environ.get("RQTTL_TEST_REDIS") == "6.2" else "7.0"


@pytest.fixture
def role(restricted: Callable[..., redis.Redis]) -> As:
    """`role("producer")`: a broker as a user with this role."""

    def made(name: str) -> Broker:
        rights, _ = rules([name], Keyspace(), redis=REDIS)
        return Broker(restricted("reset", "on", "nopass", "resetchannels", *rights))

    return made


def refused(client: redis.Redis, call: Callable[[], object]) -> None:
    before = everything(client)
    with pytest.raises(NoPermissionError):
        call()
    assert everything(client) == before


def test_a_producer_declares_and_sends(broker: Broker, role: As) -> None:
    broker.set_policy("p", "limited", {"max_length": 2})
    producer = role("producer")
    queue = producer.declare_queue(
        "orders", dead_letter="orders/dead", duplicate_window="1h", overflow="reject-publish"
    )

    queue.enqueue(b"1", id="a", ttl="1h")
    queue.enqueue(b"1", id="a")
    queue.enqueue_many([b"2", Message(b"3", ttl="1h")])
    producer.declare_queue("limited").enqueue_many([b"x"] * 5)
    producer.declare_queue("orders", dead_letter="orders/dead", duplicate_window="1h", overflow="reject-publish")
    for delay in ("1h", "2h", "0s"):
        queue.enqueue(b"later", id=delay, delay=delay)
    assert queue.reschedule("1h", delay="3h") == queue.cancel("2h") == 1
    assert [view.id for view in queue.scheduled(after=queue.scheduled()[0].sequence)] == ["1h"]
    assert broker.queue("orders").stats(sweep=False).ready == 3
    assert broker.queue("orders").stats().ready == 4
    assert broker.queue("limited").stats().ready == 2


@pytest.mark.parametrize("name", ["producer", "consumer"])
def test_a_route_is_made_and_looked_up_and_goes_with_its_queue(broker: Broker, role: As, name: str) -> None:
    driver, keys = driver_of(role(name)), Keyspace()
    made, gone = [Route("x", broker.declare_queue(queue).name, "") for queue in ("made", "gone")]
    driver.perform(routes.add(keys, gone))
    broker.queue("gone").delete()
    driver.perform(routes.add(keys, made))

    assert driver.perform(routes.read(keys, "x")) == [made]


@pytest.mark.parametrize("name", ["consumer", "admin"])
def test_a_consumer_receives_and_settles(broker: Broker, role: As, name: str) -> None:
    sent = broker.declare_queue("orders", dead_letter="orders/dead", max_deliveries=2, redelivery_delay="1h")
    sent.enqueue_many([b"1", b"2", b"3", b"4", b"5", Message(b"6", ttl=0)])
    consumer = role(name)
    queue = consumer.queue("orders")

    first, second, third = queue.receive_many(3)
    first.ack()
    second.reject("no")
    third.nack()
    [fourth] = queue.receive_many(1, wait="1s")
    fourth.renew("1m")
    fourth.nack(delay="1h")
    queue.ack_many(queue.receive_many(9))
    assert queue.receive(wait="20ms") is None
    sent.enqueue(b"7")
    with queue.consume(prefetch=2) as deliveries:
        next(deliveries).ack()
    consumer.workers()
    assert broker.queue("orders/dead").stats().ready == 2  # the rejected one, and the one that expired

    later = [sent.enqueue(b"9", delay=delay).id for delay in ("1h", "2h")]
    assert [view.id for view in queue.peek(2, state="scheduled")] == later
    assert [view.id for view in queue.scheduled(after=later[0])] == later[1:]
    assert [view.body for view in queue.peek(9, state="delayed")] == [b"3", b"4"]
    assert "orders" in consumer.queues()
    sent.enqueue(b"8", delay="1ms")
    until(lambda: sent.stats(sweep=False).overdue > timedelta(milliseconds=1))
    if name == "consumer":  # without the rights of a reaper it lets no message arrive
        assert queue.receive(wait="20ms") is None
    Reaper(broker).run_once()
    assert queue.receive_many(1)[0].body == b"8"


@pytest.mark.parametrize("name", ["reaper", "admin"])
def test_a_reaper_sweeps(broker: Broker, role: As, name: str) -> None:
    broker.set_policy("p", "orders", {"max_length": 9})
    queue = broker.declare_queue("orders", dead_letter="orders/dead", duplicate_window="1ms")
    broker.declare_queue("short", expires="1ms")
    queue.enqueue_many([Message(b"x", id=str(i), ttl="1ms") for i in range(3)])
    queue.enqueue(b"y", delay="1ms")
    reaper = role(name)

    until(lambda: not Reaper(reaper).run_once().failed and broker.queues() == ["orders", "orders/dead"])
    until(lambda: not Reaper(reaper).run_once().failed and broker.queue("orders/dead").stats(sweep=False).ready == 3)
    until(lambda: not Reaper(reaper).run_once().failed and broker.queue("orders").stats(sweep=False).activated == 1)


BURY: dict[str, Callable[[Broker], object]] = {
    "producer": lambda b: b.queue("orders").enqueue(b"2", ttl=0),
    "consumer": lambda b: b.queue("orders").receive_many(1)[0].reject(),
    "reaper": lambda b: Reaper(b).run_once(),
    "admin": lambda b: b.queue("orders").update(message_ttl=0),
}


@pytest.mark.parametrize("name", BURY)
def test_who_buries_moves_letters_to_other_slots(client: redis.Redis, role: As, name: str) -> None:
    queue = Broker(client, slotted=True).declare_queue("orders", dead_letter="dead")
    queue.enqueue(b"1", ttl="1ms" if name == "reaper" else None)
    user = role(name)
    mover = user if CLUSTER else Broker(redis_of(user), slotted=True)

    until(lambda: name != "reaper" or queue.stats(sweep=False).overdue)

    BURY[name](mover)

    assert client.xlen("rqttl:{dead}:log") == 1
    assert queue.stats().outgoing == {}
    mover.declare_queue("other")


PASS_ON: dict[str, tuple[Callable[[Broker], object], list[bytes]]] = {
    "producer": (lambda b: b.queue("news").enqueue(b"3"), [b"3"]),
    "consumer": (lambda b: b.queue("orders").receive_many(1)[0].reject(), [b"dead"]),
    "reaper": (lambda b: Reaper(b).run_once(), []),
    "admin": (lambda b: [b.topic("news").pause(), b.topic("news").resume()], []),
}


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("name", PASS_ON)
def test_who_meets_a_topic_passes_on_what_waits_or_leaves_it_to_a_reaper(
    broker: Broker, role: As, name: str, ended: bool
) -> None:
    """Only a reaper may sweep a message that has expired, and a bound queue whose lifetime is over."""
    call, further = PASS_ON[name]
    topic, user = broker.declare_topic("news"), role(name)
    eu = topic.subscribe("eu")
    broker.declare_queue("news/x/gone")
    topic.bind("news/x/gone")
    broker.declare_queue("orders", dead_letter="news").enqueue(b"dead")
    if ended:
        topic.subscribe("us", expires="1h")
        redis_of(broker).hset(Keyspace().key("news/us", "meta"), "last_used_at", 1)
    topic.pause()
    topic.enqueue_many([b"1", Message(b"late", ttl="200ms" if ended else "1h"), b"2"])
    dies(broker, topic.resume)
    broker.queue("news/x/gone").delete()
    until(lambda: not ended or topic.stats(sweep=False).overdue or topic.stats(sweep=False).ready == 2)

    call(user)

    expected = [b"1", b"2", *further] if ended else [b"1", b"late", b"2", *further]
    if ended:
        Reaper(broker).run_once()
    assert bodies(eu) == expected
    assert "news/x/gone" not in topic.bindings()


def test_who_may_delete_no_queue_ends_no_subscription(broker: Broker, role: As) -> None:
    topic = broker.declare_topic("news")
    topic.subscribe("eu")

    with pytest.raises(NoPermissionError):
        role("producer").topic("news").unsubscribe("eu")

    assert topic.bindings() == {"news/eu": []}


def test_who_sends_and_who_reaps_make_the_missing_target_of_a_forward(broker: Broker, role: As) -> None:
    queue, target = broker.declare_queue("q", forward_to="q/next"), broker.queue("q/next")

    role("producer").queue("q").enqueue(b"1")
    assert target.delete() == 1
    queue.pause()
    queue.enqueue(b"2")
    dies(broker, queue.resume)
    Reaper(role("reaper")).run_once()

    assert bodies(target) == [b"2"]


@pytest.mark.parametrize("name", ["producer", "consumer", "admin"])
def test_who_sends_and_who_works_keeps_results_on_all_nodes_until_their_time_is_over(
    client: redis.Redis, broker: Broker, role: As, name: str
) -> None:
    broker.declare_queue("orders")
    user, ids = role(name), [f"r{n}" for n in range(50)]
    for id in ids:
        results.put(user, id, f"text {id}", 60_000)
        results.put(user, id, "late", 60_000, only_new=True)

    assert [results.get(user, id) for id in ids] == [f"text {id}".encode() for id in ids]
    assert 0 < client.pttl("rqttl:result{r7}") <= 60_000
    assert [one for one in examine(broker) if one.queue or "result" in one.result] == []
    results.put(user, "r7", "short", 1)
    until(lambda: results.get(user, "r7") is None)
    refused(client, partial(results.get, role("reaper"), "r8"))
    results.put(role("reaper"), "r8", "is logged", 60_000)
    assert results.get(broker, "r8") == b"text r8"
    wipe(broker)
    assert everything(client) == {}


def test_who_sends_works_or_looks_learns_why_a_message_has_died(broker: Broker, role: As) -> None:
    broker.declare_queue("q", dead_letter="dead").enqueue(b"", id="x")
    sent = time.time()
    for delivery in broker.queue("q").receive_many(1):
        delivery.reject("why")

    assert [*results.deaths(broker, {"missing", "dead"}, "y", sent)] == []
    for name in ("producer", "consumer", "viewer", "admin"):
        [death] = results.deaths(role(name), {"missing", "dead"}, "x", sent)
        assert (death.reason, death.description) == ("rejected", "why")


def test_an_exporter_reads_and_changes_nothing(client: redis.Redis, broker: Broker, role: As) -> None:
    broker.declare_queue("orders").enqueue(b"x")
    exporter = role("reader")
    before = everything(client)

    families = {family.name: family for family in collector(exporter, queues=[], limit=9).collect()}

    assert families["rqttl_reapers"].samples
    assert families["rqttl_queue_messages"].samples
    assert exporter.stats(["orders"], sweep=False)["orders"].ready == 1
    assert exporter.queue("orders").explain().exists
    assert everything(client) == before


@pytest.fixture
def looked_at(broker: Broker) -> Broker:
    """`orders` with messages in all states, two letters in `orders/dead`, and `idle`, which looking keeps alive."""
    broker.declare_queue("idle", expires="1h").enqueue(b"x")
    dead = broker.declare_queue("orders/dead")
    queue = broker.declare_queue("orders", dead_letter_rejected=dead.name)
    queue.enqueue_many([Message(b"x", id=name, ttl="1h") for name in "abcde"])
    *rejected, _, delayed = queue.receive_many(4)
    queue.reject_many(rejected, "no such item")
    delayed.nack("1h")
    queue.enqueue(b"x", id="s", delay="1h")
    return broker


def views(broker: Broker) -> list[object]:
    queue, dead = broker.queue("orders"), broker.queue("orders/dead")
    letters = DeadLetters(dead, DeadLetterFilter(error="no *"), datetime.fromtimestamp(0, timezone.utc))
    return [
        *(queue.peek(state=state) for state in (None, "ready", "leased", "delayed", "scheduled")),
        *(queue.message(id) for id in ("c", "d", "e", "s", queue.scheduled()[0].sequence)),
        (sum(letters.select()), letters.left, letters.groups.to_json()),
        (queue.messages("s"), dead.stats(sweep=False).ready, queue.options(), queue.explain(), broker.queues()),
    ]


def test_a_viewer_sees_all_messages_and_changes_none(client: redis.Redis, looked_at: Broker, role: As) -> None:
    before, expected = everything(client), views(looked_at)
    viewer = role("viewer")

    assert views(viewer) == expected

    assert everything(client) == before
    assert [view.body for view in viewer.queue("idle").peek()] == [b"x"]


def test_an_admin_sets_policies_and_treats_letters_and_queues(broker: Broker, role: As) -> None:
    admin = role("admin")
    queue = admin.declare_queue("orders", dead_letter="orders/dead")
    admin.set_policy("p", "orders", {"max_length": 9})
    admin.delete_policy("p")
    queue.enqueue_many([Message(b"x", id=str(i)) for i in range(6)])
    queue.receive_many(1)[0].reject("no")

    assert admin.queue("orders/dead").redrive() == 1
    assert (
        queue.dead_letter("1") == queue.expire("2") == queue.delete_message("3") == queue.move("4", "orders/dead") == 1
    )
    assert queue.preview_update(max_length=1).trimmed == 1
    assert queue.stats().ready == queue.purge() == 2
    queue.touch()
    queue.delete()
    assert {one.level for one in examine(admin) if one.check in ("rights", "scripts", "queues")} == {"ok"}
    assert broker.queues() == ["orders/dead"]


@pytest.mark.parametrize("name", ROLES)
def test_no_script_stops_half_done_under_a_role(broker: Broker, role: As, name: str) -> None:
    broker.declare_queue("orders")

    assert [one for one in examine(role(name)) if one.check == "rights" and one.level == "problem"] == []


@pytest.mark.parametrize("name", ["producer", "consumer", "reaper", "viewer"])
def test_the_doctor_names_the_role_of_a_user_and_asks_for_nothing_more(broker: Broker, role: As, name: str) -> None:
    broker.declare_queue("orders")

    found = list(examine(role(name)))

    assert [(one.level, one.result.partition(" ")[2]) for one in found if one.check == "rights"] == [
        ("ok", f"user has the role {name}")
    ]
    assert [one for one in found if one.level == "problem"] == []
    assert not any("+" in one.advice for one in found)


def test_each_script_is_of_a_role() -> None:
    assert {name for role in ROLES.values() for name in role.scripts.split()} == {*scripts.names()}


#: Calls of commands that no role has, or on keys that rqttl does not have.
FOREIGN = """
ACL LIST; ACL SETUSER half +@all; APPEND other x; BGREWRITEAOF; BGSAVE; BITOP NOT other other; CLIENT KILL TYPE normal
CLIENT LIST; CLIENT PAUSE 1; CONFIG RESETSTAT; CONFIG SET maxmemory 1; CONFIG REWRITE; COPY LOG other; DECRBY other 1
DECR other; DEL LOG; DEL META; DUMP LOG; EVAL return 0; EXPIRE LOG 1; FLUSHALL; FLUSHDB; GEOADD other 1 1 m; GET other
GETSET other x; HSET other f v; HINCRBY other f 1; HDEL other f; HMSET META f v; INCR other; INCR META; KEYS *
LATENCY RESET; LPUSH other v; LPUSH LOG v; LTRIM LOG 0 0; MEMORY PURGE; MIGRATE h 1 LOG 0 1; MODULE LIST; MONITOR
MOVE LOG 1; PERSIST LOG; PEXPIRE other 1; PFADD other v; PUBLISH other x; RENAME LOG other; RENAME META LOG
REPLICAOF NO ONE; RESTORE other 0 x; RPOPLPUSH LOG other; RPUSH other v; SADD other m; SAVE; SCRIPT FLUSH; SCRIPT KILL
SET other x; SETEX other 9 x; SETRANGE other 0 x; SLAVEOF NO ONE; SLOWLOG RESET; SMOVE QUEUES other m
SORT LOG; SPOP QUEUES; SUNIONSTORE other QUEUES; SWAPDB 0 1; UNLINK other; XADD other * f v; XDEL other 0-1
XGROUP CREATE LOG g 0; XSETID LOG 9-9; XTRIM other MAXLEN 0; ZADD other 1 m; ZINCRBY other 1 m; ZPOPMIN other
ZREM other m; ZUNIONSTORE other 1 other
"""
WORDS = {"LOG": "rqttl:{orders}:log", "META": "rqttl:{orders}:meta", "QUEUES": "rqttl:queues{rqttl}"}
#: Calls of rqttl by what they need, on the queue `orders` with a ready message `r` and a scheduled one `s`.
CALLS: dict[str, Callable[[Broker], object]] = {
    "policy": lambda b: b.set_policy("p", "#", {"max_length": 1}),
    "operator policy": lambda b: b.set_policy("p", "#", {"max_length": 1}, operator=True),
    "no policy": lambda b: b.delete_policy("old"),
    "delete": lambda b: b.queue("orders").delete(),
    "delete if unused": lambda b: b.queue("orders").delete(if_unused=True),
    "stats": lambda b: b.queue("orders").stats(),
    "sweep": lambda b: b.queue("orders").sweep(),
    "receive": lambda b: b.queue("orders").receive(),
    "receive many": lambda b: b.queue("orders").receive_many(9, auto_ack=True),
    "receive of several": lambda b: b.receive(["orders", "orders/dead"]),
    "workers": lambda b: b.workers(),
    "schedule": lambda b: b.queue("orders").enqueue(b"x", delay="1h"),
    "schedule many": lambda b: b.queue("orders").enqueue_many([Message(b"x", delay="1h")] * 2),
    "cancel": lambda b: b.queue("orders").cancel("s"),
    "reschedule": lambda b: b.queue("orders").reschedule("s", delay="2h"),
    "purge scheduled": lambda b: b.queue("orders").purge("scheduled"),
    "move": lambda b: b.queue("orders").move("r", "orders/dead"),
    "expire": lambda b: b.queue("orders").expire("r"),
    "dead letter": lambda b: b.queue("orders").dead_letter("r"),
    "delete message": lambda b: b.queue("orders").delete_message("r"),
    "send": lambda b: b.queue("orders").enqueue(b"x"),
    "send many": lambda b: b.queue("orders").enqueue_many([b"x"] * 9),
    "declare": lambda b: b.declare_queue("new"),
    "update": lambda b: b.queue("orders").update(max_length=0),
    "pause": lambda b: b.queue("orders").pause(),
    "touch": lambda b: b.queue("orders").touch(),
    "purge": lambda b: b.queue("orders").purge(),
    "redrive": lambda b: b.queue("orders/dead").redrive(to="orders"),
    "peek": lambda b: b.queue("orders").peek(),
}
#: Redis 6.2 cannot keep those who write from what they have to read: the policies, and a consumer the due times.
POLICIES, SCHEDULED = ([], []) if REDIS == "6.2" else ([*CALLS][:3], ["stats"])
#: The calls that are not a role's own. By its keys it could make some of the others, too.
NOT_OWN = {
    "producer": [*POLICIES, *[*CALLS][3:11]],
    "consumer": [*POLICIES, *SCHEDULED, *[*CALLS][3:5], *[*CALLS][11:20]],
    "reaper": POLICIES,
    "reader": [name for name in CALLS if name != "workers"],
    "viewer": [name for name in CALLS if name not in ("workers", "peek")],
    "admin": [],
    "spark": [*CALLS],
}


@pytest.mark.parametrize("name", ROLES)
def test_what_is_not_a_roles_own_is_refused_before_it_writes(
    server: Server | ClusterServers, client: redis.Redis, broker: Broker, role: As, name: str
) -> None:
    queue = broker.declare_queue("orders", dead_letter="orders/dead")
    broker.declare_queue("orders/dead")
    broker.set_policy("old", "other", {"max_length": 1})
    queue.enqueue(b"x", id="r")
    queue.enqueue(b"x", id="s", delay="1h")
    owned = role(name)
    foreign = [[WORDS.get(word, word) for word in one.split()] for one in FOREIGN.strip().replace("\n", ";").split(";")]

    node = server.servers[0] if isinstance(server, ClusterServers) else server  # rights come before redirects
    with node.client(username="half") as user:
        for words in foreign:
            refused(client, partial(user.execute_command, *words))
        for one in {*scripts.names()} - {*ROLES[name].scripts.split()} if ROLES[name].bound else ():
            refused(client, partial(user.evalsha, scripts.load(one).sha, 1, WORDS["META"]))
    for call in NOT_OWN[name]:
        refused(client, partial(CALLS[call], owned))

    assert len(foreign) + len(NOT_OWN[name]) >= 60
