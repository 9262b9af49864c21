"""`ack`, `renew`, `nack` and `reject`: leases that hold or not, batches, lost replies; and what follows a failure."""

from collections.abc import Callable
from typing import Any

import pytest
import redis

from rqttl.protocol import codec, commands
from rqttl.protocol.commands import Command, Word
from rqttl.units import MAX_DURATION
from tests.lua.states import NOW, Lab, changed, place, plain, token

Build = Callable[..., Command]


def ack(lab: Lab, *deliveries: Word, now: int = NOW) -> Command:
    return commands.ack(lab.keyspace, "orders", deliveries, now=now)


def renew(lab: Lab, *deliveries: Word, now: int = NOW) -> Command:
    return commands.renew(lab.keyspace, "orders", deliveries, lease=1000, now=now)


def nack(lab: Lab, *deliveries: Word, **words: Any) -> Command:
    return commands.nack(lab.known(), deliveries, now=NOW, **words)


def reject(lab: Lab, *deliveries: Word, **words: Any) -> Command:
    return commands.reject(lab.known(), deliveries, now=NOW, **words)


def test_an_ack_forgets_the_message_wherever_it_is(lab: Lab) -> None:
    places = place(-3), place(-2)
    before = lab.seed(
        log=plain(places[0], place(-1)),
        detached=plain(places[1]),
        leases=dict.fromkeys(places, token(5)),
        failures={places[1]: 3},
    )

    assert lab.run(ack(lab, places[0], token(5), places[1], token(5))) == [b"ok", b"", b"", b""]
    gone = dict.fromkeys(places)
    assert lab.snapshot() == changed(
        before, meta={"acked": 2}, log={places[0]: None}, detached={places[1]: None}, leases=gone, failures=gone
    )


LOST = {
    "another token": (place(-1), token(5, 1)),
    "a lease of another consumer": (place(-2), token(4)),
    "no lease": (place(-3), token(5)),
    "no message": (place(-9), token(5)),
    "no number": (place(-1), "x"),
    "not a number": (place(-1), "nan"),
}


@pytest.mark.parametrize("why", LOST)
@pytest.mark.parametrize("build", [ack, renew, nack, reject])
def test_a_delivery_that_is_not_held_is_lost_and_nothing_changes(lab: Lab, build: Build, why: str) -> None:
    before = lab.seed(log=plain(place(-3), place(-2), place(-1)), leases={place(-1): token(5), place(-2): token(5)})

    reply = lab.run(build(lab, *LOST[why]))

    assert reply[-1] == [LOST[why][0].encode()]
    assert lab.snapshot() == before


@pytest.mark.parametrize("build", [ack, renew])
def test_a_lease_ends_with_its_millisecond_whether_or_not_anybody_has_noticed(lab: Lab, build: Build) -> None:
    before = lab.seed(log=plain(place(-1)), leases={place(-1): token(5, 999)})

    reply = lab.run(build(lab, place(-1), token(5, 999), now=NOW + 5))
    assert reply[-1] == [place(-1).encode()]
    assert lab.snapshot() == before

    reply = lab.run(build(lab, place(-1), token(5, 999), now=NOW + 4))
    assert not reply[-1]


@pytest.mark.parametrize("build", [ack, renew])
@pytest.mark.parametrize("option", ["expires", "auto_delete_on_idle"])
def test_a_queue_whose_lifetime_is_over_is_refused_though_the_lease_holds(lab: Lab, build: Build, option: str) -> None:
    lab.seed(options={option: 5}, log=plain(place(-1)), leases={place(-1): token(9)})

    command = build(lab, place(-1), token(9), now=NOW + 5)
    assert lab.refusal(command) == [b"queue_expired"]
    command = build(lab, place(-1), token(9), now=NOW + 4)
    assert not lab.run(command)[-1]


def test_the_number_of_a_grant_goes_into_the_token_modulo_a_thousand(lab: Lab) -> None:
    lab.seed(log=plain(place(-1)), leases={place(-1): token(5)}, meta={"lease_grants": 2000})

    assert lab.run(renew(lab, place(-1), token(5)))[2] == b"%d" % token(1000, 0)


def test_a_message_that_is_renewed_given_back_and_taken_in_one_millisecond_has_another_token(lab: Lab) -> None:
    lab.seed(log=plain(place(-1)), leases={place(-1): token(5)}, meta={"lease_grants": 7})

    renewed = lab.run(renew(lab, place(-1), token(5)))[2]
    lab.run(nack(lab, place(-1), renewed))

    assert lab.run(commands.receive(lab.known(), 1, 1000, now=NOW))[5] not in (b"", renewed)


ME = place(-1)
LATER = 9
Settle = Callable[[Lab, int], Command]


