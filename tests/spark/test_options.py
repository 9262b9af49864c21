"""The options of a job: names, values, checks, secrets, patterns."""

from functools import partial
from pathlib import Path

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from spark_connectors.errors import InvalidOption, SourceError, UnknownOption
from spark_connectors.options import patterns, values
from spark_connectors.options.options import Options
from spark_connectors.options.secret import mask, quoted
from spark_connectors.options.table import OPTIONS, Option, Use

CANARY = "c4n4ry-p4ss"


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
    "use, written, told",
    [
        ("batch", "queus", "no such option; did you mean queues?"),
        ("batch", "failOnDataloos", "no such option; did you mean failOnDataLoss?"),
        ("write", "zzzz", "no such option; the options of write and writeStream are url"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_known_one_or_all(use: Use, written: str, told: str) -> None:
    with pytest.raises(UnknownOption) as caught:
        Options.parse(use, {"queues" if use == "batch" else "queue": "a", written: CANARY})

    assert str(caught.value).startswith(f"[RQTTL_UNKNOWN_OPTION] {written}: {told}")
    assert CANARY not in str(caught.value)


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
        ("fetchEntries", "²", "fetchEntries: expected a whole number"),
        (
            "fetchBytes",
            "1000",
            "fetchBytes: expected a number of bytes from 1024 to 9007199254740991, such as 512k, 10m",
        ),
        ("fetchBytes", "10 apples", "got '10 apples'"),
        ("fetchBytes", "9999999g", "got '9999999g'"),
        ("failOnDataLoss", "maybe", "failOnDataLoss: expected true or false, got 'maybe'"),
        ("decode", "text", "decode: expected one of none, json, got 'text'"),
        ("socketTimeout", "30", "socketTimeout: expected a duration with a unit, got '30': write '30s' or '30ms'"),
        ("startingTimestamp", "2026-01-01", "startingTimestamp: expected a time with its zone"),
        ("startingTimestamp", "1700000000", "got '1700000000', which is in seconds: write 1700000000000"),
        ("startingOffsets", "latest", "startingOffsets: 'latest' would read nothing in a batch"),
        ("startingOffsets", '{"a": "1700000000000-1"}', "startingOffsets: a: expected a value of the column sequence"),
        ("startingOffsets", '{"b": "earliest"}', "startingOffsets: 'b' is not one of the queues to read"),
        ("endingOffsets", '{"a": "earliest"}', "endingOffsets: 'earliest' would read nothing in a batch"),
        ("namespace", "a b", "namespace: namespace: expected 1 to 64 of"),
        (
            "url",
            "redis://h:6379,i:6379/0",
            "url: host: expected one; several need redis+cluster:// or redis+sentinel://",
        ),
        ("url", "redis://h, redis://i", "; for several servers, make a union of one read for each"),
        ("url", "redis+cluster://h,redis+cluster://i", "; for several servers, make a union of one read for each"),
        ("url", "redis+cluster://h?sentinel_username=x", "expected db, username, password or slotted after '?'"),
        ("url", "redis://h?ssl_ca_certs=x", "expected db, username, password or slotted after '?', got 'ssl_ca_certs'"),
        ("url", "embedded://", "url: expected redis://, or what `rqttl server` prints, not embedded://"),
        ("tlsCaFile", "x", "tlsCaFile: needs a url that begins with rediss://"),
        ("username", "", "username: expected printable text, got ''"),
    ],
)
def test_a_wrong_value_is_refused_with_option_value_and_rule(name: str, value: str, rule: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        Options.parse("batch", {"queues": "a", name: value})

    assert str(caught.value).startswith("[RQTTL_INVALID_OPTION] ")
    assert rule in str(caught.value)


@pytest.mark.parametrize("text, size", [("2_048", 2_048), ("2048b", 2_048), ("512k", 2**19), (" 10 MB ", 10 * 2**20)])
def test_a_number_of_bytes_has_a_unit_or_none(text: str, size: int) -> None:
    assert Options.parse("stream", {"queues": "a", "maxBytesPerTrigger": text}).number("maxBytesPerTrigger") == size


@pytest.mark.parametrize("queues", [{}, *({"queues": text} for text in ("", "a,", "a b", "a,#.b", "a*"))])
def test_queues_that_are_no_names_or_none_are_refused(queues: dict[str, str]) -> None:
    with pytest.raises(InvalidOption, match="queues: " if queues else "queues: required; name the queues"):
        Options.parse("batch", queues)


def test_queues_are_names_with_commas_each_once_and_options_of_spark_are_none_of_ours() -> None:
    texts = {"checkpointLocation": "/x", "queryName": "q", "path": "a"}
    assert dict(Options.parse("write", texts).explicit) == {"queue": "a"}
    with pytest.raises(InvalidOption, match="queue: required, and not set"):
        Options.parse("write", {}).text("queue")
    assert Options.parse("batch", {"path": " a/dead , b,a/dead"}).queues == ("a/dead", "b")


MIN, MAX = "minEntriesPerTrigger", "maxEntriesPerTrigger"


@pytest.mark.parametrize(
    "use, options, told",
    [
        ("batch", {"queuePattern": "#"}, "queues: set either this or queuePattern, not both"),
        ("batch", {"path": "b"}, "queues: set twice"),
        ("batch", {"password": "x", "passwordFile": "y"}, "password: set either this or passwordFile"),
        ("batch", {"password": "x", "url": "redis://:y@h"}, "password: set twice, as an option and in url"),
        ("batch", {"url": "rediss://h", "tlsKeyFile": "k"}, "tlsKeyFile: needs option tlsCertFile"),
        ("stream", {MIN: "11", MAX: "10"}, f"{MIN}: expected at most {MAX}, 10, got 11"),
        ("stream", {MAX: "1", "maxBytesPerTrigger": "1"}, "not both"),
        ("stream", {"maxTriggerDelay": "1m"}, f"maxTriggerDelay: needs option {MIN}, too"),
    ],
)
def test_options_that_contradict_each_other_are_refused(use: Use, options: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidOption, match=told):
        Options.parse(use, {"queues": "a", **options})


def revealed(options: Options) -> str:
    secret = options.password()
    assert secret is not None
    return secret.reveal()


def test_a_password_from_elsewhere_is_read_where_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "password"
    from_file = Options.parse("batch", {"queues": "a", "passwordFile": str(file)})
    from_environment = Options.parse("batch", {"queues": "a", "passwordEnv": "RQTTL_TEST_PW"})

    with pytest.raises(InvalidOption, match=r"passwordFile: .* cannot be read here"):
        from_file.password()
    with pytest.raises(InvalidOption, match="passwordEnv: 'RQTTL_TEST_PW' is not set here"):
        from_environment.password()
    file.write_text(f"{CANARY}\n")
    monkeypatch.setenv("RQTTL_TEST_PW", CANARY)
    assert revealed(from_file) == revealed(from_environment) == CANARY


def test_texts_of_others_are_shown_without_the_secret() -> None:
    assert mask(f"no {CANARY} at redis://u:{CANARY}@h", CANARY) == "no *** at redis://***@h"
    assert mask("redis://u:other@h", None) == "redis://***@h"
    assert quoted("x" * 200) == repr("x" * 80)


@pytest.mark.parametrize(
    "texts, told",
    [
        ({"maxEntriesPerTrigger": "5", "fetchEntries": "x"}, "fetchEntries: expected a whole number"),
        ({"maxEntriesPerTrigger": "5", "startingOffsets": "newest"}, "startingOffsets: expected earliest, latest, or"),
        ({"endingOffsets": "earliest"}, "endingOffsets: 'earliest' would read nothing in a batch"),
        ({"zzz": "1"}, "the options of spark.read and spark.readStream are"),
        ({"fullTimeout": "1m"}, "fullTimeout: an option of write and writeStream, not of spark.read"),
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
        ("stream", "maxOffsetsPerTrigger", "maxEntriesPerTrigger"),
        ("batch", "startingOffsetsByTimestamp", "startingTimestamp"),
        ("write", "topic", "queue"),
        ("write", "kafka.bootstrap.servers", "url"),
        ("batch", "topic", "queues"),
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


PATHS = ["dead", "orders", "orders.dead", "orders/dead", "orders/dead/late", "shop.orders", "shop.orders/dead"]
PATHS += ["shop/eu/dead"]


@pytest.mark.parametrize(
    "pattern, found",
    [
        ("*/dead", ["orders/dead"]),
        ("#/dead", ["dead", "orders/dead", "shop.orders/dead", "shop/eu/dead"]),
        ("*.*/dead", ["shop.orders/dead"]),
        ("shop/#", ["shop/eu/dead"]),
        ("orders/#", ["orders", "orders/dead", "orders/dead/late"]),
        ("#.dead", ["dead", "orders.dead"]),
        ("#", PATHS),
        # with case, and without the meaning that a regular expression would have
        ("Dead", []),
        ("de.d", []),
    ],
)
def test_a_word_ends_at_a_dot_or_a_slash_and_a_slash_is_no_dot(pattern: str, found: list[str]) -> None:
    assert patterns.pattern_error(pattern) is None
    assert patterns.matching(pattern, PATHS) == found


@pytest.mark.parametrize("pattern", ["", "a#", "#a", "a.*b", "**", "a b", "a.#*.b", "a/*b", "#a/dead"])
def test_a_wildcard_stands_alone_between_separators(pattern: str) -> None:
    assert patterns.pattern_error(pattern) is not None


def test_a_long_pattern_takes_no_long_time() -> None:
    assert patterns.matching(".".join(["#", "a"] * 2_000), ["a." * 60 + "b"]) == []
