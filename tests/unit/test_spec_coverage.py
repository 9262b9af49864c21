"""No row of the specification is open, and no test names a row that does not exist."""

from __future__ import annotations

import re

from tests.spec_coverage import ROWS, Row, marks, read_marks, read_rows, report, status


def rows() -> list[Row]:
    return read_rows(ROWS.read_text(encoding="utf-8"))


def test_no_row_is_open() -> None:
    tests = read_marks()

    assert [row.id for row in rows() if status(row, tests) == "open"] == []


def test_every_row_has_an_id_of_its_own_and_says_what_it_is_about() -> None:
    ids = [row.id for row in rows()]

    assert len(set(ids)) == len(ids)
    assert [row.id for row in rows() if not re.fullmatch(r"[A-Z]+-\d{2,3}[a-e]?|W\d+", row.id)] == []
    assert [row.id for row in rows() if not row.title] == []


def test_every_mark_names_a_row_that_exists() -> None:
    assert sorted(set(read_marks()) - {row.id for row in rows()}) == []


def test_marks_are_read_from_decorators_of_tests() -> None:
    source = (
        "@pytest.mark.slow\n@pytest.mark.spec('A-1', 'A-2')\ndef test_one(): ...\n"
        "@pytest.mark.spec('A-1')\ndef test_two(): ...\ndef test_three(): ..."
    )

    assert list(marks(source, "m")) == [("A-1", "m::test_one"), ("A-2", "m::test_one"), ("A-1", "m::test_two")]


def test_a_row_without_a_test_and_without_a_reason_is_open() -> None:
    found = read_rows("# comment\n\nA-1 | one\nA-2 | two | because | of that\nA-3 | three\n")
    tests = {"A-1": ["m::t", "m::u"], "A-2": ["m::v"]}

    assert [status(row, tests) for row in found] == ["covered", "different", "open"]
    assert report(found, tests) == [
        "A-1     covered    one: m::t and 1 more",
        "A-2     different  two: because | of that -- m::v",
        "A-3     open       three: no test",
        "3 rows: 1 covered, 1 different (1 of them shown by a test), 1 open",
    ]
