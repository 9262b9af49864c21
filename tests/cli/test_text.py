"""Text for people is short, and never acts on their terminal; options have the names of their flags."""

import json
from datetime import timedelta
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rqttl import text
from rqttl.cli.common import output
from rqttl.cli.common.params import naming_flag, with_flags
from rqttl.options import OPTIONS
from rqttl.units import as_size
from tests.cli.conftest import Run
from tests.cli.test_errors import failed


@pytest.mark.parametrize(
    "raw, escaped",
    [
        ("plain [/x] :smile:", "plain [/x] :smile:"),
        ("ä é 漢 🙂", "ä é 漢 🙂"),
        ("\x1b[31m", r"\x1b[31m"),
        ("\u202e", r"\u202e"),
        ("a\nb\tc", r"a\nb\tc"),
        ("\u034f\u3164\ufe00\U000e0101", r"\u034f\u3164\ufe00\U000e0101"),
        ("\U000e0041\u200b\u200d", r"\U000e0041\u200b\u200d"),
        ("e\u0301 ❤\ufe0f", "e\u0301 ❤\ufe0f"),
        ("Z" + "\u0300" * 7, "Z" + "\u0300" * 4 + r"\u0300" * 3),
    ],
    ids=ascii,
)
def test_unprintable_and_unseen_characters_and_stacked_marks_are_escaped(raw: str, escaped: str) -> None:
    assert (text.escape(raw), text.escape(raw.encode())) == (escaped, escaped)


def test_what_is_no_text_is_escaped() -> None:
    assert (text.escape(b"\xff\x00"), text.escape("\udc80")) == (r"\xff\x00", r"\udc80")


@given(st.one_of(st.binary(), st.text()))
def test_an_escaped_text_is_printable(raw: str | bytes) -> None:
    assert text.escape(raw).isprintable()


@given(st.recursive(st.one_of(st.none(), st.text(), st.binary(), st.integers()), lambda s: st.lists(s, max_size=3)))
def test_json_is_one_printable_line(value: object) -> None:
    assert text.dump_json(value).isprintable()
    json.loads(text.dump_json(value))


def test_long_texts_are_cut_with_their_size() -> None:
    assert text.escape(b"x" * 1_000_000, 5) == "xxxxx… (1,000,000 bytes)"
    assert text.escape("x" * 6, 5) == "xxxxx… (6 characters)"
    assert text.escape(b"xxxxx", 5) == "xxxxx"


@pytest.mark.parametrize(
    "n, size", [(999, "999 B"), (1000, "1.0 kB"), (99_940, "99.9 kB"), (999_500, "1.0 MB"), (5 * 10**16, "50000 TB")]
)
def test_sizes_are_short(n: int, size: str) -> None:
    assert as_size(n) == size


@pytest.mark.parametrize(
    "seconds, age",
    [(0, "0.0s"), (1.26, "1.3s"), (60, "1m"), (184, "3m 4s"), (3605, "1h"), (86_400 * 400 + 3600 * 5 + 60, "400d 5h")],
)
def test_ages_have_two_units_at_most(seconds: float, age: str) -> None:
    assert text.format_age(timedelta(seconds=seconds)) == age


def test_nouns_agree_with_their_number() -> None:
    assert [text.plural(n, "message") for n in (0, 1, 1234)] == ["0 messages", "1 message", "1,234 messages"]


@pytest.mark.parametrize("body", ["ää", "漢漢", "🙂🙂"])
def test_no_character_is_cut_in_half(body: str) -> None:
    whole = len(body[0].encode())

    assert [text.escape(body.encode(), n)[0] for n in range(whole, 2 * whole)] == [body[0]] * whole
    assert text.escape(b"\x80" * 9, 5) == r"\x80" * 5 + "… (9 bytes)"


@pytest.mark.parametrize(
    "line, public",
    [
        ("no url: a@b", "no url: a@b"),
        ("redis://user:pa@ss'word@host:1/0 is away", "redis://***@host:1/0 is away"),
        (
            "(rediss://:x@h) and unix:///tmp/s?username=u&password=x&db=1",
            "(rediss://***@h) and unix:///tmp/s?username=***&password=***&db=1",
        ),
        ("unix://:x@/tmp/s", "unix://***@/tmp/s"),
    ],
)
def test_secrets_of_urls_are_left_out(line: str, public: str) -> None:
    assert text.without_secrets(line) == public


def test_json_is_strict_and_has_a_text_for_each_value_that_json_lacks() -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    value = {
        "nan": float("nan"),
        "more": [float("inf"), {b"\xff": -float("inf")}],
        1: (2,),
        None: True,
        float("nan"): 0,
    }

    document = json.loads(text.dump_json(value), parse_constant=refuse)

    assert document == {"nan": "NaN", "more": ["Infinity", {"\\xff": "-Infinity"}], "1": [2], "null": True, "NaN": 0}


def test_people_read_letters_and_programs_ascii() -> None:
    assert (text.dump_readable_json(["é漢"]), text.dump_json(["é漢"])) == ('["é漢"]', r'["\u00e9\u6f22"]')


@pytest.mark.parametrize(
    "line, cells, folded",
    [
        ("short", 10, "short"),
        ("one two three", 9, "one two\n  three"),
        ("say `rqttl queue ls` now", 12, "say\n  `rqttl queue ls`\n  now"),
        ("got '30 s' (see `a b`)", 10, "got '30 s'\n  (see\n  `a b`)"),
        ("a-very-long-word-with-hyphens x", 8, "a-very-long-word-with-hyphens\n  x"),
        ("the bodies' own it's fine", 12, "the bodies'\n  own it's\n  fine"),
        ("an open ` stays", 9, "an open `\n  stays"),
    ],
)
def test_a_line_is_folded_at_words_and_quoted_text_stays_whole(
    line: str, cells: int, folded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = StringIO()
    assert output.fold(line, stream) == line
    monkeypatch.setenv("COLUMNS", str(cells))
    monkeypatch.setattr(stream, "isatty", lambda: True)

    assert output.fold(line, stream) == folded


@pytest.mark.parametrize(
    "message",
    [
        "queue 'max_length' does not exist",
        "rqttl:{max_length}:meta is no hash",
        "reason 'delivery_limit'",
        "a.max_length and max_length.b and my_max_length",
        "expires after use, with a lease",
    ],
)
def test_words_that_only_look_like_options_stay(message: str) -> None:
    assert with_flags(message) == naming_flag(message) == message


def test_no_message_of_queue_declare_has_a_name_with_an_underscore(run: Run) -> None:
    """A value that is wrong for each option."""
    for option in OPTIONS.values():
        wrong = {
            "duration": "99999w",
            "count": "-1",
            "size": "-1",
            "target": "a b",
            "choice": "x",
            "number": "x",
            "rate": "x",
            "flag": None,
        }[option.kind]
        if wrong is not None:
            flag = f"--{option.name.replace('_', '-')}"
            line = failed(run("queue", "declare", "orders", flag, wrong), 2)
            assert option.name == flag[2:] or option.name not in line
            assert flag in line
