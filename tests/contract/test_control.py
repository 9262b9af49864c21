"""Control of queues: paused ones give nothing, `max_leased` bounds what is out, and `rate` what leaves in a time."""

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import redis

from rqttl import InvalidInput, InvalidPolicy, Message, PolicyDecides, QueueMismatch
from rqttl.flows import receive
from rqttl.flows.receive import ReceiveResult
from rqttl.protocol.commands import Presence
from rqttl.store.driver import driver_of
from tests.contract.clocked import START, Clocked, ms
from tests.contract.looks import dead, one, take, taken
from tests.lua.states import everything

MINUTE, HOUR, YEAR = 60_000, 3_600_000, 31_536_000_000
WAKEUP, META = "rqttl:{q}:wakeup", "rqttl:{q}:meta"


def look(
    clocked: Clocked,
    name: str = "me",
    count: int = 1,
    block: int = HOUR,
    ticket: bytes = b"",
    lease: int = MINUTE,
    **options: Any,
) -> ReceiveResult:
    """One look of a consumer that waits on `q`, with the time of the next look, if one is due."""
    presence = Presence(name, block, MINUTE, ticket, options.pop("room", 1))
    return driver_of(clocked).perform(receive.receive_once("q", count, lease, presence=presence, **options))


def found(result: ReceiveResult) -> list[bytes]:
    return [body for _, _, body in result.entries]


def rings(client: redis.Redis) -> int:
    """The hints for consumers that wait; this takes them."""
    return sum(iter(lambda: client.lpop(WAKEUP) is not None, False))


def waits(client: redis.Redis) -> bytes:
    """Whether consumers wait (1), or wait and may not claim (2)."""
    found: Any = client.hget(META, "has_waiters")
    return found or b""


def ticket_of(client: redis.Redis) -> bytes:
    """The next element of the wake-up list."""
    found: Any = client.lpop(WAKEUP)
    return found or b""


class Crowd:
    """Consumers that wait, each for a ring or the time of its next look, as `receive` does; all on one clock."""

    def __init__(self, clocked: Clocked, client: redis.Redis, names: int) -> None:
        self.clocked, self.client = clocked, client
        self.calls = 0
        self.idle: deque[str] = deque()
        self.dues: dict[str, int] = {}
        #: The time of each message that left.
        self.left: list[int] = []
        for i in range(names):
            self.look(f"c{i}")
        self.calls = 0

    def look(self, name: str, ticket: bytes = b"") -> None:
        """Look, and wait again; a message is done at once."""
        self.calls += 1
        self.dues.pop(name, None)
        result = look(self.clocked, name, ticket=ticket)
        while result.entries:
            self.left.append(self.clocked.now - START)
            done = [word for seq, _, _ in result.entries for word in (seq, result.token)]
            result = look(self.clocked, name, finished=done)
        self.idle.append(name)
        if result.due is not None:
            self.dues[name] = max(result.due, self.clocked.now + 1)

    def step_back(self, ms: int) -> None:
        """The clock of Redis goes back; consumers wait by their own ones."""
        self.clocked.advance(-ms)
        self.dues = {name: due - ms for name, due in self.dues.items()}

    def run(self, until: int) -> None:
        """Let time pass until so many ms after the start."""
        while True:
            ticket: Any = self.client.lpop(WAKEUP)
            if ticket is None:
                name = min(self.dues, key=self.dues.__getitem__, default="")
                at = self.dues.get(name, START + until + 1)
                if at > START + until:
                    self.clocked.go_to(until)
                    return
                self.clocked.go_to(at - START)
                self.idle.remove(name)
                self.look(name)
            else:
                self.look(self.idle.popleft(), ticket)


def most_in(times: list[int], length: int) -> int:
    """The most of these times in any window of so many ms, with both its ends."""
    first = most = 0
    for i, at in enumerate(times):
        while times[first] < at - length:
            first += 1
        most = max(most, i - first + 1)
    return most


# A pause


