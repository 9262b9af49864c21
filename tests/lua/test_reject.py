"""`reject`, and with it the history of deaths that a message carries."""

from __future__ import annotations

from typing import Any

import pytest

from rqttl.protocol import codec, commands
from rqttl.protocol.commands import Command, Word
from rqttl.types import Death
from rqttl.units import as_datetime
from tests.lua.states import NOW, Lab, at, changed, place, plain, token


def reject(lab: Lab, *deliveries: Word, queue: str = "orders", **words: Any) -> Command:
    return commands.reject(lab.known(queue), deliveries, **{"now": NOW, **words})


def history(header: bytes) -> list[tuple[str, str, int]]:
    return [(one.queue, one.reason, one.count) for one in codec.unpack_header(header).deaths]


def record(queue: str, reason: str, count: int = 1, first: int = -900, text: str = "") -> str:
    return f"{queue} {reason} {count} {NOW + first} {NOW - 800} {NOW - 900} - 0 {len(text)} {text}"


def buried(*records: str, id: str = "me") -> bytes:
    deaths = "".join(records)
    return f";{len(id)};{len(deaths)};{id}{deaths}".encode()


def test_a_rejected_message_is_dead_with_its_whole_story(lab: Lab) -> None:
    lab.seed("dead")
    before = lab.seed(
        options={"dead_letter": "dead"},
        log={place(-5): (b"%b;2;;me\x92\xc0\xc0" % at(70), b"x"), **plain(place(-1))},
        leases={place(-5): token(5)},
        failures={place(-5): 2},
    )

    assert lab.run(reject(lab, place(-5), token(5), description=b"no; such\n\0thing")) == [b"ok", b"", [], []]

    after = lab.snapshot()
    expected = changed(
        before,
        meta={"deaths:rejected": 1},
        log={place(-5): None},
        leases={place(-5): None},
        failures={place(-5): None},
    )
    ((header, body),) = after["dead"]["log"].values()
    letters = {"last_id": place(), "ready_bytes": 1, "holds_dead_letters": 1, "enqueued": 1, "letters": 1}
    letters["letter_bytes"] = len(header) + 1
    assert after == changed(expected, "dead", meta=letters, log={place(): (header, b"x")})
    facts = codec.unpack_header(header)
    assert (facts.id, facts.deadline, body) == ("me", None, b"x")
    assert header.endswith(b"\x92\xc0\xc0")
    assert facts.deaths == (
        Death(
            "orders",
            "rejected",
            1,
            first_at=as_datetime(NOW),
            last_at=as_datetime(NOW),
            enqueued_at=as_datetime(NOW - 5),
            expires_at=as_datetime(NOW + 70),
            delivery_count=3,
            description="no; such\n\0thing",
        ),
    )


def test_without_a_target_a_rejected_message_is_counted_as_dropped(lab: Lab) -> None:
    before = lab.seed(
        options={"dead_letter": "dead", "dead_letter_rejected": ""}, log=plain(place(-1)), leases={place(-1): token(5)}
    )

    lab.run(reject(lab, place(-1), token(5)))

    assert lab.snapshot() == changed(
        before, meta={"deaths:rejected": 1, "dropped:rejected": 1}, log={place(-1): None}, leases={place(-1): None}
    )


def test_a_queue_may_be_its_own_target_for_rejections(lab: Lab) -> None:
    before = lab.seed(
        options={"dead_letter_rejected": "{queue}", "message_ttl": 50},
        log=plain(place(-1)),
        leases={place(-1): token(5)},
        waiters={"c": NOW + 5},
    )

    lab.run(reject(lab, place(-1), token(5)))

    after = lab.snapshot()
    ((one, (header, body)),) = after["orders"]["log"].items()
    assert (one, body, history(header)) == (place(), b"0", [("orders", "rejected", 1)])
    assert codec.unpack_header(header).id == place(-1)
    meta = {"last_id": place(), "ready_bytes": 1, "holds_dead_letters": 1, "enqueued": 1, "deaths:rejected": 1}
    assert after == changed(
        before, meta=meta, log={place(-1): None, place(): (header, body)}, leases={place(-1): None}, wakeup=[""]
    )


def test_a_message_without_an_id_keeps_its_first_sequence_as_id_through_all_deaths(lab: Lab) -> None:
    lab.seed("third")
    lab.seed("second", options={"dead_letter": "third"})
    lab.seed(options={"dead_letter": "second"}, log=plain(place(-1)), leases={place(-1): token(5)})

    lab.run(reject(lab, place(-1), token(5)))
    lab.client.zadd("rqttl:{second}:leases", {place(): token(9)})
    lab.run(reject(lab, place(), token(9), queue="second", now=NOW + 1))

    ((header, _),) = lab.snapshot()["third"]["log"].values()
    assert codec.unpack_header(header).id == place(-1)
    assert history(header) == [("second", "rejected", 1), ("orders", "rejected", 1)]