SETTLES: dict[str, Settle] = {
    "ack": lambda lab, now: commands.ack(lab.keyspace, "orders", [ME, token(5)], now=now),
    "nack": lambda lab, now: commands.nack(lab.known(), [ME, token(5)], now=now),
    "reject": lambda lab, now: commands.reject(lab.known(), [ME, token(5)], now=now),
    "receive": lambda lab, now: commands.receive(lab.known(), 0, 1, finished=[ME, token(5)], now=now),
}


def outcome(lab: Lab, how: str, now: int) -> str:
    """Repeat a settle. Returns its outcome; the repeat changed nothing."""
    before = lab.snapshot()
    reply = lab.run(SETTLES[how](lab, now).as_replay())
    assert lab.snapshot() == before
    unknown, lost = (reply[9], reply[6]) if how == "receive" else reply[2:]
    assert not (unknown and lost)
    return "unknown" if unknown else "lost" if lost else "done"


@pytest.mark.parametrize("how", SETTLES)
def test_a_message_that_is_gone_was_settled_while_the_lease_would_hold_and_later_nobody_knows(
    lab: Lab, how: str
) -> None:
    """It may have expired, or another consumer has handled it."""
    lab.seed()

    assert (outcome(lab, how, NOW + 4), outcome(lab, how, NOW + 5)) == ("done", "unknown")


@pytest.mark.parametrize("how", SETTLES)
@pytest.mark.parametrize("now", [NOW + 4, NOW + LATER])
def test_a_message_of_another_consumer_is_lost(lab: Lab, how: str, now: int) -> None:
    lab.seed(log=plain(ME), leases={ME: token(99)})

    assert outcome(lab, how, now) == "lost"


@pytest.mark.parametrize("how, told", [("ack", "lost"), ("nack", "unknown"), ("reject", "lost"), ("receive", "lost")])
@pytest.mark.parametrize("away", [{}, {"delayed": {ME: NOW + 99}}])
def test_a_message_that_is_back_after_the_lease_was_not_settled_but_perhaps_given_back(
    lab: Lab, how: str, told: str, away: dict[str, Any]
) -> None:
    lab.seed(log=plain(ME), **(away or {"requeued": {ME: NOW - 1}}))

    assert outcome(lab, how, NOW + LATER) == told


@pytest.mark.parametrize("how", ["ack", "reject", "receive"])
def test_a_message_whose_lease_has_just_ended_was_not_settled(lab: Lab, how: str) -> None:
    lab.seed(log=plain(ME), leases={ME: token(5)}, meta={"due_at": ""})

    assert outcome(lab, how, NOW + 5) == "lost"


LEASES = "rqttl:{orders}:leases"


def grant(lab: Lab, count: int) -> tuple[list[bytes], bytes]:
    """Store messages, and lease all of them in one call. Returns their sequences and the token."""
    lab.seed("orders", {})
    known = lab.known("orders")
    lab.run(commands.enqueue(known, [commands.pack(b"x")] * count, now=NOW))
    reply: Any = lab.run(commands.receive(known, count, 60_000, now=NOW))
    return reply[7][::3], reply[5]


def ack_batch(lab: Lab, seqs: list[bytes], token: bytes) -> list[object]:
    """Settle messages of one token. Returns the unknown and the lost ones."""
    words: list[Word] = [word for seq in seqs for word in (seq, token)]
    return list(lab.run(commands.ack(lab.keyspace, "orders", words, now=NOW)))[2:]


@pytest.mark.parametrize("count, is_fast", [(100, True), (10, False)])
def test_a_large_batch_of_leases_is_a_skip_list_from_the_start_and_holds_nothing_else(
    lab: Lab, client: redis.Redis, count: int, is_fast: bool
) -> None:
    seqs, _ = grant(lab, count)

    assert (client.object("encoding", LEASES) == b"skiplist") is is_fast
    assert len(seqs) == count
    assert client.zrange(LEASES, 0, -1) == seqs


def test_an_ack_of_a_batch_in_order_asks_for_no_score(lab: Lab, client: redis.Redis) -> None:
    seqs, token = grant(lab, 100)
    client.config_resetstat()

    assert ack_batch(lab, seqs[:50], token) == [b"", b""]
    assert ack_batch(lab, seqs[50:], token) == [b"", b""]

    stats: Any = client.info("commandstats")
    assert "cmdstat_zmscore" not in stats
    assert (client.zcard(LEASES), client.xlen("rqttl:{orders}:log")) == (0, 0)


@pytest.mark.parametrize("chosen", [slice(None, None, -1), slice(None, None, 2)], ids=["in any order", "every second"])
def test_an_ack_of_a_batch_settles_those_that_it_names(lab: Lab, client: redis.Redis, chosen: slice) -> None:
    seqs, token = grant(lab, 100)

    assert ack_batch(lab, seqs[chosen], token) == [b"", b""]
    left = [seq for seq in seqs if seq not in seqs[chosen]]
    assert (client.zrange(LEASES, 0, -1), client.xlen("rqttl:{orders}:log")) == (left, len(left))


