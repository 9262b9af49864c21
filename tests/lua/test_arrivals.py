"""The index of arrivals: marks of dead-letter queues, written with every 1,024th letter and trimmed with the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rqttl.protocol import commands
from rqttl.protocol.commands import Command
from tests.encoded import enqueue_encoded
from tests.lua.states import NOW, Lab, at, place, plain, token

DEAD = "dead"


def bury(lab: Lab, count: int) -> None:
    """Let `count` expired messages of `orders` die at `NOW`, at most 250 in each sweep."""
    places = [place(-5_000, i) for i in range(count)]
    lab.seed(
        options={"dead_letter": DEAD}, log=dict.fromkeys(places, (at(-1), b"x")), expiry=dict.fromkeys(places, NOW)
    )
    for _ in range(-(-count // 250)):
        lab.run(commands.sweep(lab.known(), now=NOW))


def reject_one(lab: Lab) -> None:
    """Let one message of `orders` die at `NOW`."""
    lab.seed(options={"dead_letter": DEAD}, log=plain(place(-5)), leases={place(-5): token(5)})
    lab.run(commands.reject(lab.known(), (place(-5), token(5)), now=NOW))


def marks(lab: Lab, queue: str = DEAD) -> dict[str, int]:
    """The marks of a queue: sequences with numbers of arrivals. The score is the time of the sequence."""
    raw: Any = lab.client.zrange(lab.keyspace.key(queue, "arrivals"), 0, -1, withscores=True)
    found = {}
    for member, score in raw:
        sequence, count, *_ = member.decode().split(" ")
        assert int(sequence[:13]) == score
        found[sequence] = int(count)
    return found


def index(*pairs: tuple[str, int]) -> dict[str, int]:
    """The part `arrivals` with these marks."""
    return {f"{sequence} {count} {count} {count}": int(sequence[:13]) for sequence, count in pairs}


def test_sweeps_mark_the_letter_with_which_1024_more_have_arrived(lab: Lab) -> None:
    lab.seed(DEAD)

    bury(lab, 2_500)

    found, letters = marks(lab), list(lab.snapshot()[DEAD]["log"])
    assert list(found.values()) == [1_250, 2_250]
    assert {sequence: letters.index(sequence) + 1 for sequence in found} == found
    assert lab.snapshot()[DEAD]["meta"]["enqueued"] == 2_500


@pytest.mark.parametrize("before, marked", [(0, []), (1_022, []), (1_023, [1_024]), (1_024, []), (2_047, [2_048])])
def test_a_single_letter_is_marked_if_it_is_a_1024th(lab: Lab, before: int, marked: list[int]) -> None:
    lab.seed(DEAD, meta={"enqueued": before})

    reject_one(lab)

    assert list(marks(lab).values()) == marked


def test_a_mark_has_the_letters_up_to_it_and_the_bytes_of_their_headers_and_bodies(lab: Lab) -> None:
    lab.seed(DEAD)
    lab.run(enqueue_encoded(lab.known(DEAD), [(b"", b"sent")], now=NOW))

    bury(lab, 1_600)

    log = lab.snapshot()[DEAD]["log"]
    sizes = [len(header) + len(body) for header, body in log.values()]
    upto = list(log)[1_250]
    assert list(lab.snapshot()[DEAD]["arrivals"]) == [f"{upto} 1251 1250 {sum(sizes[1:1251])}"]
    meta = lab.snapshot()[DEAD]["meta"]
    assert (meta["enqueued"], meta["letters"], meta["letter_bytes"]) == (1_601, 1_600, sum(sizes[1:]))


def test_a_mark_removes_marks_before_the_first_letter_but_for_the_newest(lab: Lab) -> None:
    old = index((place(-9_000), 1), (place(-8_000), 2), (place(-7_000), 3), (place(-50), 4), (place(-40), 5))
    lab.seed(DEAD, log=plain(place(-50)), arrivals=old, meta={"enqueued": 1_023})

    reject_one(lab)

    assert marks(lab) == {place(-7_000): 3, place(-50): 4, place(-40): 5, place(): 1_024}


def test_one_call_removes_at_most_250_marks(lab: Lab) -> None:
    lab.seed(DEAD, arrivals=index(*((place(-9_000 + i), i) for i in range(600))), meta={"enqueued": 1_023})

    reject_one(lab)

    assert list(marks(lab).values()) == [*range(250, 600), 1_024]


def test_an_index_of_another_type_goes_and_the_letter_arrives(lab: Lab) -> None:
    lab.seed(DEAD, meta={"enqueued": 1_023})
    lab.seed(options={"dead_letter": DEAD}, log=plain(place(-5)), leases={place(-5): token(5)})
    lab.client.set(lab.keyspace.key(DEAD, "arrivals"), "no index")

    lab.run(commands.reject(lab.known(), (place(-5), token(5)), now=NOW))

    assert marks(lab) == {place(): 1_024}


OLD = index((place(-9), 1_024), (place(-8), 2_048), (place(-7), 3_072))


REMOVALS: dict[str, tuple[Callable[[Lab], Command], dict[str, int] | None]] = {
    "purge of all": (lambda lab: commands.purge(lab.keyspace, DEAD, ""), None),
    "purge of the first": (
        lambda lab: commands.purge(lab.keyspace, DEAD, "", tuple(place(ms) for ms in range(-10, -6))),
        index((place(-7), 3_072)),
    ),
    "purge in the middle": (lambda lab: commands.purge(lab.keyspace, DEAD, "", (place(-9), place(-8))), OLD),
    "discard": (
        lambda lab: commands.discard(lab.keyspace, DEAD, NOW, "0000000000000-000000", place(-7)),
        index((place(-7), 3_072)),
    ),
    "sweep": (lambda lab: commands.sweep(lab.known(DEAD), now=NOW), index((place(-7), 3_072))),
}


@pytest.mark.parametrize("how", REMOVALS)
def test_what_removes_letters_trims_the_index_to_the_first_that_stays(lab: Lab, how: str) -> None:
    command, left = REMOVALS[how]
    lab.seed(
        DEAD,
        options={"message_ttl": 7} if how == "sweep" else {},
        log=plain(*(place(ms) for ms in range(-10, -5))),
        arrivals=OLD,
        meta={"holds_dead_letters": 1},
    )

    lab.run(command(lab))

    assert lab.snapshot()[DEAD].get("arrivals") == left


@pytest.mark.parametrize("log", [{}, plain(place(-8))])
def test_a_deleted_queue_has_no_index(lab: Lab, log: dict[str, Any]) -> None:
    lab.seed(DEAD, log=log, arrivals=OLD)

    lab.run(commands.delete(lab.keyspace, DEAD, if_unused=False, if_empty=False, now=NOW))

    assert list(lab.snapshot()[DEAD]) == ["tombstone"]
