"""`purge`, `delete` and `discard`: what goes, and what stays."""

from typing import Any

import pytest

from rqttl.protocol import commands
from rqttl.protocol.commands import Command
from tests.encoded import enqueue_encoded
from tests.lua.states import NOW, Lab, at, changed, place, plain, token


def purge(lab: Lab, upto: str = "", *ids: str) -> Any:
    return lab.run(commands.purge(lab.keyspace, "orders", upto, ids))


def delete(lab: Lab, **conditions: bool) -> Command:
    return commands.delete(lab.keyspace, "orders", **{"if_unused": False, "if_empty": False, **conditions}, now=NOW)


def test_many_go_step_by_step_up_to_where_the_purge_began(lab: Lab) -> None:
    lab.seed(log=plain(*[place(-9, i) for i in range(600)]), leases={place(-9): token(9)})

    first = purge(lab)
    lab.run(enqueue_encoded(lab.known(), [(b"", b"new")], now=NOW))
    rest = [purge(lab, first[4].decode()) for _ in range(2)]

    assert [one[2:4] for one in (first, *rest)] == [[250, 1], [250, 1], [99, 0]]
    state = lab.snapshot()["orders"]
    assert list(state["log"]) == [place(-9), place()]
    assert (state["meta"]["purged"], state["meta"]["ready_bytes"]) == (599, 3)


# Purging chosen messages


def test_of_the_chosen_ones_only_those_that_are_ready_go_also_if_they_were_moved_aside(lab: Lab) -> None:
    before = lab.seed(
        log={
            **plain(place(-7), place(-6), place(-5), place(-3), place(-2), place(-1)),
            place(-4): (at(9), b"with a deadline"),
        },
        detached={**plain(place(-13), place(-11)), place(-12): (at(9), b"xyz")},
        leases={place(-11): token(9), place(-7): token(9)},
        delayed={place(-6): NOW + 9},
        requeued={place(-13): NOW - 13, place(-12): NOW - 12, place(-5): NOW - 5},
        expiry={place(-12): NOW + 9, place(-4): NOW + 9},
        failures={place(-7): 1, place(-5): 2},
    )

    chosen = [place(-ms) for ms in (12, 11, 9, 7, 6, 5, 4, 2, 0)]
    assert purge(lab, "", *chosen) == [b"ok", b"", 4, 0, place(0).encode()]
    assert lab.snapshot() == changed(
        before,
        meta={"ready_bytes": 3, "purged": 4},
        log={place(-5): None, place(-4): None, place(-2): None},
        detached={place(-12): None},
        requeued={place(-12): None, place(-5): None},
        expiry={place(-12): None, place(-4): None},
        failures={place(-5): None},
    )


def test_of_large_bodies_few_go_in_one_call_and_the_reply_says_up_to_where(lab: Lab) -> None:
    chosen = [place(-9, i) for i in range(10)]
    lab.seed(log=dict.fromkeys(chosen, (b"", b"x" * 1000000)))

    assert purge(lab, "", *chosen)[2:] == [5, 1, chosen[4].encode()]
    assert list(lab.snapshot()["orders"]["log"]) == chosen[5:]
    assert purge(lab, "", *chosen[5:])[2:] == [5, 0, chosen[9].encode()]


def test_delete_leaves_a_hint_for_each_waiting_consumer_for_a_minute(lab: Lab) -> None:
    lab.seed(wakeup=["", "ticket"], waiters={"a": NOW + 1, "b": NOW + 1, "gone": NOW, place(-1): -NOW - 1})

    lab.run(delete(lab))

    assert lab.snapshot()["orders"]["wakeup"] == ["", ""]
    assert 5_000 < lab.client.pttl(lab.keyspace.key("orders", "wakeup")) <= 60_000


def test_delete_leaves_a_bounded_number_of_hints(lab: Lab) -> None:
    lab.seed(waiters={f"c{i}": NOW + 1 for i in range(1_001)})

    lab.run(delete(lab))

    assert lab.snapshot()["orders"]["wakeup"] == [""] * 1_000


def test_a_new_queue_takes_over_no_hints_of_a_deleted_one(lab: Lab) -> None:
    lab.seed(waiters={"c": NOW + 1})
    lab.run(delete(lab))
    lab.seed("source", options={"dead_letter": "orders"}, log=plain(place(-1)), leases={place(-1): token(1)})

    lab.run(commands.reject(lab.known("source"), [place(-1), str(token(1))], now=NOW))  # makes it

    assert lab.snapshot()["orders"].keys() == {"meta", "log", "tombstone"}
    lab.run(delete(lab))
    assert "wakeup" not in lab.seed()["orders"]