@pytest.mark.parametrize("settled", [0, 50, 99])
def test_an_ack_of_a_batch_reports_the_one_that_is_settled_already(lab: Lab, settled: int) -> None:
    seqs, token = grant(lab, 100)
    ack_batch(lab, [seqs[settled]], token)

    assert ack_batch(lab, seqs, token) == [b"", [seqs[settled]]]


def test_an_ack_of_a_batch_with_the_token_of_another_changes_nothing(lab: Lab, client: redis.Redis) -> None:
    seqs, token = grant(lab, 100)

    assert ack_batch(lab, seqs, b"%d" % (int(token) + 1)) == [b"", seqs]
    assert client.zrange(LEASES, 0, -1) == seqs


PLACE = "1699999999999-100000"
GROWING = {"redelivery_delay": "5s", "redelivery_multiplier": 2, "redelivery_max_delay": "15s"}


def held(lab: Lab, options: dict[str, Any], *, failed: int = 0, ends: int = 500, **parts: Any) -> None:
    """One message out, which has failed before so many times."""
    if failed:
        parts["failures"] = {PLACE: failed}
    lab.seed(options=options, **{"log": plain(PLACE), **parts}, leases={PLACE: token(ends)})


def fail(lab: Lab, **words: Any) -> Command:
    return nack(lab, PLACE, token(500), **words)


def ready_at(lab: Lab) -> int | None:
    """Return the ms from the `now` of the test until the message is ready; `None` if it is ready."""
    state = lab.snapshot()["orders"]
    if "delayed" not in state:
        assert PLACE in state["requeued"]
        return None
    assert "requeued" not in state
    assert state["meta"]["due_at"] <= state["delayed"][PLACE]
    return int(state["delayed"][PLACE] - NOW)


@pytest.mark.parametrize("failed", [100, 10_000, 10**15])
@pytest.mark.parametrize("options,pause", [({}, MAX_DURATION), ({"redelivery_max_delay": "1h"}, 3_600_000)])
def test_however_often_it_failed_a_pause_is_bounded(lab: Lab, options: dict[str, Any], pause: int, failed: int) -> None:
    held(lab, {"redelivery_delay": "1s", "redelivery_multiplier": 10**6, **options}, failed=failed)

    lab.run(fail(lab))

    assert ready_at(lab) == pause


@pytest.mark.parametrize("who", ["sweep", "receive", "stats"])
def test_a_lease_that_ended_is_a_failure_in_each_command_that_notices_it(lab: Lab, who: str) -> None:
    held(lab, GROWING, failed=1, ends=0)
    known = lab.known()

    lab.run(
        {
            "sweep": commands.sweep(known, now=NOW),
            "stats": commands.stats(known, now=NOW),
            "receive": commands.receive(known, 1, 1000, now=NOW),
        }[who]
    )

    assert ready_at(lab) == 10_000
    assert lab.snapshot()["orders"]["failures"] == {PLACE: 2}


@pytest.mark.parametrize("ago,pause", [(1, 4_999), (4_999, 1), (5_000, None), (3_600_000, None)])
def test_a_pause_begins_where_the_lease_ended_however_late_that_is_noticed(
    lab: Lab, ago: int, pause: int | None
) -> None:
    held(lab, GROWING, ends=-ago)

    lab.run(commands.sweep(lab.known(), now=NOW))

    assert ready_at(lab) == pause


def test_after_a_pause_that_is_over_the_message_is_handed_out_by_the_call_that_notices(lab: Lab) -> None:
    held(lab, GROWING, ends=-5_000)

    reply = lab.run(commands.receive(lab.known(), 1, 1000, now=NOW))

    assert reply[7][::3] == [PLACE.encode()]
    assert reply[8] == [PLACE.encode(), 1]


WHY = [b"ValueError: no such item", b" ", b"5", b" 7 ", b"\n", b"a\x00b 1", "é😀".encode(), b"x" * 4096]


@pytest.mark.parametrize("how", ["nack_command", "lease"])
@pytest.mark.parametrize("why", WHY)
def test_a_death_has_the_error_before_if_the_last_failure_had_no_description(lab: Lab, how: str, why: bytes) -> None:
    lab.seed("dead")
    options = {"dead_letter": "dead", "max_deliveries": 3}
    held(lab, options, ends=0 if how == "lease" else 500, failures={PLACE: b"2 " + why})

    lab.run(commands.sweep(lab.known(), now=NOW) if how == "lease" else fail(lab))

    state = lab.snapshot()
    ((header, _),) = state["dead"]["log"].values()
    (died,) = codec.unpack_header(header).deaths
    assert (died.reason, died.delivery_count, died.description) == ("delivery_limit", 3, why.decode())
    assert "failures" not in state["orders"]
