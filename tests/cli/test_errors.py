"""Each kind of failure has its exit code, and one line with the remedy; so have unknown commands and words."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import click
import pytest
import redis
from click.testing import CliRunner, Result

import rqttl
from rqttl import Broker
from rqttl.cli import cli
from rqttl.cli.common import errors
from rqttl.cli.common.errors import explain_redis
from tests.cli.conftest import Run
from tests.cli.tree import ALL, LEAVES, arguments, options
from tests.servers import Server


def failed(result: Result, code: int) -> str:
    """The one line on stderr, without its prefix; nothing is on stdout."""
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.startswith("rqttl: ")
    assert result.stderr.count("\n") == 1
    return result.stderr.removeprefix("rqttl: ").rstrip("\n")


def failed_at(url: str, code: int, *arguments: str) -> str:
    """The one line of a command at a URL that must fail; it shows nothing of a script."""
    result = CliRunner().invoke(cli, ["--url", url, *arguments])
    assert result.stdout in ("", "stored 0 messages in orders\n")
    assert (result.exit_code, result.stderr.count("\n")) == (code, 1)
    assert not any(word in result.stderr for word in ("hunter2", "user_script", "script:", "running script"))
    return result.stderr.removeprefix("rqttl: ").rstrip("\n")


#: What is said of `60`.
NO_UNIT = "expected a duration with a unit, got '60': write '60s' or '60ms'"


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (("sned",), "no such command 'sned'; did you mean `send`? (see `rqttl --help`)"),
        (("queue", "list"), "no such command 'list'; did you mean `queue ls`? (see `rqttl queue --help`)"),
        (("declare", "orders"), "no such command 'declare'; did you mean `queue declare`? (see `rqttl --help`)"),
        (("frobnicate",), "no such command 'frobnicate' (see `rqttl --help`)"),
        (("send", "orders", "--burst", "5s"), "no such option '--burst' (see `rqttl send --help`)"),
        (("send",), "missing argument 'QUEUE'"),
        (("send", "orders", "x", "--ttl", "999999w"), "'--ttl': expected 0 to 315360000000 ms"),
        (("reaper", "--scan-period", "-2"), "'--scan-period': expected 0 to 315360000000 ms"),
        (("send", "orders", "x", "--ttl", "60"), "'--ttl': " + NO_UNIT),
        (
            ("send", "orders", "x", "--expires-at", "1795255200"),
            "'--expires-at': expected milliseconds since 1970, got '1795255200', which is in seconds: write 1795255200",
        ),
        (("queue", "declare", "orders", "--lease", "0"), "lease: expected 1 to"),
        (("queue", "declare", "orders", "--max-length", "-1"), "--max-length: expected a whole number from 0"),
        (("queue", "declare", "orders", "--min-ttl", "2s", "--max-ttl", "1s"), "--min-ttl: 2s is more than --max-ttl"),
        (("--url", "http://example.org", "queue", "ls"), "url: expected redis://"),
    ],
)
def test_wrong_input_is_wrong_usage(run: Run, broker: Broker, arguments: tuple[str, ...], expected: str) -> None:
    if "declare" not in arguments:
        broker.declare_queue("orders")

    assert expected in failed(run(*arguments), 2)
    assert broker.queues() == ([] if "declare" in arguments else ["orders"])


def test_a_queue_with_other_options_is_refused_and_each_difference_is_named(run: Run, broker: Broker) -> None:
    broker.declare_queue("orders", message_ttl="90s", max_length=5)

    line = failed(run("queue", "declare", "orders", "--message-ttl", "1m", "--never-expire"), 3)

    assert line == (
        "queue 'orders' exists with other options "
        "(--message-ttl is 90s, not 1m; --never-expire is no, not yes; --max-length is 5, not (none)): "
        "nothing was changed [mismatch]"
    )


@pytest.mark.parametrize(
    "rules, expected",
    [
        (
            "~* &* -evalsha",
            r"the right for EVALSHA is missing; the role producer or .* has it \(`rqttl acl generate`\)",
        ),
        ("~* &* -zadd", "the right for (ZADD|a command that scripts use) is missing; .*"),  # Valkey names it
        ("~other:* &*", "the right for keys of this namespace is missing; .*"),
        ("~*", "the right for the channel that wakes reapers is missing; .*"),
    ],
)
def test_an_error_names_the_missing_right(
    broker: Broker, url_of_user: Callable[..., str], rules: str, expected: str
) -> None:
    broker.declare_queue("orders")

    line = failed_at(url_of_user("+@all", *rules.split()), 3, "send", "orders", "x", "--ttl", "1m")

    assert re.fullmatch(f"Redis refuses user 'guest': {expected}", line)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "url, expected",
    [
        ("redis://127.0.0.1:1", "connecting to 127.0.0.1:1: Connection refused"),
        ("redis://name.invalid:6379", "connecting to name.invalid:6379: "),
        ("unix:///nonexistent/socket", "connecting to /nonexistent/socket: "),
    ],
)
def test_without_a_redis_the_error_names_its_address(url: str, expected: str) -> None:
    line = failed(CliRunner().invoke(cli, ["--url", url, "queue", "ls"]), 4)

    assert line.startswith(f"Redis does not answer: {expected}")
    assert line.endswith("; check --url or $RQTTL_URL")


def test_out_of_memory_says_what_to_do(start_server: Callable[..., Server]) -> None:
    server = start_server()
    with server.client() as client, Broker(client) as broker:
        broker.declare_queue("orders").enqueue(b"x")
        client.config_set("maxmemory", "512kb")

        line = failed_at(server.url, 3, "send", "orders", "x")

    assert line == "Redis is out of memory: consume, purge, or raise its maxmemory"


@pytest.mark.parametrize(
    "user, expected",
    [
        ("", "Redis wants a password: give it in --url or $RQTTL_URL, before the host, as :PASSWORD@"),
        (":hunter2@", "Redis does not take this user and password: check --url or $RQTTL_URL"),
        ("who:hunter2@", "Redis does not take this user and password: check --url or $RQTTL_URL"),
    ],
)
def test_a_missing_or_wrong_password_is_an_error_without_the_password(
    start_server: Callable[..., Server], user: str, expected: str
) -> None:
    server = start_server()
    with server.client() as client:
        client.config_set("requirepass", "right")

    assert failed_at(server.url.replace("unix://", f"unix://{user}"), 4, "queue", "ls") == expected


def test_a_server_that_takes_no_writes_says_why(start_server: Callable[..., Server]) -> None:
    server = start_server()
    with server.client() as client, Broker(client) as broker:
        broker.declare_queue("orders")
        client.config_set("min-replicas-to-write", 1)
        few = failed_at(server.url, 3, "send", "orders", "x")
        client.config_set("min-replicas-to-write", 0)
        client.replicaof("127.0.0.1", 1)
        replica = failed_at(server.url, 3, "send", "orders", "x")

    assert few == "Redis has fewer replicas than min-replicas-to-write asks for, so it takes no writes"
    assert replica == "this Redis is a read-only replica: name its primary in --url or $RQTTL_URL"


def test_a_server_without_room_for_another_connection_says_so(start_server: Callable[..., Server]) -> None:
    server = start_server()
    with server.client() as client:
        client.ping()
        client.config_set("maxclients", 1)

        line = failed_at(server.url, 4, "queue", "ls")

    assert "maxclients" in line


def test_an_unknown_database_is_an_error(server: Server) -> None:
    line = failed_at(f"{server.url}?db=99", 4, "queue", "ls")

    assert line == "Redis has no database of this number: check --url or $RQTTL_URL"


class Silent(BaseHTTPRequestHandler):
    """Answers every request as one that it cannot read, and logs nothing."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    "scheme, expected",
    [("redis", "the server speaks another protocol than Redis"), ("rediss", "the server does not speak TLS")],
)
def test_a_server_that_is_no_redis_is_an_error(scheme: str, expected: str) -> None:
    with HTTPServer(("127.0.0.1", 0), Silent) as other:
        serving = Thread(target=other.serve_forever, daemon=True)
        serving.start()
        try:
            line = failed_at(f"{scheme}://127.0.0.1:{other.server_port}", 4, "queue", "ls")
        finally:
            other.shutdown()

    assert line.startswith(f"{expected}: ")


