"""Queues that dead letters create get the options of their policies: Artemis's expiry queues, one for each queue."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from rqttl import Broker, Message
from tests.contract.clocked import Clocked


@pytest.fixture
def expiring(clocked: Clocked) -> Clocked:
    """One policy gives each queue an expiry queue, another configures those."""
    clocked.set_policy("expiry", "#", {"dead-letter-expired": "EXP.{queue}"})
    clocked.set_policy("retired", "EXP.#", {"auto-delete-on-idle": "10m", "message-ttl": "1h", "lease": "2m"})
    return clocked


@pytest.mark.spec("POL-12", "A-083", "A-045", "A-053", "C-20")
def test_a_queue_that_a_dead_letter_creates_has_its_options_at_once(expiring: Clocked) -> None:
    queue = expiring.declare_queue("orders")
    assert expiring.queues() == ["orders"]

    queue.enqueue(b"x", ttl=0)

    assert expiring.queues() == ["EXP.orders", "orders"]
    born = expiring.queue("EXP.orders")
    assert born.options().as_arguments() == {"auto_delete_on_idle": "10m", "message_ttl": "1h", "lease": "2m"}
    assert born.options(declared=True).as_arguments() == {}
    assert expiring.reconcile().changed == {}


@pytest.mark.parametrize("way", ["reject", "enqueue", "receive", "sweep", "policy"])
def test_every_way_of_dying_creates_queues_with_their_options(broker: Broker, way: str) -> None:
    broker.set_policy("limit", "dead", {"max_length": 1})
    queue = broker.declare_queue("orders", dead_letter="dead")
    queue.enqueue_many([b"a", b"b"])
    if way == "reject":
        queue.reject_many(queue.receive_many(2))
    elif way == "enqueue":
        queue.enqueue_many([Message(b"c", ttl=0), Message(b"d", ttl=0)])
    elif way == "receive":
        queue.update(max_length=None, message_ttl=0)
        assert queue.receive_many(2) == []
    elif way == "sweep":
        queue.update(max_length=0)
        queue.sweep()
    else:
        broker.set_policy("none", "orders", {"message_ttl": 0})

    dead = broker.queue("dead")
    assert dead.options()["max_length"] == 1
    assert dead.stats().ready == 1


@pytest.mark.spec("A-052", "C-21")
@pytest.mark.parametrize("lifetime", ["expires", "auto_delete_on_idle"])
def test_an_expiry_queue_is_born_drained_retired_and_born_again(clocked: Clocked, lifetime: str) -> None:
    clocked.set_policy("expiry", "#", {"dead-letter-expired": "EXP.{queue}"})
    retired = {lifetime: "10m", "message_ttl": "1h", "lease": "2m"}
    clocked.set_policy("retired", "EXP.#", retired)
    queue = clocked.declare_queue("orders")

    for _ in range(2):
        queue.enqueue(b"x", ttl=0)
        born = clocked.queue("EXP.orders")
        assert born.options().as_arguments() == retired
        assert clocked.reconcile().changed == {}
        [letter] = born.receive_many(1)
        letter.ack()
        clocked.advance("9m")
        assert clocked.queues() == ["EXP.orders", "orders"]
        clocked.advance("61s")
        assert clocked.queues() == ["orders"]

    queue.enqueue(b"x", ttl=0)
    clocked.advance("9m")
    assert clocked.queue("EXP.orders").stats(sweep=False).ready == 1


def test_a_new_policy_acts_from_the_first_letter_of_an_expiry_queue_that_comes_back(clocked: Clocked) -> None:
    clocked.set_policy("expiry", "#", {"dead-letter-expired": "EXP.{queue}"})
    clocked.set_policy("retired", "EXP.#", {"auto_delete_on_idle": "10m"})
    queue = clocked.declare_queue("orders")
    queue.enqueue(b"x", ttl=0)
    clocked.advance("11m")
    assert clocked.queues() == ["orders"]

    clocked.set_policy("retired", "EXP.#", {"auto_delete_on_idle": "10m", "max_length": 2})
    queue.enqueue_many([Message(b"%d" % i, ttl=0) for i in range(5)])

    assert [view.body for view in clocked.queue("EXP.orders").peek()] == [b"3", b"4"]


@pytest.mark.spec("A-050", "C-20")
def test_each_queue_has_its_own_letters_in_its_expiry_queue(expiring: Clocked) -> None:
    names = [f"orders.{region}" for region in ("at", "be", "ch", "de", "ee")]
    for name in names:
        queue = expiring.declare_queue(name)
        queue.enqueue_many([Message(b"%s %d" % (name.encode(), i), ttl="1s") for i in range(5)])
    expiring.advance("1s")
    for name in names:
        expiring.queue(name).sweep()

    for name in names:
        letters = expiring.queue(f"EXP.{name}").peek()
        assert [letter.body for letter in letters] == [b"%s %d" % (name.encode(), i) for i in range(5)]
        assert {letter.deaths[0].queue for letter in letters} == {name}
    assert len(expiring.queues()) == 10


@pytest.mark.spec("A-051", "C-20")
def test_queues_that_expire_at_once_share_one_new_expiry_queue(broker: Broker) -> None:
    broker.set_policy("expiry", "orders.#", {"dead-letter-expired": "EXP.orders"})
    broker.set_policy("kept", "EXP.#", {"max_length": 1_000, "lease": "2m"})
    names = [f"orders.{i}" for i in range(8)]
    queues = [broker.declare_queue(name) for name in names]

    with ThreadPoolExecutor(8) as pool:
        receipts = list(pool.map(lambda queue: queue.enqueue_many([Message(b"x", ttl=0)] * 5), queues))

    assert sum(map(len, receipts)) == 40
    assert broker.queues() == ["EXP.orders", *names]
    shared = broker.queue("EXP.orders")
    assert shared.stats().ready == 40
    assert shared.options().as_arguments() == {"max_length": 1_000, "lease": "2m"}
    assert broker.reconcile().changed == {}


@pytest.mark.spec("C-12", "A-029", "A-030")
def test_the_target_of_an_exact_name_beats_that_of_a_wildcard(broker: Broker) -> None:
    broker.set_policy("all", "#", {"dead-letter-expired": "EXP.all"})
    broker.set_policy("words", "orders.*", {"dead-letter-expired": "EXP.words"})
    broker.set_policy("one", "orders.eu", {"dead-letter-expired": "EXP.one"})

    for name, target in (("orders.eu", "EXP.one"), ("orders.us", "EXP.words"), ("mails", "EXP.all")):
        broker.declare_queue(name).enqueue(b"x", ttl=0)
        assert [letter.deaths[0].queue for letter in broker.queue(target).peek()] == [name]


@pytest.mark.spec("A-049")
def test_an_expiry_queue_gets_no_expiry_queue_of_its_own(expiring: Clocked) -> None:
    expiring.declare_queue("orders").enqueue(b"x", ttl=0)
    born = expiring.queue("EXP.orders")

    born.enqueue(b"y", ttl=0)

    assert (born.stats().ready, born.stats().dropped["expired"]) == (1, 1)

    assert not [name for name in expiring.queues() if name.startswith("EXP.EXP")]
    explained = born.explain()["dead_letter_expired"]
    assert explained.value is None
    assert "EXP.{queue}" in explained.note


def test_a_fresh_queue_gets_the_policies_of_another_client(broker: Broker, clocked: Clocked) -> None:
    clocked.declare_queue("orders", dead_letter="dead").enqueue(b"x")
    broker.set_policy("p", "dead", {"max_length": 7})  # the other client knows older policies

    queue = clocked.queue("orders")
    queue.reject_many(queue.receive_many(1))

    assert clocked.queue("dead").options()["max_length"] == 7


def test_a_template_acts_at_once_on_the_queue_that_it_names(broker: Broker) -> None:
    broker.declare_queue("orders")
    made = broker.declare_queue("EXP.orders")
    broker.set_policy("all", "EXP.#", {"dead_letter": "{queue}.more"})

    result = broker.set_policy("each", "orders", {"dead_letter_expired": "EXP.{queue}"})

    assert sorted(result.changed) == ["EXP.orders", "orders"]
    assert made.options()["dead_letter"] is None
    assert sorted(broker.delete_policy("each").changed) == ["EXP.orders", "orders"]
    assert made.options()["dead_letter"] == "{queue}.more"