@pytest.mark.spec("A-126")
def test_a_paused_queue_takes_messages_and_gives_none_until_it_is_resumed(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue(b"1")
    out = one(queue)

    result = queue.pause()

    assert (result.before.paused, result.after.paused, queue.options().paused) == (False, True, True)
    queue.enqueue_many([b"2", Message(b"late", ttl="1s")])
    assert (queue.receive(), queue.receive_many(5), queue.receive(auto_ack=True)) == (None, [], None)
    out.ack()
    clocked.advance("1s")
    queue.sweep()
    assert (dead(queue), queue.stats().ready) == ({"expired": 1}, 1)
    assert queue.resume().after.paused is False
    assert taken(queue) == [b"2"]


@pytest.mark.spec("A-126")
def test_a_consumer_waits_through_a_pause_without_a_call_and_is_woken_by_its_end(
    clocked: Clocked, client: redis.Redis
) -> None:
    queue = clocked.declare_queue("q", paused=True)
    queue.enqueue(b"1")

    assert [look(clocked, f"c{i}").due for i in range(3)] == [None] * 3
    queue.enqueue_many([b"2", b"3"])

    assert (rings(client), waits(client)) == (0, b"2")
    queue.resume()
    assert rings(client) == 1
    assert (found(look(clocked, "c0", block=0)), rings(client)) == ([b"1"], 1)


@pytest.mark.spec("A-126")
def test_a_wait_on_a_paused_queue_takes_its_whole_time_and_two_looks(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", paused=True)
    queue.enqueue(b"1")
    blocked: list[int] = []
    clocked.while_waiting(lambda: blocked.append(clocked.now))

    assert queue.receive(wait="1m") is None

    assert (clocked.now - START, len(blocked)) == (MINUTE, 1)


def test_due_work_of_a_paused_queue_is_looked_after_in_steps_of_five_seconds(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", paused=True)
    queue.enqueue_many([Message(b"x", ttl=ms(i)) for i in range(1, 1000)])

    result = look(clocked)
    clocked.go_to((result.due or 0) - START)
    look(clocked)

    assert (clocked.now - START, dead(queue)) == (5_000, {"expired": 999})


def test_a_consumer_that_was_rung_before_the_pause_waits_again(clocked: Clocked, client: redis.Redis) -> None:
    queue = clocked.declare_queue("q")
    look(clocked)
    queue.enqueue(b"1")
    assert rings(client) == 1

    queue.pause()
    result = look(clocked)

    assert (found(result), waits(client)) == ([], b"2")
    queue.resume()
    assert rings(client) == 1


@pytest.mark.parametrize("ttl, stays", [(None, [b"1", b"2"]), ("1h", [b"1", b"2"]), (0, [b"2"])])
def test_a_message_that_was_handed_over_before_the_pause_goes_back_uncounted(
    clocked: Clocked, client: redis.Redis, ttl: Any, stays: list[bytes]
) -> None:
    queue = clocked.declare_queue("q", max_length=1, overflow="reject-publish", max_deliveries=1)
    look(clocked)
    queue.enqueue_many([Message(b"1", ttl=ttl), b"2"])
    ticket = ticket_of(client)

    queue.pause()

    assert found(look(clocked, ticket=ticket, count=5)) == []
    look(clocked, "other")
    assert queue.enqueue(Message(b"3", ttl=0)).expired
    queue.resume()
    assert [(delivery.body, delivery.delivery_count) for delivery in queue.receive_many(5)] == [(x, 1) for x in stays]
    assert queue.stats().deaths.get("delivery_limit", 0) == 0


def test_a_lease_that_ends_in_a_pause_has_failed_and_rings_nobody(clocked: Clocked, client: redis.Redis) -> None:
    queue = clocked.declare_queue("q", lease="1m", paused=False)
    queue.enqueue_many([b"1", b"2"])
    one(queue)
    second = one(queue)
    queue.pause()
    look(clocked)

    second.nack()
    clocked.advance("1m")

    assert [swept.reclaimed for swept in queue.sweep()] == [1]
    assert (rings(client), queue.stats().ready) == (0, 2)
    queue.resume()
    assert [delivery.delivery_count for delivery in queue.receive_many(2)] == [2, 2]


@pytest.mark.spec("A-126")
def test_a_pause_outlives_declarations_and_a_declaration_sets_it_for_a_new_queue_only(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", max_length=5)
    queue.pause()

    again = clocked.declare_queue("q", max_length=5)
    assert (again.declared, again.options().paused, again.options(declared=True).paused) == ("existing", True, True)
    with pytest.raises(QueueMismatch, match="max_length: requested 6"):
        clocked.declare_queue("q", max_length=6)
    queue.resume()
    clocked.declare_queue("q", max_length=5, paused=True)
    assert queue.options().paused is False
    assert clocked.declare_queue("new", paused=True).options().paused is True


def test_a_policy_decides_about_a_pause_and_the_error_names_it(clocked: Clocked, client: redis.Redis) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue(b"1")
    clocked.set_policy("freeze", "q", {"paused": True})
    assert (found(look(clocked)), rings(client)) == ([], 0)
    with pytest.raises(PolicyDecides, match="'q' stays paused: policy freeze decides"):
        queue.resume()

    queue.pause()
    clocked.set_policy("ice", "*", {"paused": True}, operator=True)
    before = everything(client)
    with pytest.raises(PolicyDecides, match="operator policy ice decides") as caught:
        queue.resume()
    assert (caught.value.queue, caught.value.source, everything(client)) == ("q", "operator policy ice", before)

    clocked.delete_policy("ice", operator=True)
    clocked.delete_policy("freeze")
    queue.resume()
    clocked.set_policy("open", "*", {"paused": False}, operator=True)
    before = everything(client)
    with pytest.raises(PolicyDecides, match="'q' cannot be paused: operator policy open decides"):
        queue.pause()
    assert (everything(client), rings(client), taken(queue)) == (before, 1, [b"1"])


def test_the_deletion_of_a_paused_queue_ends_the_waits(clocked: Clocked, client: redis.Redis) -> None:
    queue = clocked.declare_queue("q", paused=True)
    queue.enqueue(b"1")
    for i in range(3):
        look(clocked, f"c{i}")

    queue.delete()

    assert rings(client) == 3


# A limit of leases


def test_no_more_than_max_leased_are_out_and_each_way_of_settling_makes_a_place(
    clocked: Clocked, client: redis.Redis
) -> None:
    queue = clocked.declare_queue("q", max_leased=3, lease="1m")
    queue.enqueue_many([b"%d" % i for i in range(9)])
    first, second, third = queue.receive_many(5)
    result = look(clocked)
    assert (found(result), result.due, rings(client), waits(client)) == ([], START + MINUTE, 0, b"2")
    ways: list[Callable[[], None]] = [first.ack, second.nack, third.reject]

    for i, settle in enumerate(ways):
        settle()
        assert rings(client) == 1, i
        got = look(clocked)
        assert len(got.entries) == 1
        look(clocked, "next")
        assert (rings(client), waits(client), queue.stats().leased) == (0, b"2", 3)
    clocked.advance("1m")
    assert [swept.reclaimed for swept in queue.sweep()] == [3]
    assert rings(client) == 1


def test_a_consumer_that_sends_its_acks_with_its_claim_makes_its_own_place(
    clocked: Clocked, client: redis.Redis
) -> None:
    queue = clocked.declare_queue("q", max_leased=2)
    queue.enqueue_many([b"%d" % i for i in range(6)])
    mine = look(clocked, count=2)
    look(clocked, "other")
    done = [word for seq, _, _ in mine.entries for word in (seq, mine.token)]

    mine = look(clocked, count=1, finished=done)
    assert (found(mine), rings(client)) == ([b"2"], 1)
    assert found(look(clocked, "other")) == [b"3"]
    look(clocked, "other")
    assert rings(client) == 0
    look(clocked, count=0, block=-1, finished=[mine.entries[0][0], mine.token])
    assert rings(client) == 1


def test_an_ack_by_a_client_that_knows_no_limit_yet_is_made_again_with_the_keys(
    clocked: Clocked, client: redis.Redis
) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue_many([b"1", b"2", b"3"])
    first, second = queue.receive_many(2)
    queue.update(max_leased=1, expires="1h")
    assert found(look(clocked)) == []

    first.ack()
    assert rings(client) == 0
    second.ack()

    assert (rings(client), queue.stats().acked) == (1, 2)
    assert found(look(clocked)) == [b"3"]


def test_a_limit_below_what_is_out_gives_nothing_until_enough_is_settled(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue_many([b"%d" % i for i in range(20)])
    out = queue.receive_many(8)

    queue.update(max_leased=5)

    for i, delivery in enumerate(out):
        assert len(queue.receive_many(1)) == (1 if i > 3 else 0), i
        delivery.ack()
    queue.update(max_leased=None)
    assert len(queue.receive_many(20)) == 12 - 4


def test_a_message_is_handed_over_only_where_there_is_a_place(clocked: Clocked, client: redis.Redis) -> None:
    queue = clocked.declare_queue("q", max_leased=2)
    for i in range(3):
        look(clocked, f"c{i}")

    receipts = queue.enqueue_many([Message(b"%d" % i, ttl=0) for i in range(3)])

    assert [receipt.expired for receipt in receipts] == [False, False, True]  # type: ignore[union-attr]  # receipts
    tickets = [ticket_of(client) for _ in range(2)]
    assert [found(look(clocked, f"c{i}", ticket=ticket)) for i, ticket in enumerate(tickets)] == [[b"0"], [b"1"]]


# A rate


def test_the_smaller_of_places_and_rate_counts_and_the_reply_says_when_the_next_is_due(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", max_leased=5, rate="2/1s")
    queue.enqueue_many([b"%d" % i for i in range(20)])
    assert len(queue.receive_many(10)) == 2

    clocked.advance("1s")
    result = look(clocked, count=10, block=0)

    assert (len(result.entries), result.due) == (2, START + 1_500)
    assert len(queue.receive_many(10)) == 0
    clocked.advance(499)
    assert len(queue.receive_many(10)) == 0
    clocked.advance(1)
    assert len(queue.receive_many(10)) == 1
    clocked.advance("10s")
    assert len(queue.receive_many(10)) == 0
    assert look(clocked).due == START + 30_000


RATES = [("100/1m", None, 1), ("7/1s", 3, 3), ("1/1m", 10, 10), ("1000/1s", None, 1000), ("3/7ms", 2, 2)]


@pytest.mark.parametrize("rate, burst, at_once", RATES, ids=str)
def test_in_each_window_leave_at_most_rate_and_burst_and_none_is_held_back_longer(
    clocked: Clocked, rate: str, burst: int | None, at_once: int
) -> None:
    queue = clocked.declare_queue("q", rate=rate, burst=burst)
    queue.enqueue_many([b"x"] * 1500)
    n, per = str(queue.options().non_default["rate"]).split("/")
    left: list[int] = []

    while len(left) < 1100 and clocked.now < START + 6 * HOUR:
        result = look(clocked, count=250, block=0)
        left += [clocked.now - START] * len(result.entries)
        if len(result.entries) == 250:
            continue
        clocked.go_to(max(clocked.now + 1, result.due or 0) - START)

    assert left.count(0) == at_once
    for length in (0, 1, 10, 999, MINUTE, HOUR):
        assert most_in(left, length) <= int(n) * length / int(per) + at_once, length
    assert len(left) - at_once >= (left[-1] - 1) * int(n) / int(per) - 1


def test_deliveries_that_come_again_and_those_that_are_handed_over_count(clocked: Clocked, client: redis.Redis) -> None:
    queue = clocked.declare_queue("q", rate="3/1m", burst=3)
    queue.enqueue(b"1")
    one(queue).nack()
    one(queue).ack()
    for i in range(3):
        look(clocked, f"c{i}")

    receipts = queue.enqueue_many([Message(b"a", ttl=0), Message(b"b", ttl=0)])

    assert [receipt.expired for receipt in receipts] == [False, True]  # type: ignore[union-attr]  # receipts
    assert found(look(clocked, "c0", ticket=ticket_of(client), count=9)) == [b"a"]
    queue.enqueue(b"2")
    assert queue.receive() is None


def test_messages_that_expire_in_the_claim_use_no_rate(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", rate="1/1h")
    queue.enqueue_many([*[Message(b"x", ttl="1s")] * 3, b"good"])
    clocked.advance("2s")

    assert taken(queue) == [b"good"]


@pytest.mark.parametrize("rate, until, messages", [("5/1m", HOUR, 300), ("10/1s", 20_000, 200)])
def test_a_hundred_that_wait_make_two_calls_for_each_message_and_none_is_late(
    clocked: Clocked, client: redis.Redis, rate: str, until: int, messages: int
) -> None:
    queue = clocked.declare_queue("q", rate=rate, burst=1)
    crowd = Crowd(clocked, client, 100)
    queue.enqueue_many([b"x"] * 500)

    crowd.run(until)

    assert messages <= len(crowd.left) <= messages + 1
    assert crowd.calls <= 2 * len(crowd.left) + 1


def test_of_many_that_wait_for_a_rate_one_has_the_turn_and_the_next_gets_it_when_it_leaves(
    clocked: Clocked, client: redis.Redis
) -> None:
    queue = clocked.declare_queue("q", rate="1/1h")
    queue.enqueue_many([b"1", b"2", b"3"])
    one(queue).ack()

    assert [look(clocked, f"c{i}").due for i in range(3)] == [START + HOUR, None, None]
    queue.enqueue(b"4")
    assert (rings(client), waits(client)) == (0, b"2")
    look(clocked, "c0", block=0)
    assert rings(client) == 1
    assert look(clocked, "c1").due == START + HOUR
    clocked.advance("1h")
    assert (found(look(clocked, "c1", block=0)), rings(client)) == ([b"2"], 1)


def test_a_consumer_that_dies_in_its_turn_is_replaced_by_the_next_sweep(clocked: Clocked, client: redis.Redis) -> None:
    queue = clocked.declare_queue("q", rate="1/1m", lease="1h")
    queue.enqueue_many([b"1", b"2"])
    one(queue)
    assert [look(clocked, f"c{i}").due for i in range(2)] == [START + MINUTE, None]

    clocked.advance(MINUTE - 1)
    assert (queue.sweep()[-1].due, rings(client)) == (START + MINUTE + 5_000, 0)
    clocked.advance(5_001)
    assert queue.sweep()[-1].due == START + MINUTE + 10_000

    assert rings(client) == 1
    assert found(look(clocked, "c1")) == [b"2"]


@pytest.mark.parametrize("back, by_policy", [(0, False), (0, True), (HOUR, False), (YEAR, True)])
@pytest.mark.parametrize(
    "before, after, at_once, in_a_minute",
    [
        (("1/1h", None), ("10/1s", None), 1, 49),
        (("1/1h", 10), ("10/1s", None), 10, 40),
        (("1/1h", None), ("2/1m", 3), 1, 2),
        (("1000/1s", None), ("1/30s", None), 50, 0),
        (("1/10s", 2), ("1/10s", 2), 2, 6),
        (("1/1h", None), (None, None), 1, 49),
    ],
    ids=str,
)
def test_another_rate_acts_at_once_and_a_clock_that_goes_back_costs_a_burst_at_most(
    clocked: Clocked,
    client: redis.Redis,
    before: tuple[str, int | None],
    after: tuple[str | None, int | None],
    at_once: int,
    in_a_minute: int,
    back: int,
    by_policy: bool,
) -> None:
    queue = clocked.declare_queue("q")

    def put(rate: str | None, burst: int | None) -> None:
        options = {name: value for name, value in (("rate", rate), ("burst", burst)) if value is not None}
        if by_policy and options:
            clocked.set_policy("p", "q", options)
        elif by_policy:
            clocked.delete_policy("p")
        else:
            queue.update(rate=rate, burst=burst)

    put(*before)
    queue.enqueue_many([b"x"] * 50)
    assert len(take(queue)) == at_once
    crowd = Crowd(clocked, client, 3)

    crowd.step_back(back)
    put(*after)
    crowd.run(clocked.now - START + MINUTE)

    assert in_a_minute - bool(back) <= len(crowd.left) <= in_a_minute
    assert crowd.calls <= 2 * in_a_minute + 6


def test_the_queue_whose_only_message_left_wakes_for_the_next_one(clocked: Clocked, client: redis.Redis) -> None:
    queue = clocked.declare_queue("q", rate="1/1s")
    queue.enqueue(b"1")
    one(queue)
    assert [look(clocked, f"c{i}").due for i in range(2)] == [START + 1_000, None]
    clocked.advance("1s")

    assert look(clocked, "c0").due is None or waits(client) == b"1"
    queue.enqueue(b"2")

    assert rings(client) == 1


# Options


VALUES: dict[str, list[Any]] = {
    "paused": [1, 0, "yes", "true", b"1", []],
    "max_leased": [0, -1, 1.5, True, "5", "five", 2**53, []],
    "rate": [0, 5, 1.5, True, "", "5", "/1s", "5/", "0/1s", "-1/1s", "1.5/1s", "1000001/1s", "5/0", "5/0s", "5/1x"],
}
REFUSED: list[tuple[dict[str, Any], str]] = [
    *[({name: value}, name) for name, values in VALUES.items() for value in values],
    ({"rate": "5/2d"}, "rate"),
    ({"rate": b"5/1s"}, "rate"),
    *[({"rate": "5/1s", "burst": value}, "burst") for value in (0, -1, 1.5, True, "5", 1_000_001)],
    ({"burst": 5}, "burst"),
]


@pytest.mark.parametrize("given, name", REFUSED, ids=str)
def test_a_wrong_value_is_refused_by_name_and_changes_nothing(
    clocked: Clocked, client: redis.Redis, given: dict[str, Any], name: str
) -> None:
    queue = clocked.declare_queue("q", max_length=5)
    before = everything(client)
    calls: list[Callable[[], object]] = [lambda: queue.update(**given), lambda: clocked.declare_queue("other", **given)]

    for call in calls:
        with pytest.raises(InvalidInput, match=rf"^{name}: "):
            call()
    if given != {"burst": 5}:
        with pytest.raises(InvalidPolicy, match=rf"{name}: "):
            clocked.set_policy("p", "*", given)
    assert everything(client) == before


def test_policies_only_tighten_limits_and_a_burst_without_a_rate_is_left_out(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", max_leased=5, rate="100/1m", burst=7)
    clocked.set_policy("p", "*", {"max_leased": 9, "rate": "2/1s", "burst": 3})
    clocked.set_policy("o", "*", {"max_leased": 4, "rate": "6000/1h"}, operator=True)

    options = queue.options()
    assert (options.max_leased, options.rate, options.burst) == (4, "100/60000", 3)
    assert queue.explain()["rate"].source == "declared"
    assert queue.explain()["burst"].source == "policy p"
    lost = {one.source: one.reason for one in queue.explain()["rate"].lost}
    assert lost == {"policy p": "overridden by declared (lower)", "operator policy o": "overridden by declared (equal)"}
    queue.update(rate=None, burst=None)
    clocked.set_policy("p", "*", {"burst": 3})
    clocked.delete_policy("o", operator=True)
    assert queue.options().burst is None
    assert queue.explain()["burst"].note == "policy p: it does nothing without rate"
    queue.update(rate="5/s")
    assert queue.options(declared=True).as_arguments() == {"max_leased": 5, "rate": "5/1s"}