def test_a_bug_is_one_line_and_a_traceback_only_when_asked_for(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Broker) -> list[str]:
        raise RuntimeError("oops \x1b[31m")

    monkeypatch.setattr(rqttl.Broker, "queues", broken)

    assert failed(run("queue", "ls"), 1).startswith(r"bug: RuntimeError: oops \x1b[31m (run `rqttl --debug")
    assert "Traceback" in run("--debug", "queue", "ls").stderr


@pytest.mark.parametrize(
    "url, hint",
    [
        ("redis://h:1", "a port with TLS wants rediss://; or all "),
        ("redis+cluster://h:1", "a port with TLS wants rediss+cluster://; or all "),
        ("rediss+cluster://h:1", "a port without TLS wants redis+cluster://)"),
        ("rediss+sentinel://h:1/main", "a port without TLS wants redis+sentinel://)"),
    ],
)
def test_a_server_that_hangs_up_may_want_tls_or_none(url: str, hint: str) -> None:
    with rqttl.connect(url) as broker:
        explained = explain_redis(
            redis.ConnectionError("Error while reading from h:1 : (104, 'Connection reset by peer')"), broker
        )

    assert explained is not None
    code, line = explained
    assert code == 4
    assert line.startswith(f"Redis does not answer: Connection reset by peer ({hint}")


