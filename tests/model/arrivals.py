"""The rule of the index of arrivals: each mark is true, and there are as many as lua/README.md says."""

from __future__ import annotations

from itertools import pairwise

from tests.model.queues import ModelQueue
from tests.model.raw import RawQueue

#: A mark comes with a letter that makes the number of arrivals a multiple of this, or with the last one of its call.
STEP = 3


def check_marks(q: ModelQueue, raw: RawQueue, earlier: RawQueue | None) -> None:
    """Compare the marks with the letters that have arrived. `earlier` is the queue before the operation."""
    q.sizes.update({seq: len(header) + len(body) for seq, (header, body) in raw.entries.items()})
    assert int(raw.meta.get(b"letters", 0)) == len(q.letters), f"{q.name}: dead letters"
    places = {seq: (enqueued, number) for number, (seq, enqueued) in enumerate(q.letters, 1)}
    marked = []
    for member, score in raw.arrivals.items():
        seq, *words = member.split(b" ")
        enqueued, letters, size = map(int, words)
        assert places.get(seq) == (enqueued, letters), f"{q.name}: a mark is not true"
        assert score == int(seq[:13])
        check_bytes(q, letters, size)
        marked.append(seq)
    crossings = [seq for seq, enqueued in q.letters if enqueued % STEP == 0]
    for before, mark in pairwise([b"", *marked]):
        assert any(before < seq <= mark for seq in crossings), f"{q.name}: a mark too much"
    due = [seq for seq in crossings if places[seq][1] > q.unmarked]
    assert not due or (marked and marked[-1] >= due[-1]), f"{q.name}: a mark is missing"
    if marked and earlier is not None and earlier.entries and not raw.arrivals.keys() <= earlier.arrivals.keys():
        first = int(next(iter(earlier.entries))[:13])
        old = [mark for mark in marked if int(mark[:13]) < first]
        assert len(old) <= 1, f"{q.name}: marks before the first letter stay"


def check_bytes(q: ModelQueue, letters: int, size: int) -> None:
    """Compare the bytes of a mark with those of its letters. Nobody has seen letters that left in their operation."""
    known = [q.sizes.get(seq) for seq, _ in q.letters[:letters]]
    least = sum(one for one in known if one is not None)
    assert size == least or (None in known and size > least), f"{q.name}: a mark has other bytes than its letters"
