"""Every setting of a worker with a wrong value: on the command line and in code it is named, and nothing changes."""

import re
from collections.abc import Mapping
from typing import Any

import click
import pytest
import redis
from click.testing import CliRunner, Result

from rqttl import Broker, InvalidInput, Queue, Worker
from rqttl.cli import cli
from rqttl.cli.common.params import flag
from rqttl.worker.settings import WorkerOptions

pytestmark = pytest.mark.once

#: A wrong value for each option of code, and the options beside it.
WRONG: dict[str, tuple[object, dict[str, Any]]] = {
    "call": ("no name", {"call": None}),
    "exec": ("no-such-program", {"call": None}),
    "delivery": ("no", {}),
    "processes": (-1, {}),
    "threads": (0, {}),
    "asyncio": (10_001, {}),
    "lease": ("0s", {}),
    "timeout": ("soon", {}),
    "max_messages": (1.5, {}),
    "max_memory": ("100 parsecs", {}),
    "grace": ("never", {}),
    "retry_delay": ("1 moment", {}),
    "retry_max": (5, {}),
    "retry_jitter": ("1.5", {}),
    "burst": ("yes", {}),
    "idle_exit": ("0s", {}),
    "reaper": ("off", {}),
    "health": ("127.0.0.1", {}),
}
#: The same for options of the command line that code does not have.
WRONG_FLAGS = {"--log-format": "xml", "--verbose": "x", "--url": "ftp://x", "--namespace": "not valid", "--debug": "x"}

#: Words of which one has no effect beside another one, or cannot have one; and the options that the error names.
PAIRS = (
    ("--call m:f --exec true", "--call --exec"),
    ("--exec true --delivery", "--exec --delivery"),
    ("--exec true --asyncio 2", "--exec --asyncio"),
    ("--call m:f --threads 1 --asyncio 1", "--threads --asyncio"),
    ("--call m:f --burst --idle-exit 1s", "--burst --idle-exit"),
    ("--call m:f --processes 0 --timeout 1s", "--processes --timeout"),
    ("--call m:f --processes 0 --max-messages 1", "--processes --max-messages"),
    ("--call m:f --processes 0 --max-memory 1G", "--processes --max-memory"),
    ("--call m:f --retry-delay 1h --retry-max 1m", "--retry-delay --retry-max"),
    ("--call tests.worker.handlers:coroutine --threads 2", "--call --threads --asyncio"),
    ("--call tests.worker.handlers:coroutine --threads 2 --processes 0", "--call --threads --asyncio"),
)


@pytest.fixture
def digest(client: redis.Redis, queue: Queue) -> Any:
    """All that Redis holds, as one value. The queue has a message."""
    queue.enqueue("x")
    return lambda: {key: client.dump(key) for key in client.scan_iter()}


def run(url: str, *words: str) -> Result:
    return CliRunner(env={"RQTTL_URL": url}).invoke(cli, ["worker", *words])


def all_flags() -> list[str]:
    worker = cli.get_command(click.Context(cli), "worker")
    assert worker is not None
    return [max(option.opts, key=len) for option in worker.params if isinstance(option, click.Option)]


def test_each_option_has_a_wrong_value_here() -> None:
    assert set(WRONG) == set(WorkerOptions.__annotations__)
    assert set(all_flags()) == {*map(flag, WRONG), *WRONG_FLAGS, "--help"} - {"--help"}


@pytest.mark.parametrize("name", WRONG)
def test_code_gets_an_error_that_names_the_parameter(broker: Broker, digest: Any, name: str) -> None:
    value, beside = WRONG[name]
    before = digest()

    with pytest.raises(InvalidInput) as caught:
        Worker(broker, "q", **{"call": "m:f", **beside, name: value})

    assert str(caught.value).startswith(f"{name}: ")
    assert digest() == before


@pytest.mark.parametrize("name", [*map(flag, WRONG), *WRONG_FLAGS])
def test_the_command_line_names_the_option_as_the_user_wrote_it(redis_url: str, digest: Any, name: str) -> None:
    wrong: Mapping[str, object] = {**{flag(key): value for key, (value, _) in WRONG.items()}, **WRONG_FLAGS}
    words = ["q"] if name in ("--call", "--exec") else ["q", "--call", "m:f"]
    before = digest()

    result = run(redis_url, *words, f"{name}={wrong[name]}")

    assert result.exit_code == 2, result.stderr
    [line] = result.stderr.splitlines()
    assert ("url" if name == "--url" else name) in line  # `$RQTTL_URL` has the same rule
    assert name == "--url" or not re.search(rf"\b{name.strip('-').replace('-', '_')}: ", line.replace(name, ""))
    assert digest() == before


@pytest.mark.parametrize("words, names", PAIRS)
def test_options_that_have_no_effect_together_are_refused(redis_url: str, digest: Any, words: str, names: str) -> None:
    before = digest()

    result = run(redis_url, "q", *words.split())

    assert result.exit_code == 2, result.stderr
    [line] = result.stderr.splitlines()
    assert [name for name in names.split() if name not in line] == []
    assert digest() == before


@pytest.mark.parametrize(
    "words, missing",
    [
        ("", "a QUEUE, and --call or --exec"),
        ("q", "--call or --exec"),
        ("--exec true", "a QUEUE"),
        ("--burst", "a QUEUE, and --call or --exec"),
    ],
)
def test_a_worker_that_lacks_words_says_which(redis_url: str, words: str, missing: str) -> None:
    result = run(redis_url, *words.split())

    assert (result.exit_code, result.stdout) == (2, "")
    usage = "usage: rqttl worker [OPTIONS] [QUEUE]..."
    assert result.stderr == f"rqttl: {usage}; missing: {missing} (see `rqttl worker --help`)\n"


@pytest.mark.parametrize(
    "queues, message",
    [
        ("no!", "rqttl: QUEUE: expected 1 to 128 of"),
        ("q=0", "value for QUEUE: expected a weight from 1 to 1000000 after =, got 'q=0'"),
        ("q=1000001", "got 'q=1000001'"),
        ("q=many", "got 'q=many'"),
        ("q=2 q=3", "value for QUEUE: q has two weights"),
        ("q q=3", "value for QUEUE: q has two weights"),
    ],
)
def test_a_wrong_queue_is_named_as_the_user_gave_it(redis_url: str, queues: str, message: str) -> None:
    result = run(redis_url, *queues.split(), "--call", "m:f")

    assert result.exit_code == 2
    assert message in result.stderr
