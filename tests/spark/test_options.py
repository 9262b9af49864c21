"""The options of a job: names, values, checks, secrets, patterns."""

from __future__ import annotations

import io
import pickle
import pprint
import re
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import CaseInsensitiveDict

from spark_connectors.errors import InvalidOption, SourceError, UnknownOption
from spark_connectors.options import patterns, values
from spark_connectors.options.options import Options
from spark_connectors.options.secret import Secret, mask, quoted
from spark_connectors.options.table import OPTIONS, Option, Use

T = TypeVar("T")

CANARY = "c4n4ry-p4ss"


def refusal(**options: str) -> str:
    with pytest.raises(SourceError) as caught:
        Options.parse("batch", {"queues": "a", **options})
    return str(caught.value)


@pytest.mark.parametrize("option", OPTIONS.values(), ids=lambda option: option.name)
def test_every_option_has_a_reader_and_a_default_that_it_takes(option: Option) -> None:
    assert option.kind in values.PARSERS
    assert option.uses
    assert option.meaning
    if option.default is not None:
        assert values.PARSERS[option.kind](option, option.default) is not None


def test_names_hold_without_case_as_spark_gives_them() -> None:
    options = CaseInsensitiveDict()
    options["maxEntriesPerTrigger"] = "5"
    options["QueuePattern"] = "EXP.#"

    read = Options.parse("stream", options)

    assert read.number("maxEntriesPerTrigger") == 5
    assert read["queuePattern"] == "EXP.#"
    assert read.number("fetchEntries") == 1000


