"""Replies taken apart in one pass: they give back all entries, cut anywhere, with any bodies."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_connectors.redis import pages
from spark_connectors.redis.pages import SPARE_BYTES, Page, PageBuffer, UnexpectedReply

SEQUENCE = b"1700000000000-100000"
FORGED = b"*2\r\n$20\r\n" + SEQUENCE + b"\r\n*2\r\n$3\r\nabc\r\n$2\r\nxx\r\n"

PIECES = st.sampled_from(
    [
        FORGED,
        FORGED[:9],
        FORGED[:29],
        FORGED[:36],
        b"*2\r\n$20\r\n" * 2,
        b"\r\n",
        b"\r",
        b"*",
        b"$",
        b"9\r\n\r\n",
        b"0",
        b"99999999999\r\n",
        b"x" * 90,
        b"x" * 300,
    ]
)
TEXTS = st.lists(PIECES | st.binary(max_size=12), max_size=4).map(b"".join)
# bodies of one length are found in another way than others
ALIKE = st.integers(0, 40).flatmap(lambda n: st.tuples(st.just(b"h" * (n % 7)), st.binary(min_size=n, max_size=n)))
ENTRIES = st.lists(st.tuples(TEXTS, TEXTS), max_size=8) | ALIKE.flatmap(lambda one: st.lists(st.just(one), max_size=20))
GARBAGE = st.binary(min_size=SPARE_BYTES, max_size=SPARE_BYTES) | st.sampled_from(
    [b"\r\n" * 32, b"0" * SPARE_BYTES, b"*2\r\n$20\r\n1" * 6]
)


def bulk(text: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(text), text)


def entry(sequence: bytes, header: bytes, body: bytes) -> bytes:
    return b"*2\r\n" + bulk(sequence) + b"*2\r\n" + bulk(header) + bulk(body)


def replies(*lists: list[tuple[bytes, bytes]]) -> bytes:
    return b"".join(
        b"*%d\r\n" % len(some) + b"".join(entry(sequence(i), *one) for i, one in enumerate(some)) for some in lists
    )


def sequence(i: int) -> bytes:
    return b"%013d-100000" % (1_700_000_000_000 + i)


def look(raw: bytes, count: int, behind: bytes = b"\r\n" * 32, start: int = 0) -> tuple[list[Page], int]:
    return pages.parse_pages(np.frombuffer(raw + behind, np.uint8), start, len(raw), count)


def taken_apart(page: Page) -> list[tuple[bytes, bytes, bytes]]:
    headers = pages.take_bytes(page.data, page.header_starts, page.header_stops).to_pylist()
    bodies = pages.take_bytes(page.data, page.body_starts, page.body_stops).to_pylist()
    return list(zip([page.sequence(i) for i in range(len(page))], headers, bodies, strict=True))


@given(st.lists(ENTRIES, min_size=1, max_size=4), TEXTS, GARBAGE)
@example([[(b"", b"x")]], b"", b"\r\n" * 32)
@example([[(b"h", b"*2\r\n$20\r\n")] * 2, [], [(b"", FORGED)]], FORGED, FORGED[:36] + b"0" * 28)
def test_every_entry_of_a_page_is_found(lists: list[list[tuple[bytes, bytes]]], rest: bytes, behind: bytes) -> None:
    raw = replies(*lists)

    found = look(raw + rest, len(lists), behind)

    assert found[1] == len(raw)
    wanted = [[(sequence(i), *one) for i, one in enumerate(some)] for some in lists]
    assert [taken_apart(page) for page in found[0]] == wanted
    joined = PageBuffer().join(found[0])
    assert taken_apart(joined) == [one for some in wanted for one in some]
    assert joined.sequences().tobytes() == b"".join(one[0] for some in wanted for one in some)
    assert sum(page.reply_size for page in found[0]) <= len(raw)


@given(st.lists(ENTRIES, min_size=1, max_size=4), GARBAGE, st.data())
def test_a_cut_entry_is_waited_for_and_the_others_are_found(
    lists: list[list[tuple[bytes, bytes]]], behind: bytes, data: st.DataObject
) -> None:
    raw = replies(*lists)
    lines = [i for i in range(len(raw)) if raw[:i].endswith(b"\r\n")]
    ends = [len(replies(*lists[:i])) for i in range(len(lists) + 1)]

    cut = data.draw(st.sampled_from(lines) if lines else st.just(0))
    found, at = look(raw[:cut], len(lists), behind)
    rest, end = look(raw, len(lists) - len(found), behind, start=at)

    assert at == max(one for one in ends if one <= cut)
    assert end == len(raw)
    assert [taken_apart(page) for page in (*found, *rest)] == [
        [(sequence(i), *one) for i, one in enumerate(some)] for some in lists
    ]


@pytest.mark.parametrize("size", [9_999_999, 10_000_000])
@pytest.mark.parametrize("others", [[], [(b"h", b"x")]])
def test_a_text_of_many_digits_at_the_end_is_not_waited_for(size: int, others: list[tuple[bytes, bytes]]) -> None:
    raw = replies([*others, (b"h", b"x" * size)])

    assert look(raw[:-7], 1)[0] == []
    found, end = look(raw, 1)

    assert [page.message_sizes().tolist() for page in found] == [[*(2 for _ in others), size + 1]]
    assert end == len(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"-NOPERM this user has no permissions\r\n",
        b"+OK\r\n",
        b":1\r\n",
        b"*-1\r\n",
        b"*1\r\n*2\r\n" + bulk(b"1-1") + b"*2\r\n" + bulk(b"") + bulk(b""),
        b"*1\r\n*2\r\n" + bulk(SEQUENCE) + b"*4\r\n" + bulk(b"a") + bulk(b"b") + bulk(b"c") + bulk(b"d"),
        b"*1\r\n*2\r\n" + bulk(SEQUENCE) + b"*10\r\n" + 10 * bulk(b"abc"),
        b"*1\r\n*2\r\n" + bulk(b"1-1") + b"*2\r\n" + bulk(b"") + bulk(FORGED.replace(b"$3", b"$x")),
        b"*2\r\n" + entry(SEQUENCE, b"", b"") + b"*2\r\n" + bulk(SEQUENCE) + b"*4\r\n" + 4 * bulk(b""),
        b"*2\r\n" + entry(SEQUENCE, b"", FORGED) + b"*2\r\n" + bulk(b"1-1") + b"*2\r\n" + 2 * bulk(b""),
    ],
)
def test_a_reply_that_is_no_page_of_messages_is_unexpected(raw: bytes) -> None:
    with pytest.raises(UnexpectedReply):
        look(raw, 1)