def test_dying_again_of_the_same_cause_moves_the_record_to_the_front_and_counts(lab: Lab) -> None:
    older = buried(
        record("b", "expired", text="one two"), record("orders", "rejected", 4, text=";\n"), record("c", "maxlen")
    )
    lab.seed("dead")
    lab.seed(options={"dead_letter": "dead"}, log={place(-1): (older, b"x")}, leases={place(-1): token(5)})

    lab.run(reject(lab, place(-1), token(5), description=b"new"))

    ((header, _),) = lab.snapshot()["dead"]["log"].values()
    first, second, third = codec.unpack_header(header).deaths
    assert history(header) == [("orders", "rejected", 5), ("b", "expired", 1), ("c", "maxlen", 1)]
    assert (first.first_at, first.last_at) == (as_datetime(NOW - 900), as_datetime(NOW))
    assert (first.description, second.description, third.description) == ("new", "one two", None)


def test_extras_of_a_sender_are_no_history(lab: Lab) -> None:
    forged = b";2;;me" + record("orders", "expired", 99).encode()
    lab.seed("dead")
    lab.seed(options={"dead_letter": "dead"}, log={place(-1): (forged, b"x")}, leases={place(-1): token(5)})

    lab.run(reject(lab, place(-1), token(5)))

    ((header, _),) = lab.snapshot()["dead"]["log"].values()
    assert header.endswith(record("orders", "expired", 99).encode())
    lengths = header.split(b";", 3)
    assert int(lengths[2]) == len(header) - len(b";2;00;me") - len(record("orders", "expired", 99)) - 0


@pytest.mark.parametrize("delivery", [(place(-1), token(4)), (place(-3), token(5)), (place(-9), token(5))])
def test_a_delivery_that_is_not_held_is_lost_and_nothing_changes(lab: Lab, delivery: tuple[str, int]) -> None:
    before = lab.seed(options={"dead_letter": "dead"}, log=plain(place(-3), place(-1)), leases={place(-1): token(5)})

    assert lab.run(reject(lab, *delivery))[-1] == [delivery[0].encode()]
    assert lab.snapshot() == before


@pytest.mark.parametrize("target", ["dead", "{queue}"])
def test_repeated_after_a_lost_reply_our_own_success_is_not_lost_to_us(lab: Lab, target: str) -> None:
    lab.seed("dead")
    lab.seed(options={"dead_letter_rejected": target}, log=plain(place(-1)), leases={place(-1): token(5)})
    command = reject(lab, place(-1), token(5))

    assert lab.run(command)[-1] == []
    after = lab.snapshot()
    assert lab.run(command.as_replay())[-1] == []
    assert lab.snapshot() == after


# Circles


def expire_once(lab: Lab, header: bytes) -> dict[str, Any]:
    lab.seed("b")
    lab.seed(options={"dead_letter": "b"}, log={place(-1): (header, b"x")}, expiry={place(-1): NOW})
    lab.run(commands.sweep(lab.known(), now=NOW))
    return lab.snapshot()


def test_an_automatic_circle_is_broken_and_counted(lab: Lab) -> None:
    after = expire_once(lab, buried(record("b", "expired"), record("a", "maxlen")))

    assert "log" not in after["b"]
    meta = after["orders"]["meta"]
    assert (meta["deaths:expired"], meta["dropped:cycle"]) == (1, 1)
    assert "dropped:expired" not in meta


def test_a_circle_further_back_is_broken_too(lab: Lab) -> None:
    after = expire_once(lab, buried(record("a", "maxlen"), record("b", "expired")))

    assert after["orders"]["meta"]["dropped:cycle"] == 1


def test_a_circle_with_a_rejection_since_goes_round(lab: Lab) -> None:
    after = expire_once(lab, buried(record("a", "rejected"), record("b", "expired")))

    ((header, _),) = after["b"]["log"].values()
    assert history(header) == [("orders", "expired", 1), ("a", "rejected", 1), ("b", "expired", 1)]


def test_a_rejection_before_the_circle_does_not_open_it(lab: Lab) -> None:
    after = expire_once(lab, buried(record("b", "expired"), record("a", "rejected")))

    assert after["orders"]["meta"]["dropped:cycle"] == 1


def test_a_rejection_closes_no_circle(lab: Lab) -> None:
    lab.seed("b")
    header = buried(record("b", "expired"))
    lab.seed(options={"dead_letter": "b"}, log={place(-1): (header, b"x")}, leases={place(-1): token(5)})

    lab.run(reject(lab, place(-1), token(5)))

    assert len(lab.snapshot()["b"]["log"]) == 1
