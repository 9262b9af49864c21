"""The conventions of all commands. A new command is tested, too: the tests walk the tree of commands."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from rqttl import Broker
from rqttl.cli import cli
from rqttl.cli.common.params import complete_queues
from rqttl.consuming.heartbeat import Heartbeat
from rqttl.options import OPTIONS
from rqttl.reaper.report import Totals, reaper_details
from rqttl.store.driver import driver_of
from rqttl.types import QueueStats
from tests.cli.conftest import Run
from tests.cli.test_errors import failed
from tests.cli.tree import ALL, LEAVES, CommandPath, arguments, flags, options
from tests.drivers import redis_of
from tests.servers import Server

pytestmark = pytest.mark.once

#: What every argument is called, and a value for it. A new one needs a value here.
VALUES = {"QUEUE": "orders", "ID": "x", "SHELL": "bash", "BODY": "x", "NAME": "orders", "PATTERN": "orders.#"}
VALUES |= {"TO": "work", "TOPIC": "news", "FILTER": "{}"}
#: The files of commands that take one.
_UNIT = Path(__file__).parents[1] / "unit"
FILES = {
    "apply": _UNIT / "deployments/files/example.yaml",
    "rabbitmq": _UNIT / "imports/fixtures/rabbitmq_vhost.json",
    "servicebus": _UNIT / "imports/fixtures/servicebus_template.json",
    "artemis": _UNIT / "imports/fixtures/every_element.xml",
}
#: What is given beside the arguments, so that a command ends, asks nothing and has something to do.
BESIDE = {
    "--repair": ("--repair",),
    "--role": ("--role", "reader"),
    "--yes": ("--yes",),
    "--once": ("--once",),
    "--unset": ("--lease", "1m"),
    "--none": ("--lease", "1m"),
    "--delay": ("--delay", "1h"),
    "--call": ("--burst", "--processes", "0", "--call", "json:loads"),
}
#: Commands that take no Redis from `--url`: they run one, bring their own queues, or need none.
APART: dict[CommandPath, set[str]] = {
    ("server",): {"--namespace"},
    ("demo",): {"--namespace"},
    ("completion",): {"--url", "--namespace"},
    ("acl", "generate"): {"--url"},
    ("dashboard",): set(),  # it goes on without Redis, until it is stopped
}
#: Commands that print no answer which a program would read.
NO_JSON: set[CommandPath] = {("completion",), ("worker",), ("dashboard",)}
DESTRUCTIVE: set[CommandPath] = {("queue", "purge"), ("queue", "delete"), ("dead", "purge"), ("dead", "redrive")}
DESTRUCTIVE |= {("topic", "unsubscribe")}
DESTRUCTIVE |= {("message", verb) for verb in ("delete", "expire", "dead-letter")}

#: Commands that look for what is wrong, and answer with it.
REPORTS: set[CommandPath] = {("doctor",)}
#: Commands that may have written lines of a log before Redis refuses something.
LOGS: set[CommandPath] = {("worker",)}
#: Commands whose JSON is a file for another command, with durations as text with a unit.
WRITES_FILES: set[CommandPath] = {("export",)}

#: A moment in JSON.
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(\+00:00|Z)")

#: Names of durations, which end in `_ms` in JSON.
DURATIONS = {option.name for option in OPTIONS.values() if option.kind == "duration"} | {
    one.name for one in fields(QueueStats) if "timedelta" in str(one.type)
}

ON_REDIS = [path for path in LEAVES if path not in APART]
#: Those that print an answer. A worker only logs.
ANSWERING = [path for path in ON_REDIS if path not in NO_JSON]


def names(path: CommandPath) -> list[str]:
    """The names of the arguments of a command."""
    context = click.Context(click.Command("any"))
    return [re.sub(r"[^A-Z]", "", one.make_metavar(context)) or one.human_readable_name for one in arguments(path)]


def argv(path: CommandPath, *, optional: bool = False) -> list[str]:
    """The shortest invocation of a command that is right; with the arguments that may be left out if `optional`."""
    values = {**VALUES, "FILE": str(FILES.get(path[-1], ""))} if path else VALUES
    given = [values[name] for name, one in zip(names(path), arguments(path), strict=True) if one.required or optional]
    beside = [word for flag, words in BESIDE.items() if flag in flags(path) for word in words]
    return [*path, *given, *beside]


def named(path: CommandPath) -> str:
    return " ".join(path) or "rqttl"


every = pytest.mark.parametrize("path", ALL, ids=named)
leaves = pytest.mark.parametrize("path", LEAVES, ids=named)
answering = pytest.mark.parametrize("path", ANSWERING, ids=named)
on_redis = pytest.mark.parametrize("path", ON_REDIS, ids=named)
with_queue = pytest.mark.parametrize(
    "path", [path for path in ON_REDIS if "QUEUE" in names(path) and "TOPIC" not in names(path)], ids=named
)


# What commands have


@leaves
def test_every_command_says_which_redis_and_can_show_a_traceback(path: CommandPath) -> None:
    assert flags(path) >= {"--url", "--namespace", "--debug"} - APART.get(path, set())


@leaves
def test_commands_with_an_answer_can_print_json(path: CommandPath) -> None:
    assert ("--json" in flags(path)) == (path not in NO_JSON)


@leaves
def test_commands_that_destroy_ask_first_and_have_a_dry_run(path: CommandPath) -> None:
    asks = {"--yes", "--dry-run"} <= flags(path)

    assert asks or path not in DESTRUCTIVE
    assert ("--yes" in flags(path)) <= ("--dry-run" in flags(path))


def test_the_same_flag_means_the_same_everywhere() -> None:
    """A flag has one metavar and one type in all commands."""
    meanings: dict[str, set[tuple[object, ...]]] = {}
    for path in LEAVES:
        for one in options(path):
            for flag in one.opts:
                meaning = (one.metavar, type(one.type).__name__, one.is_flag, one.multiple and flag != "--id")
                if (flag, path) in (("--burst", ("worker",)), ("--queues", ("dashboard",))):
                    continue  # one ends the worker once its queues are empty, the other is a single pattern
                meanings.setdefault(flag, set()).add(meaning)

    assert {flag: meaning for flag, meaning in meanings.items() if len(meaning) > 1} == {}


@on_redis
def test_the_names_of_queues_are_completed(path: CommandPath) -> None:
    for name, one in zip(names(path), arguments(path), strict=True):
        assert name not in ("QUEUE", "TOPIC") or one._custom_shell_complete is complete_queues


# What they print


def facts_of(value: object, name: str = "") -> Iterator[tuple[str, object]]:
    """All names and values in a JSON document, at any depth."""
    if isinstance(value, dict):
        for inner, one in value.items():
            yield from facts_of(one, inner)
    elif isinstance(value, list):
        for one in value:
            yield from facts_of(one, name)
    else:
        yield name, value


def set_up(broker: Broker, path: CommandPath = ()) -> None:
    """A message `x` in the queue `orders`: dead, or scheduled; policies of that name; a topic; a reaper that lives."""
    beat = Heartbeat(driver_of(broker).keyspace, "reaper", lambda _: reaper_details(Totals())).beat()
    driver_of(broker).perform(beat)
    broker.set_policy("orders", "other", {"lease": "1m"})
    broker.set_policy("orders", "other", {"lease": "1m"}, operator=True)
    orders = broker.declare_queue("orders")
    if path in (("cancel",), ("reschedule",)):
        orders.enqueue(b"x", id="x", delay="1h")
    broker.declare_queue("work", dead_letter="orders").enqueue(b"x", id="x", ttl=0)
    if path[:1] == ("topic",):
        topic = broker.declare_topic("news")
        if path[1] != "subscribe":
            topic.subscribe("orders")
        if path[1] in ("unbind", "show"):
            topic.bind("orders")


@answering
def test_json_is_one_document_with_exact_times(run: Run, broker: Broker, path: CommandPath) -> None:
    set_up(broker, path)

    result = run(*argv(path, optional=True), "--json")

    assert result.exit_code == (3 if path in REPORTS else 0), result.stderr  # the tests' server keeps nothing
    facts = list(facts_of(json.loads(result.stdout)))
    assert result.stdout.count("\n") == 1
    assert facts
    assert path in WRITES_FILES or DURATIONS.isdisjoint(name for name, _ in facts)
    for name, value in facts:
        assert not re.search(r"(_at|_until|_end|^until|^at)$", name) or value is None or TIME.fullmatch(str(value)), (
            name
        )
        assert not name.endswith("_ms") or value is None or isinstance(value, int), name


@answering
def test_an_answer_is_lines_of_plain_text(run: Run, broker: Broker, path: CommandPath) -> None:
    set_up(broker, path)

    result = run(*argv(path, optional=True))

    assert result.exit_code == (3 if path in REPORTS else 0), result.stderr
    assert result.stdout.replace("\n", "").isprintable()
    assert result.stdout.endswith("\n")


# What goes wrong


@every
def test_an_option_that_does_not_exist_is_wrong_usage(run: Run, path: CommandPath) -> None:
    assert "--frobnicate" in failed(run(*path, "--frobnicate"), 2)


@leaves
def test_an_argument_that_is_missing_is_named(run: Run, path: CommandPath) -> None:
    for name, one in zip(names(path), arguments(path), strict=True):
        if one.required:
            assert f"'{name}" in failed(run(*path), 2)
            break


@leaves
def test_an_argument_too_many_is_wrong_usage(run: Run, path: CommandPath) -> None:
    if all(one.nargs == 1 for one in arguments(path)):
        assert "extra argument" in failed(run(*argv(path), "one-too-many\x1b[31m"), 2)


def checked_options() -> Iterator[tuple[CommandPath, str]]:
    """Every option whose value is read as something: a number, a choice, a time. An error has any characters."""
    for path in LEAVES:
        for one in options(path):
            anything = (click.types.StringParamType, click.types.UnprocessedParamType, click.Path)
            if not one.is_flag and one.name != "error" and (one.callback or not isinstance(one.type, anything)):
                yield path, one.opts[0]


@pytest.mark.parametrize(
    "path, flag", [pytest.param(*one, id=f"{named(one[0])} {one[1]}") for one in checked_options()]
)
def test_a_value_that_cannot_be_read_is_wrong_usage(run: Run, path: CommandPath, flag: str) -> None:
    assert flag in failed(run(*argv(path), flag, "\x1b[31m\u202e?"), 2)


@on_redis
@pytest.mark.parametrize("given", [("--url", "hunter2://x"), ("--namespace", "a\x1b b")], ids=lambda given: given[0])
def test_an_impossible_url_is_wrong_usage(run: Run, path: CommandPath, given: tuple[str, str]) -> None:
    failed(run(*argv(path), *given), 2)


@with_queue
def test_a_missing_queue_is_refused_and_the_line_says_how_to_make_it(
    run: Run, broker: Broker, path: CommandPath
) -> None:
    if path in (("queue", "declare"), ("explain",)):  # explain tells of queues that do not exist yet
        assert run(*argv(path)).exit_code == 0
        return

    line = failed(run(*argv(path, optional=True)), 3)

    assert line == "queue 'orders' does not exist: `rqttl queue declare orders` creates it [not_found]"
    assert broker.queues() == []


def test_a_topic_that_is_asked_for_messages_is_not_called_missing(run: Run, broker: Broker) -> None:
    broker.declare_topic("news")

    line = failed(run("receive", "news"), 3)

    assert line == "queue 'news' is a topic, which passes its messages on: subscribe to it first [forwards]"


@with_queue
def test_a_queue_with_nearly_the_same_name_is_named(run: Run, broker: Broker, path: CommandPath) -> None:
    broker.declare_queue("orders.eu")
    words = ["order.eu" if word == "orders" else word for word in argv(path, optional=True)]

    if path == ("explain",):
        assert run(*words).stderr == "rqttl: queue order.eu does not exist; did you mean orders.eu?\n"
    elif path != ("queue", "declare"):
        assert failed(run(*words), 3) == "queue 'order.eu' does not exist; did you mean orders.eu? [not_found]"


@with_queue
def test_a_name_that_no_queue_can_have_is_wrong_usage(run: Run, path: CommandPath) -> None:
    words = ["a\x1b]52;c;x\x07" if word == "orders" else word for word in argv(path, optional=True)]

    about = "QUEUE" if path == ("worker",) else "queue name"  # it takes patterns, too
    assert f"{about}: expected" in failed(run(*words), 2)


@pytest.fixture(scope="module")
def nowhere(launch: Callable[..., Server]) -> Iterator[str]:
    """The URL of a server that was killed."""
    server = launch()
    server.kill()
    yield server.url
    server.remove()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("path", [path for path in (*ON_REDIS, ("demo",)) if path not in LOGS], ids=named)
def test_without_redis_every_command_says_so(path: CommandPath, nowhere: str) -> None:
    line = failed(CliRunner().invoke(cli, [*argv(path, optional=True), "--url", nowhere]), 4)

    assert line.startswith("Redis does not answer: ")
    assert line.endswith("check --url or $RQTTL_URL")


@pytest.fixture(scope="module")
def without_rights(launch: Callable[..., Server]) -> Iterator[str]:
    """The URL of a server whose user may connect and nothing else."""
    server = launch()
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "guest", "on", "nopass", "resetkeys", "-@all", "+@connection")
    yield server.url.replace("unix://", "unix://guest:any@")
    server.remove()


def refused(result: Result, path: CommandPath, shape: str, expected: str) -> None:
    """Redis refused something: in a line of this shape that holds `told`; a report says it as one of its findings."""
    if path in REPORTS:
        assert (result.exit_code, result.stderr) == (3, "")
        assert re.search(expected, result.stdout)
        assert "\x1b" not in result.stdout
    else:
        if path in LOGS:
            result.stderr_bytes = result.stderr.splitlines(keepends=True)[-1].encode()
        line = failed(result, 3)
        assert re.search(shape, line)
        assert re.search(expected, line)


@on_redis
def test_a_missing_right_is_a_refusal(path: CommandPath, without_rights: str) -> None:
    result = CliRunner().invoke(cli, [*argv(path, optional=True), "--url", without_rights])

    refused(result, path, "^Redis refuses user 'guest': the right for ", "permissions| is missing; ")


@with_queue
def test_a_key_of_another_program_is_refused(run: Run, broker: Broker, path: CommandPath) -> None:
    redis_of(broker).set("rqttl:{orders}:meta", "not a hash")
    redis_of(broker).sadd("rqttl:queues{rqttl}", "orders")

    result = run(*argv(path, optional=True))
    script = path not in REPORTS and "WRONGTYPE" in result.stderr
    shape = "^Redis refused: " if script else r"\[damaged\]$"
    refused(result, path, shape, "WRONGTYPE" if script else re.escape("rqttl:{orders}:meta"))