@pytest.mark.parametrize("conditions", [{}, {"if_unused": True}])
def test_delete_leaves_but_a_trace_of_the_queue_and_all_of_others(lab: Lab, conditions: dict[str, bool]) -> None:
    before = lab.seed("other", log=plain(place(-1)))
    lab.seed(
        options={"dead_letter": "other"},
        log=plain(place(-4), place(-3), place(-2)),
        detached=plain(place(-5)),
        expiry={place(-2): NOW + 5},
        leases={place(-4): token(5)},
        delayed={place(-3): NOW + 5},
        requeued={place(-5): NOW - 5},
        failures={place(-5): 1},
        wakeup=[""],
        waiters={"c": NOW},
        consumers={"c": NOW},
    )

    assert lab.run(delete(lab, **conditions)) == [b"ok", b"", 2]
    assert lab.snapshot() == {
        **before,
        "orders": {"tombstone": {"created_at": NOW, "last_id": place(-2), "trimmed_upto": "0-0", "deleted": NOW}},
    }


def test_delete_if_unused_is_refused_while_there_are_consumers(lab: Lab) -> None:
    lab.seed(consumers={"a": NOW + 1, "b": NOW + 1, "gone": NOW})

    assert lab.refusal(delete(lab, if_unused=True)) == [b"in_use", b"if_unused", 2]


def test_delete_with_another_version_is_refused(lab: Lab) -> None:
    before = lab.seed(log=plain(place(0)))
    command = commands.delete(lab.keyspace, "orders", if_unused=False, if_empty=False, known=b"other", now=NOW)

    assert lab.refusal(command) == [b"stale"]
    assert lab.snapshot() == before


def test_delete_if_empty_counts_messages_that_were_moved_aside(lab: Lab) -> None:
    lab.seed(detached=plain(place(-1)), requeued={place(-1): NOW - 1})

    assert lab.refusal(delete(lab, if_empty=True)) == [b"in_use", b"if_empty", 1]


FIRST = "0000000000000-000000"


def discard(lab: Lab, upto: str, after: str = FIRST, *, created_at: int = NOW) -> Any:
    return lab.run(commands.discard(lab.keyspace, "orders", created_at, after, upto))


def test_ready_messages_up_to_the_mark_go_and_the_others_stay_and_nothing_is_lost(lab: Lab) -> None:
    before = lab.seed(
        log={**plain(place(-9), place(-8), place(-6), place(-4), place(-4, 1)), place(-5): (at(9), b"with a deadline")},
        detached=plain(place(-7)),
        requeued={place(-7): NOW - 7},
        failures={place(-7): 1},
        leases={place(-9): token(9)},
        delayed={place(-8): NOW + 9},
        expiry={place(-5): NOW + 9},
        meta={"cursor": place(-7)},
    )

    assert discard(lab, place(-4)) == [b"ok", b"", 4, 0, 2]
    assert lab.snapshot() == changed(
        before,
        meta={"ready_bytes": 1, "purged": 4, "cursor": place(-4)},
        log={place(-6): None, place(-5): None, place(-4): None},
        detached={place(-7): None},
        requeued={place(-7): None},
        failures={place(-7): None},
        expiry={place(-5): None},
    )


def test_a_leased_message_between_one_that_came_back_and_one_that_was_never_out_stays(lab: Lab) -> None:
    back, out, fresh = place(-9), place(-8), place(-7)
    lab.seed(log=plain(back, out, fresh), requeued={back: NOW - 9}, leases={out: token(9)}, meta={"cursor": out})

    assert discard(lab, fresh) == [b"ok", b"", 2, 0, 1]
    assert list(lab.snapshot()["orders"]["log"]) == [out]


@pytest.mark.parametrize("requeued", [False, True])
def test_messages_up_to_the_start_of_the_reader_stay_ready_also_in_the_same_millisecond(
    lab: Lab, requeued: bool
) -> None:
    places = [place(-9, i) for i in range(600)]
    aside: dict[str, Any] = {"detached": plain(*places), "requeued": dict.fromkeys(places, NOW - 9)}
    lab.seed(**(aside if requeued else {"log": plain(*places)}))

    steps = [discard(lab, places[598], places[299])[2:4] for _ in range(2)]
    assert steps == ([[200, 1], [99, 0]] if requeued else [[250, 1], [49, 0]])

    left = lab.snapshot()["orders"]
    assert sorted(left["detached" if requeued else "log"]) == [*places[:300], places[599]]
    assert left["meta"]["trimmed_upto"] == "0-0"
    entries = lab.run(commands.receive(lab.known(), 300, 50, now=NOW))
    assert len(entries[7]) == 900


def test_another_queue_of_the_name_is_left_alone(lab: Lab) -> None:
    before = lab.seed(log=plain(place(-9)))

    assert discard(lab, place(-1), created_at=NOW - 1)[:2] == [b"refused", b"not_found"]
    assert lab.snapshot() == before
