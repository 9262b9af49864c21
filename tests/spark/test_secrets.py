"""A password is in no plan, log, event log, checkpoint, page of the UI, exception or `repr`, however it was given."""

import base64
import copy
import json
import logging
import pickle
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from rqttl import Broker
from spark_connectors.errors import SourceError, Unreachable
from spark_connectors.options.options import Options
from spark_connectors.redis.bulk_reader import BulkReader
from spark_connectors.source import RqttlDataSource
from tests.servers import Server
from tests.spark.jvm import Submitter
from tests.spark.letters import bury
from tests.spark.writing import MESSAGES, columns

PASSWORD = "canary7Qz4WvT9rLm2XkB8yNd5"
WAYS = ("url", "password", "passwordEnv", "passwordFile")

#: Reads, follows and writes with each way of giving the password, has each of them refused, and keeps all that it sees.
PROGRAM = """
import json, pathlib, sys, traceback, urllib.request
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
folder = pathlib.Path(sys.argv[1])
jobs = json.loads((folder / "jobs.json").read_text())


def read(options):
    letters = spark.read.format("rqttl").options(**options).load()
    for mode in ("extended", "formatted", "cost", "codegen"):
        letters.filter("reason = 'maxlen'").explain(mode)
    print(letters, letters.schema, letters._jdf.queryExecution().toString())
    print(letters.count(), "letters")
    letters.createOrReplaceTempView("letters")
    spark.sql("SELECT source, count(*) FROM letters GROUP BY source").show()


def declare(options):
    said = ", ".join(f"{name} '{value}'" for name, value in options.items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW declared USING rqttl OPTIONS ({said})")
    spark.sql("SELECT * FROM declared").explain(True)
    spark.sql("DESCRIBE EXTENDED declared").show(truncate=False)


def follow(options, checkpoint):
    letters = spark.readStream.format("rqttl").options(**options).load()
    writing = letters.writeStream.format("noop").option("checkpointLocation", checkpoint)
    query = writing.trigger(availableNow=True).start()
    query.awaitTermination()
    query.explain(True)
    print(query.lastProgress.json, query.status, query)


def write(options):
    schema = "queue string, message_id string, body binary"
    rows = spark.createDataFrame([("copies", f"{i}", b"x") for i in range(2)], schema)
    rows.write.format("rqttl").mode("append").options(**options).save()


def fail(what, options):
    try:
        spark.read.format("rqttl").options(**options).load().count()
    except Exception as error:
        print("refused", what, str(error)[:200])
        print(str(error), repr(error), traceback.format_exc())
        print(getattr(error, "_cause", None), getattr(error, "_stackTrace", None))
    else:
        print("not refused:", what)


for way, reading in jobs["good"].items():
    read(reading)
    if way.startswith("password") and way != "password":
        continue  # options hold the name of a variable or of a file; the other two hold the password
    declare(reading)
    follow(reading, str(folder / "checkpoint" / way))
    write({k: v for k, v in reading.items() if k != "queues"})
for what, reading in jobs["bad"].items():
    fail(what, reading)

pages = ["environment", "jobs", "stages?withSummaries=true", "sql?details=true&planDescription=true", "allexecutors"]
url = spark.sparkContext.uiWebUrl
app = f"{url}/api/v1/applications/{spark.sparkContext.applicationId}"
last = max(one["id"] for one in json.load(urllib.request.urlopen(app + "/sql?length=10000")))
pages = [f"{app}/{page}" for page in pages] + [f"{url}/{page}/" for page in ("environment", "StreamingQuery", "SQL")]
pages += [f"{url}/SQL/execution/?id={i}" for i in range(last + 1)]
for i, page in enumerate(pages):
    (folder / "pages" / f"{i}.txt").write_bytes(urllib.request.urlopen(page).read())
print("pages", len(pages))
spark.stop()
"""


@pytest.fixture
def secured(start_server: Callable[..., Server]) -> Server:
    """A server with dead letters and the users `reader`, who may do all, and `nobody`, who may do nothing."""
    server = start_server()
    with server.client() as client:
        for user, rights in (("reader", ["+@all"]), ("nobody", ["+@connection"])):
            client.execute_command("ACL", "SETUSER", user, "on", f">{PASSWORD}", "~*", "&*", *rights)
        bury(Broker(client), 100)
        Broker(client).declare_queue("copies")
    return server


def giving(way: str, url: str, folder: Path, *, user: str = "reader", password: str = PASSWORD) -> dict[str, str]:
    """Options that say the password in this way."""
    options = {"url": url, "username": user, "queues": "orders/dead", "connectRetries": "0"}
    if way == "url":
        if url.startswith("unix://"):
            return {**options, "url": f"{url}?password={password}"}
        return {**options, "url": url.replace("://", f"://:{password}@")}
    if way == "passwordFile":
        file = folder / "right.txt"
        file.write_text(password)
        return {**options, way: str(file)}
    return {**options, way: "CANARY" if way == "passwordEnv" else password}


def traces(text: str | bytes) -> list[str]:
    """Return the forms of the password in a text: plain, in base64 after any other bytes, or as hexadecimal digits."""
    data = text.encode(errors="replace") if isinstance(text, str) else text
    plain = PASSWORD.encode()
    forms = {"plain": plain, "hex": plain.hex().encode()}
    for shift in range(3):
        # without the digits that neighbours would change
        forms[f"base64, {shift}"] = base64.b64encode(b"\0" * shift + plain)[4 if shift else 0 : -4]
    return [name for name, form in forms.items() if form.lower() in data.lower()]