@pytest.mark.parametrize(
    "words, line",
    [
        ("LOADING Redis is loading the dataset in memory", "Redis is loading its data: try again in a moment"),
        (
            "MISCONF Redis is configured to save RDB snapshots, but it is currently unable to persist on disk",
            "Redis cannot save its data, so it takes no writes: look at its log and its disk",
        ),
        (
            "Error running script (call to f_0123): @user_script:164: @user_script: 164: -BUSY wait",
            "Redis refused: BUSY wait",
        ),
        (f"BUSY wait script: {'a1' * 20}, on @user_script:164.", "Redis refused: BUSY wait"),
        (
            "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed",
            "the certificate of Redis is not trusted: name its authority's in the URL, with ?ssl_ca_certs=FILE",
        ),
    ],
)
def test_an_error_of_a_script_is_explained_without_its_text(words: str, line: str) -> None:
    explained = explain_redis(redis.ResponseError(words))

    assert explained is not None
    assert explained[1] == line


MEANT = [
    ("create", "queue declare"),
    ("purge", "queue purge"),
    ("publish", "send"),
    ("pubish", "send"),
    ("consume", "receive"),
    ("retry", "dead redrive"),
    ("schedule", "send --delay"),
    ("revoke", "cancel"),
    ("version", "--version"),
    ("queue create", "queue declare"),
    ("queue list", "queue ls"),
    ("queue publish", "rqttl send"),
    ("dead requeue", "dead redrive"),
    ("message get", "message show"),
    ("message rm", "message delete"),
    ("message reject", "message dead-letter"),
    ("web", "dashboard"),
    ("ui", "dashboard"),
    ("monitor", "dashboard"),
]


@pytest.mark.parametrize("word", ["beat", "cron"])
def test_a_scheduler_of_another_tool_is_answered_with_the_way(run: Run, word: str) -> None:
    line = failed(run(word), 2)

    assert "there are no periodic messages: let cron run `rqttl send`" in line


@pytest.mark.parametrize(
    "words, command",
    [
        (("queue", "show", "none"), "`rqttl --namespace shop queue declare none`"),
        (("queue", "ls"), "`rqttl --namespace shop queue declare QUEUE`"),
        (("policy", "ls"), "`rqttl --namespace shop policy set NAME PATTERN`"),
        (("queue", "update", "none"), "`rqttl queue update --help`"),
    ],
)
def test_a_command_that_a_line_names_is_for_the_namespace_at_hand(
    run: Run, words: tuple[str, ...], command: str
) -> None:
    for line in (("--namespace", "shop", *words), (*words, "--namespace", "shop")):
        assert command in run(*line).stderr.replace("`cli", "`rqttl")
    assert command.replace("--namespace shop ", "") in run(*words).stderr.replace("`cli", "`rqttl")


@pytest.mark.parametrize("typed, target", MEANT)
def test_a_synonym_is_answered_with_the_command(run: Run, typed: str, target: str) -> None:
    *group, word = typed.split()
    see = " ".join(("rqttl", *group))

    line = failed(run(*typed.split(), "x"), 2).replace("`cli", "`rqttl")

    assert line == f"no such command {word!r}; did you mean `{target}`? (see `{see} --help`)"