@pytest.mark.parametrize(
    "written, nearest",
    [
        ("queus", "queues"),
        ("numpartition", "numPartitions"),
        ("failOnDataloos", "failOnDataLoss"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_known_one(written: str, nearest: str) -> None:
    told = refusal(**{written: CANARY})

    assert told == f"[RQTTL_UNKNOWN_OPTION] {written}: no such option; did you mean {nearest}?"


def test_an_unknown_option_that_is_like_no_other_is_refused_with_all_there_are() -> None:
    with pytest.raises(UnknownOption) as caught:
        Options.parse("write", {"zzzz": "1"})

    assert "maxQueueDepth" in str(caught.value)
    assert "startingOffsets" not in str(caught.value)


@pytest.mark.parametrize(
    "use, name, value, told",
    [
        ("batch", "maxEntriesPerTrigger", "5", "an option of spark.readStream, not of spark.read"),
        ("stream", "endingOffsets", "latest", "an option of spark.read, not of spark.readStream"),
        ("batch", "operation", "purge", "an option of write and writeStream, not of spark.read"),
        ("write", "queues", "a", "an option of spark.read and spark.readStream, not of write and writeStream"),
    ],
)
def test_an_option_of_another_kind_of_job_is_refused(use: Use, name: str, value: str, told: str) -> None:
    with pytest.raises(UnknownOption, match=rf"^\[RQTTL_UNKNOWN_OPTION\] {name}: {told}$"):
        Options.parse(use, {name: value})


@pytest.mark.parametrize(
    "name, value, rule",
    [
        ("numPartitions", "0", "numPartitions: expected a whole number from 1 to 100000, got '0'"),
        ("numPartitions", "two", "numPartitions: expected a whole number from 1 to 100000, got 'two'"),
        ("numPartitions", "-5", "numPartitions: expected a whole number from 1 to"),
        ("fetchEntries", "²", "fetchEntries: expected a whole number"),
        (
            "fetchBytes",
            "1000",
            "fetchBytes: expected a number of bytes from 1024 to 9007199254740991, such as 512k, 10m",
        ),
        ("fetchBytes", "10 apples", "got '10 apples'"),
        ("fetchBytes", "m", "got 'm'"),
        ("fetchBytes", "1.5m", "got '1.5m'"),
        ("fetchBytes", "-1m", "got '-1m'"),
        ("fetchBytes", "9999999g", "got '9999999g'"),
        ("failOnDataLoss", "maybe", "failOnDataLoss: expected true or false, got 'maybe'"),
        ("decode", "text", "decode: expected one of none, json, got 'text'"),
        ("socketTimeout", "30", "socketTimeout: expected a duration with a unit, got '30': write '30s' or '30ms'"),
        ("socketTimeout", "0s", "socketTimeout: expected 1 to"),
        ("startingTimestamp", "2026-01-01", "startingTimestamp: expected a time with its zone"),
        ("startingTimestamp", "1700000000", "got '1700000000', which is in seconds: write 1700000000000"),
        ("startingOffsets", "latest", "startingOffsets: 'latest' would read nothing in a batch"),
        ("startingOffsets", "newest", "startingOffsets: expected earliest, latest, or JSON"),
        ("startingOffsets", '{"a": "1700000000000-1"}', "startingOffsets: a: expected a value of the column sequence"),
        ("startingOffsets", '{"a": 5}', "startingOffsets: a: expected a value of the column sequence"),
        ("startingOffsets", '{"b": "earliest"}', "startingOffsets: 'b' is not one of the queues to read"),
        ("endingOffsets", '{"a": "earliest"}', "endingOffsets: 'earliest' would read nothing in a batch"),
        ("namespace", "a b", "namespace: namespace: expected 1 to 64 of"),
        ("url", "localhost:6379", "url: expected redis://host:port/db"),
        ("url", "redis://h/x", "url: expected the number of a database"),
        ("url", "redis://h:6379,i:6379/0", "url: expected the URL of one server; for several ones, make a union"),
        ("url", "redis://h,redis://i", "url: expected the URL of one server; for several ones, make a union"),
        ("url", "redis://h;redis://i", "url: expected the URL of one server; for several ones, make a union"),
        ("url", "redis://h?ssl_ca_certs=x", "url: expected db, username or password after '?', got 'ssl_ca_certs'"),
        ("url", "unix://h/x", "url: a unix:// URL has three slashes"),
        ("url", "redis://h:port", "url: expected redis://host:port/db"),
        ("tlsCaFile", "x", "tlsCaFile: needs a url that begins with rediss://"),
        ("username", "", "username: expected printable text, got ''"),
    ],
)
def test_a_wrong_value_is_refused_with_option_value_and_rule(name: str, value: str, rule: str) -> None:
    told = refusal(**{name: value})

    assert told.startswith("[RQTTL_INVALID_OPTION] ")
    assert rule in told


@pytest.mark.parametrize(
    "text, size",
    [
        ("2048", 2_048),
        ("2_048", 2_048),
        ("2048b", 2_048),
        ("512k", 2**19),
        ("10m", 10 * 2**20),
        (" 10 MB ", 10 * 2**20),
        ("1G", 2**30),
    ],
)
@pytest.mark.parametrize("name", ["fetchBytes", "maxBytesPerTrigger"])
def test_a_number_of_bytes_has_a_unit_or_none(name: str, text: str, size: int) -> None:
    assert Options.parse("stream", {"queues": "a", name: text}).number(name) == size


@pytest.mark.parametrize(
    "options, told",
    [
        (
            {"minEntriesPerTrigger": "11", "maxEntriesPerTrigger": "10"},
            "minEntriesPerTrigger: expected at most maxEntriesPerTrigger, 10, got 11",
        ),
        ({"maxTriggerDelay": "1m"}, "maxTriggerDelay: needs option minEntriesPerTrigger, too"),
    ],
)
def test_options_of_a_trigger_that_contradict_each_other_are_refused(options: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidOption, match=f"{told}$"):
        Options.parse("stream", {"queues": "a", **options})


@pytest.mark.parametrize("queues", ["", "a,", "a b", "a,#.b", "a*"])
def test_queues_that_are_no_names_are_refused(queues: str) -> None:
    with pytest.raises(InvalidOption, match="queues: "):
        Options.parse("batch", {"queues": queues})


def test_queues_are_names_with_commas_each_once() -> None:
    assert Options.parse("batch", {"path": " a/dead , b,a/dead"}).queues == ("a/dead", "b")


@pytest.mark.parametrize(
    "options, told",
    [
        ({}, "queues: required; name the queues"),
        ({"queues": "a", "queuePattern": "#"}, "queues: set either this or queuePattern, not both"),
        ({"queues": "a", "path": "b"}, "queues: set twice"),
        ({"queues": "a", "password": "x", "passwordFile": "y"}, "password: set either this or passwordFile"),
        ({"queues": "a", "password": "x", "url": "redis://:y@h"}, "password: set twice, as an option and in url"),
        ({"queues": "a", "url": "rediss://h", "tlsKeyFile": "k"}, "tlsKeyFile: needs option tlsCertFile"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        Options.parse("batch", options)

    assert told in str(caught.value)


def test_only_one_limit_of_a_trigger_may_be_given() -> None:
    with pytest.raises(InvalidOption, match="not both"):
        Options.parse("stream", {"queues": "a", "maxEntriesPerTrigger": "1", "maxBytesPerTrigger": "1"})


def test_options_that_spark_adds_are_no_options_of_rqttl() -> None:
    assert dict(Options.parse("write", {"checkpointLocation": "/x", "queryName": "q", "path": "a"}).explicit) == {
        "queue": "a"
    }


def test_an_option_that_is_required_and_not_given_says_so() -> None:
    with pytest.raises(InvalidOption, match="queue: required, and not set"):
        Options.parse("write", {}).text("queue")


@pytest.mark.parametrize(
    "url",
    [
        f"redis://bob:{CANARY}@h:1/2",
        f"rediss://:{CANARY}@h",
        f"redis://h?password={CANARY}",
        f"unix:///tmp/s?password={CANARY}",
    ],
)
def test_a_password_is_taken_out_of_the_url_and_seen_nowhere(url: str) -> None:
    options = Options.parse("batch", {"queues": "a", "url": url})

    secret = options.password()
    assert secret is not None
    assert secret.reveal() == CANARY
    assert_hidden(options)
    assert_hidden(secret)


def test_a_password_in_a_url_is_decoded() -> None:
    options = Options.parse("batch", {"queues": "a", "url": "redis://b%40b:p%2Fw%3A%23@h:7/3"})

    secret = options.password()
    assert secret is not None
    assert (secret.reveal(), options["username"]) == ("p/w:#", "b@b")
    assert str(options.address) == "redis://h:7"
    assert options.address.db == 3


def test_a_url_among_other_values_is_shown_without_its_password() -> None:
    assert CANARY not in refusal(queues=f"redis://:{CANARY}@h")
    assert CANARY not in refusal(decode=f"redis://x:{CANARY}@h/0")


def test_a_password_of_its_own_is_seen_nowhere() -> None:
    assert_hidden(Options.parse("batch", {"queues": "a", "password": CANARY}))


def test_a_password_from_the_environment_is_read_where_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    options = unpickled(Options.parse("batch", {"queues": "a", "passwordEnv": "RQTTL_TEST_PW"}))
    monkeypatch.setenv("RQTTL_TEST_PW", CANARY)

    secret = options.password()
    assert secret is not None
    assert secret.reveal() == CANARY
    assert_hidden(options)

    monkeypatch.delenv("RQTTL_TEST_PW")
    with pytest.raises(InvalidOption, match="passwordEnv: 'RQTTL_TEST_PW' is not set here"):
        options.password()


def test_a_password_from_a_file_is_read_without_its_line_end(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(f"{CANARY}\n")
    options = Options.parse("batch", {"queues": "a", "passwordFile": str(file)})

    secret = options.password()
    assert secret is not None
    assert secret.reveal() == CANARY

    file.unlink()
    with pytest.raises(InvalidOption, match=r"passwordFile: .* cannot be read here"):
        options.password()


def unpickled(value: T) -> T:
    copy: T = pickle.loads(pickle.dumps(value))  # noqa: S301  # what was just pickled
    return copy


def assert_hidden(value: object) -> None:
    """Assert that no way to print an object, nor its pickle, shows the canary."""
    out = io.StringIO()
    pprint.pprint(value, stream=out)
    texts = [repr(value), str(value), f"{value}", out.getvalue(), pickle.dumps(value).decode("latin-1")]

    assert [text for text in texts if CANARY in text] == []
    assert_equal_secret(value, unpickled(value))


def assert_equal_secret(one: object, other: object) -> None:
    if isinstance(one, Secret) and isinstance(other, Secret):
        assert one.reveal() == other.reveal()
    elif isinstance(one, Options) and isinstance(other, Options):
        assert str(one.password()) == str(other.password())
        assert one.use == other.use


def test_texts_of_others_are_shown_without_the_secret() -> None:
    assert mask(f"no {CANARY} at redis://u:{CANARY}@h", CANARY) == "no *** at redis://***@h"
    assert mask("redis://u:other@h", None) == "redis://***@h"
    assert quoted("x" * 200) == repr("x" * 80)


def test_a_comma_in_a_password_is_no_second_server() -> None:
    assert Options.parse("batch", {"queues": "a", "url": "redis://:x,y@h/1"}).address.host == "h"


@pytest.mark.parametrize(
    "texts, told",
    [
        ({"maxEntriesPerTrigger": "many"}, "maxEntriesPerTrigger: expected a whole number"),
        ({"maxEntriesPerTrigger": "5", "fetchEntries": "x"}, "fetchEntries: expected a whole number"),
        (
            {"maxEntriesPerTrigger": "5", "startingOffsets": "newest"},
            "startingOffsets: expected earliest, latest, or JSON",
        ),
        ({"maxEntriesPerTriger": "5"}, "maxEntriesPerTriger: no such option; did you mean maxEntriesPerTrigger"),
        ({"startingOffsets": "latest", "tlsKeyFile": "k"}, "tlsKeyFile: needs a url that begins with rediss://"),
        ({"endingOfsets": "latest"}, "endingOfsets: no such option; did you mean endingOffsets"),
        ({"endingOffsets": "earliest"}, "endingOffsets: 'earliest' would read nothing in a batch"),
        ({"zzz": "1"}, "the options of spark.read and spark.readStream are"),
        (
            {"fullTimeout": "1m"},
            "fullTimeout: an option of write and writeStream, not of spark.read",
        ),
        (
            {"maxEntriesPerTrigger": "5", "endingOffsets": "latest"},
            "maxEntriesPerTrigger: an option of spark.readStream",
        ),
    ],
)
def test_a_mistake_in_a_read_that_may_be_a_stream_is_told_as_itself(texts: dict[str, str], told: str) -> None:
    with pytest.raises(SourceError) as caught:
        Options.parse_read({"queues": "a", **texts})

    assert told in str(caught.value)


@pytest.mark.parametrize(
    "use, name, ours",
    [
        ("stream", "subscribe", "queues"),
        ("stream", "subscribePattern", "queuePattern"),
        ("batch", "assign", "queues"),
        ("stream", "maxOffsetsPerTrigger", "maxEntriesPerTrigger"),
        ("batch", "minPartitions", "numPartitions"),
        ("batch", "startingOffsetsByTimestamp", "startingTimestamp"),
        ("write", "topic", "queue"),
        ("batch", "endingOffsetsByTimestamp", "endingTimestamp"),
        ("write", "kafka.bootstrap.servers", "url"),
        ("stream", "topic", "queues"),
        ("batch", "topic", "queues"),
        ("write", "subscribe", "queue"),
    ],
)
def test_a_name_of_kafka_is_answered_with_ours(use: Use, name: str, ours: str) -> None:
    with pytest.raises(UnknownOption, match=f"{name}: an option for Kafka; its counterpart here is {ours}: "):
        Options.parse(use, {name: "x"})


def test_the_list_of_load_is_a_list_of_queues() -> None:
    assert Options.parse_read({"paths": '["a/dead", "b"]'}).queues == ("a/dead", "b")
    with pytest.raises(InvalidOption, match=r"paths: expected a JSON list of queues"):
        Options.parse_read({"paths": "a"})


@pytest.mark.parametrize("texts", [{"provider": "rqttl", "url": "redis://h", "queues": "a"}, {}])
def test_a_table_of_the_catalog_is_answered_with_a_view(texts: dict[str, str]) -> None:
    for parse in (Options.parse_read, partial(Options.parse, "batch")):
        with pytest.raises(SourceError, match="CREATE TEMPORARY VIEW letters USING rqttl OPTIONS"):
            parse(texts)


NAMES = ["EXP", "EXP.a", "EXP.a.b", "dead", "orders.dead", "shop.orders.dead", "x.EXP", "x.EXP.y"]

PATHS = [
    "dead",
    "orders",
    "orders.dead",
    "orders/dead",
    "orders/dead/late",
    "shop.orders",
    "shop.orders/dead",
    "shop/eu/dead",
]


@pytest.mark.parametrize(
    "pattern, found",
    [
        ("#", NAMES),
        ("EXP.#", ["EXP", "EXP.a", "EXP.a.b"]),
        ("EXP.*", ["EXP.a"]),
        ("*.EXP", ["x.EXP"]),
        ("#.dead", ["dead", "orders.dead", "shop.orders.dead"]),
        ("*.#.dead", ["orders.dead", "shop.orders.dead"]),
        ("#.EXP.#", ["EXP", "EXP.a", "EXP.a.b", "x.EXP", "x.EXP.y"]),
        ("*", ["EXP", "dead"]),
        ("orders.dead", ["orders.dead"]),
        ("exp", []),
    ],
)
def test_words_match_as_artemis_has_it(pattern: str, found: list[str]) -> None:
    assert patterns.pattern_error(pattern) is None
    assert patterns.matching(pattern, reversed(NAMES)) == found


@pytest.mark.parametrize(
    "pattern, found",
    [
        ("*/dead", ["orders/dead"]),
        ("#/dead", ["dead", "orders/dead", "shop.orders/dead", "shop/eu/dead"]),
        ("*.*/dead", ["shop.orders/dead"]),
        ("shop.#", ["shop.orders", "shop.orders/dead"]),
        ("shop/#", ["shop/eu/dead"]),
        ("orders/*", ["orders/dead"]),
        ("orders/#", ["orders", "orders/dead", "orders/dead/late"]),
        ("orders.*", ["orders.dead"]),
        ("#.dead", ["dead", "orders.dead"]),
        ("shop.#/dead", ["shop.orders/dead"]),
        ("*", ["dead", "orders"]),
        ("#", PATHS),
    ],
)
def test_a_word_ends_at_a_dot_or_a_slash_and_a_slash_is_no_dot(pattern: str, found: list[str]) -> None:
    assert patterns.pattern_error(pattern) is None
    assert patterns.matching(pattern, PATHS) == found


@pytest.mark.parametrize("pattern", ["", "a#", "#a", "a.*b", "**", "a b", "a.#*.b", "a/*b", "#a/dead"])
def test_a_wildcard_stands_alone_between_separators(pattern: str) -> None:
    assert patterns.pattern_error(pattern) is not None


SEPARATORS = st.lists(st.sampled_from("./"), min_size=8, max_size=8)

WORDS = st.lists(st.sampled_from(["a", "b", "*", "#"]), min_size=1, max_size=6)


def joined(separators: list[str], words: list[str]) -> str:
    return "".join(f"{separator}{word}" for separator, word in zip(["", *separators], words, strict=False))


def as_expression(pattern: str) -> str:
    """A regular expression for a pattern, for names without empty words."""
    word, expression = "[^./]+", ""
    parts = re.split(r"([./])", pattern)
    for separator, text in zip(["", *parts[1::2]], parts[::2], strict=True):
        if text == "#":
            expression += f"(?:{re.escape(separator) or ''}{word}(?:[./]{word})*|)"
        else:
            # behind a `#` for no word at the start of the name no separator stands
            first = f"(?:(?<!.)|{re.escape(separator)})" if separator else ""
            expression += first + (word if text == "*" else re.escape(text))
    return expression


@given(SEPARATORS, WORDS, SEPARATORS, st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=7))
def test_any_pattern_matches_as_a_regular_expression_does(
    between: list[str], pattern: list[str], separators: list[str], words: list[str]
) -> None:
    written, name = joined(between, pattern), joined(separators, words)

    assert bool(patterns.matching(written, [name])) == bool(re.fullmatch(as_expression(written), name))


def test_a_long_pattern_takes_no_long_time() -> None:
    assert patterns.matching(".".join(["#", "a"] * 2_000), ["a." * 60 + "b"]) == []


def test_characters_of_regular_expressions_mean_themselves() -> None:
    assert patterns.matching("a+", ["a+", "aa", re.escape("a+")]) == ["a+"]