@pytest.mark.parametrize("way", WAYS)
def test_no_repr_and_no_pickle_of_options_shows_it(
    way: str, secured: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY", PASSWORD)
    options = Options.parse("batch", giving(way, secured.url, tmp_path))
    reader = BulkReader(options)

    assert reader.execute("XLEN", "rqttl:{orders}/dead:log") == 100
    for one in (options, copy.deepcopy(options), dict(options), options.explicit, options.password(), reader):
        assert traces(f"{one!r} {one!s} {one:}") == []
    assert traces(pickle.dumps(options)) == []
    assert pickle.loads(pickle.dumps(options)).password().reveal() == PASSWORD  # noqa: S301  # made here


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "what, url, user, server_says",
    [
        ("nobody listens", "redis://127.0.0.1:1/0", "reader", "[RQTTL_UNREACHABLE]"),
        ("no such host", "redis://no-such-host.invalid:6379/0", "reader", "[RQTTL_UNREACHABLE]"),
        ("no such user", None, "somebody", "[RQTTL_AUTHENTICATION]"),
        ("no rights", None, "nobody", "[RQTTL_NO_PERMISSION]"),
    ],
)
def test_no_refusal_shows_it(
    way: str,
    what: str,
    url: str | None,
    user: str,
    server_says: str,
    secured: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CANARY", PASSWORD)
    options = Options.parse("batch", giving(way, url or secured.url, tmp_path, user=user))

    with pytest.raises(SourceError, match=re.escape(server_says)) as caught, BulkReader(options) as reader:
        reader.execute("XLEN", "rqttl:{orders}/dead:log")

    chain: BaseException | None = caught.value
    while chain is not None:
        assert traces(f"{chain!r} {chain!s} {chain.args!r} {chain.__dict__!r}") == []
        chain = chain.__cause__ or (None if chain.__suppress_context__ else chain.__context__)


@pytest.mark.slow
def test_a_session_shows_it_nowhere(submitter: Submitter, secured: Server, tmp_path: Path) -> None:
    refused = {
        "unreachable": giving("url", "redis://127.0.0.1:1/0", tmp_path),
        "wrong password": giving("password", secured.url, tmp_path, password=f"{PASSWORD}x"),
        "no permission": giving("url", secured.url, tmp_path, user="nobody"),
        "bad option": {**giving("url", secured.url, tmp_path), "fetchEntries": "many"},
        "bad url": {**giving("password", secured.url, tmp_path), "url": f"http://:{PASSWORD}@localhost"},
        "set twice": {**giving("url", secured.url, tmp_path), "password": PASSWORD},
    }
    jobs = {"good": {way: giving(way, secured.url, tmp_path) for way in WAYS}, "bad": refused}
    (tmp_path / "jobs.json").write_text(json.dumps(jobs))
    for name in ("events", "pages"):
        (tmp_path / name).mkdir()
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": tmp_path / "events",
        "spark.ui.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.ui.port": "0",
    }

    done = submitter.run(
        PROGRAM,
        tmp_path,
        patience=500,
        environment={"CANARY": PASSWORD},
        options=tuple(word for name, value in conf.items() for word in ("--conf", f"{name}={value}")),
    )

    assert done.code == 0, done.end
    assert done.out.count("100 letters\n") == len(WAYS)
    assert re.findall(r"^refused (.*?) \[", done.out, re.MULTILINE) == list(refused)
    (tmp_path / "log.txt").write_text(done.log)
    for kind, known in {
        "events": "SparkListenerSQLExecutionStart",
        "pages": "rqttl",
        "checkpoint": "orders/dead",
        "spark/work": "CoarseGrainedExecutorBackend",
    }.items():
        texts = [path.read_text(errors="replace") for path in (tmp_path / kind).rglob("*") if path.is_file()]
        assert any(known in text for text in texts), f"nothing of it in {kind}, so nothing was looked at"
    seen = [path for path in tmp_path.rglob("*") if path.is_file() and path.name not in ("jobs.json", "right.txt")]
    assert all(traces(form) for form in (PASSWORD, PASSWORD.encode().hex(), base64.b64encode(f"a{PASSWORD}".encode())))
    assert [path for path in seen if traces(path.read_bytes())] == []


@pytest.mark.parametrize("way, warned", [("url", True), ("password", True), ("passwordFile", False)])
def test_a_password_in_an_option_is_warned_about_without_the_password(
    way: str, warned: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = giving(way, "redis://127.0.0.1:1", tmp_path)
    queue, message = StructType([StructField("queue", StringType())]), columns(MESSAGES)

    with caplog.at_level(logging.WARNING, "spark_connectors"):
        RqttlDataSource(given).reader(queue)
        RqttlDataSource(given).streamReader(queue)
        to = RqttlDataSource({**{name: said for name, said in given.items() if name != "queues"}, "queue": "a"})
        for writer in (to.writer, to.streamWriter):
            with pytest.raises(Unreachable):
                writer(message, overwrite=False)

    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 4 * warned
    assert all("over Spark Connect" in text and "passwordFile" in text for text in warnings)
    assert traces(caplog.text) == []