@pytest.mark.parametrize(
    "typed, hint",
    [
        ("queue declare q --ttl 5s", "did you mean --message-ttl?"),
        ("queue declare q --dlq dead", "did you mean --dead-letter?"),
        (
            "queue declare q --delay 5s",
            "`enqueue(…, delay=…)` and `rqttl send --delay` delay a message, redelivery_delay a failed one",
        ),
        ("queue declare q --priority 5", "there are no priorities: use a queue for each"),
        ("queue declare q --durable", "every queue is stored, and `rqttl doctor` says what a crash of Redis can lose"),
        ("queue declare q --mesage-ttl 5s", "did you mean --message-ttl?"),
        ("worker q --concurrency 5", "did you mean --threads?"),
        ("send q --eta 5s", "did you mean --at?"),
        ("send q --countdown 5s", "did you mean --delay?"),
    ],
)
def test_a_flag_of_another_tool_is_answered_with_ours(run: Run, typed: str, hint: str) -> None:
    flag = next(word for word in typed.split() if word.startswith("--"))

    assert failed(run(*typed.split()), 2).startswith(f"no such option {flag!r}; {hint} (see ")


def test_every_suggestion_is_a_command_or_an_option_of_the_root() -> None:
    paths = {" ".join(path) for path in ALL}
    suggested = {" ".join(one for one in path.split() if not one.startswith("--")) for path in errors._WORDS}

    assert suggested <= paths


def test_every_command_is_what_some_word_means() -> None:
    assert {" ".join(path) for path in LEAVES} <= set(errors._WORDS)


#: As Python reads the bytes `a\xffb` on the command line.
BAD = os.fsdecode(b"a\xffb")
#: A word for each argument that a command needs beside the one that is bad.
WORDS = {"queue": "orders", "name": "orders", "queues": "orders", "shell": "bash"}
#: Words that may have any bytes: the name of a folder that is made, a name that no command uses.
KEPT = ("demo --picture", "server --folder", " --url", " --namespace")


def _words(path: tuple[str, ...], bad: click.Parameter | None = None) -> list[str]:
    """The words of a call whose argument `bad`, if any, is bad; no argument follows it."""
    words = []
    for one in arguments(path):
        words.append(BAD if one is bad else WORDS.get(one.name or "", "1"))
        if one is bad or (bad is None and not one.required):
            break
    return words


def _calls() -> Iterator[tuple[str, list[str]]]:
    """A call for each place of a word: its name, and the words."""
    yield "command", [BAD]
    yield "unknown option", [f"--{BAD}"]
    for path in ALL:
        for option in options(path):
            if not option.is_flag:
                name = f"{' '.join(path)} {option.opts[0]}"
                yield name, [*path, option.opts[0], BAD, *(_words(path) if path in LEAVES else ())]
    for path in LEAVES:
        for argument in arguments(path):
            if (path, argument.name) != (("send",), "body"):
                yield f"{' '.join(path)} {argument.name}", [*path, *_words(path, argument)]


CALLS = {name: words for name, words in _calls() if name not in KEPT}


def test_words_that_are_no_text_are_refused_in_one_line(
    run: Run, broker: Broker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    broker.declare_queue("orders")
    broker.queue("orders").enqueue(b"x")

    results = {call: run(*words, stdin=b"") for call, words in CALLS.items()}

    assert {call: result.output for call, result in results.items() if result.exit_code != 2} == {}
    lines = {call: result.stderr.splitlines() for call, result in results.items()}
    assert {call: told for call, told in lines.items() if len(told) != 1 or not told[0].startswith("rqttl: ")} == {}
    assert {call: result.stdout for call, result in results.items() if result.stdout} == {}
    assert broker.queues() == ["orders"]


def test_a_body_keeps_its_bytes(run: Run, broker: Broker) -> None:
    broker.declare_queue("orders")

    assert run("send", "orders", BAD).exit_code == 0
    assert [one.body for one in broker.queue("orders").peek()] == [b"a\xffb"]


@pytest.mark.parametrize("url", [b"redis://a\xffb/0", b"embedded://\xff"])
def test_a_url_in_the_environment_that_is_no_text_is_refused_in_one_line(url: bytes) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "rqttl.cli", "peek", "orders"],
        env={**os.environb, b"RQTTL_URL": url},
        capture_output=True,
        check=False,
    )

    assert (result.returncode, result.stdout) == (2, b"")
    assert result.stderr.startswith(b"rqttl: url: ")
    assert result.stderr.count(b"\n") == 1
