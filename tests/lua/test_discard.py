"""`discard`: ready messages that a reader of the log has handled go, and no others; it is no loss."""

from __future__ import annotations

from typing import Any

import pytest

from rqttl.protocol import commands
from tests.lua.states import NOW, Lab, at, changed, place, plain, token

FIRST = "0000000000000-000000"


def discard(lab: Lab, upto: str, after: str = FIRST, *, created_at: int = NOW) -> Any:
    return lab.run(commands.discard(lab.keyspace, "orders", created_at, after, upto))


def test_ready_messages_up_to_the_mark_go_and_the_others_stay_and_nothing_is_lost(lab: Lab) -> None:
    before = lab.seed(
        log={
            **plain(place(-9), place(-8), place(-6), place(-4), place(-4, 1)),
            place(-5): (at(9), b"with a deadline"),
        },
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


def test_leased_messages_go_once_they_are_ready_again(lab: Lab) -> None:
    lab.seed(log=plain(place(-9), place(-8)), leases={place(-9): token(9)}, meta={"cursor": place(-9)})
    assert discard(lab, place(-8))[2:] == [1, 0, 1]

    lab.run(commands.nack(lab.known(), [place(-9), token(9)], now=NOW))
    assert discard(lab, place(-8))[2:] == [1, 0, 0]
    assert "log" not in lab.snapshot()["orders"]


def test_another_queue_of_the_name_is_left_alone(lab: Lab) -> None:
    before = lab.seed(log=plain(place(-9)))

    assert discard(lab, place(-1), created_at=NOW - 1)[:2] == [b"refused", b"not_found"]
    assert lab.snapshot() == before
