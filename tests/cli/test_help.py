"""Every command explains itself, in 80 columns; half-typed lines are completed, asked as each shell asks."""

import inspect
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.shell_completion import split_arg_string
from click.testing import CliRunner

import rqttl
from rqttl import Broker
from rqttl.cli import cli
from rqttl.cli.common import params
from rqttl.options import OPTIONS
from tests.cli.conftest import Run
from tests.cli.tree import ALL, CommandPath, example, flags, found, options, parse, stages
from tests.drivers import redis_of
from tests.servers import Server
from tests.waiting import PATIENCE

pytestmark = pytest.mark.once


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_help_fits_and_ends_with_an_example(path: CommandPath) -> None:
    result = CliRunner().invoke(cli, [*path, "--help"], terminal_width=80)

    assert (result.exit_code, result.stderr) == (0, "")
    assert [line for line in result.stdout.splitlines() if len(line) > 80] == []
    assert f"\n  Example: {example(path)}\n" in result.stdout
    assert CliRunner().invoke(cli, [*path, "-h"], terminal_width=80).stdout == result.stdout


def test_help_is_the_same_without_docstrings() -> None:
    texts = [CliRunner().invoke(cli, [*path, "--help"], terminal_width=80).stdout for path in ALL]
    code = (
        "import json, sys; from click.testing import CliRunner; from rqttl.cli import cli; print(json.dumps("
        "[CliRunner().invoke(cli, [*path, '--help'], terminal_width=80).stdout for path in json.loads(sys.argv[1])]))"
    )
    words = [sys.executable, "-OO", "-c", code, json.dumps(ALL)]

    assert json.loads(subprocess.run(words, check=True, capture_output=True).stdout) == texts


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_help_names_no_modules_of_the_code(path: CommandPath) -> None:
    command = found(path)
    known = vars(inspect.getmodule(command.callback))
    modules = [name for name, one in known.items() if inspect.ismodule(one) and name != "rqttl"]

    assert re.findall(rf"\b(?:{'|'.join(modules)})\.\w+", command.help or "") == []


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_option_says_what_it_does(path: CommandPath) -> None:
    assert [one.opts for one in options(path) if not one.help] == []


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_the_example_is_an_invocation_that_can_be_typed(path: CommandPath) -> None:
    ours = [words for words in stages(example(path)) if words[0] == "rqttl"]

    assert path in [named[: len(path)] for named, _ in map(parse, ours)]


def test_every_option_of_a_queue_is_a_flag_of_declare() -> None:
    assert {f"--{name.replace('_', '-')}" for name in OPTIONS} <= flags(("queue", "declare"))


@pytest.mark.parametrize(
    "path, titles",
    [
        (
            ("queue", "declare"),
            [
                "Lifetime of messages",
                "Limits",
                "Dead letters",
                "Retries",
                "Control of consumers",
                "End of the queue",
                "Other options of a queue",
            ],
        ),
        (("policy", "set"), ["Lifetime of messages", "Limits"]),
        (("worker",), ["What to run", "How many", "Time and retries", "When to stop", "Observe"]),
    ],
)
def test_many_options_stand_in_sections(path: CommandPath, titles: list[str]) -> None:
    printed = CliRunner().invoke(cli, [*path, "--help"], terminal_width=80).stdout
    found = re.findall(r"^(\w[^:\n]*):$", printed, re.MULTILINE)

    assert found[: len(titles)] == titles
    assert all(option.opts[0] in printed for option in options(path))
    assert printed.count("  --message-ttl ") == (path != ("worker",))


def test_a_group_alone_shows_its_help() -> None:
    assert CliRunner().invoke(cli, []).stdout == CliRunner().invoke(cli, ["--help"]).stdout
    assert CliRunner().invoke(cli, ["queue"]).stdout == CliRunner().invoke(cli, ["queue", "--help"]).stdout


def test_the_version_is_the_version() -> None:
    assert re.fullmatch(rf"rqttl {re.escape(rqttl.__version__)}\n", CliRunner().invoke(cli, ["--version"]).stdout)


Complete = Callable[..., list[str]]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that comes late is no missing name."""
    monkeypatch.setattr(params, "PATIENCE", PATIENCE)
    monkeypatch.setattr("rqttl.embedded.server._PROBE_TIMEOUT", PATIENCE)


def asked(line: str, **environment: str) -> list[str]:
    """The completions behind `line`, asked as the function of click for bash asks."""
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(split_arg_string(f"{line}x")) - 1)}
    result = CliRunner(env={"_RQTTL_COMPLETE": "bash_complete", **words, **environment}).invoke(cli)
    assert (result.exit_code, result.stderr) == (0, "")
    return [line.partition(",")[2] for line in result.stdout.split()]


@pytest.fixture
def offered(redis_url: str) -> Complete:
    return lambda line, **environment: asked(line, RQTTL_URL=redis_url, **environment)


@pytest.fixture
def queues(broker: Broker) -> None:
    for name in ("orders", "orders/dead", "eu:orders", "eu:orders:dead", "mail"):
        broker.declare_queue(name)


def test_commands_options_and_values_are_offered(offered: Complete) -> None:
    assert offered("rqttl rec") == ["receive"]
    assert offered("rqttl queue sh") == ["show"]
    assert offered("rqttl receive --fo") == ["--follow"]
    assert "json" in offered("rqttl send orders --format ")
    assert offered("rqttl send orders --format=js") == ["json"]
    assert offered("rqttl completion z") == ["zsh"]


@pytest.mark.usefixtures("queues")
def test_names_of_queues_are_offered(offered: Complete) -> None:
    assert offered("rqttl receive ") == ["eu:orders", "eu:orders:dead", "mail", "orders", "orders/dead"]
    assert offered("rqttl receive ord") == ["orders", "orders/dead"]
    assert offered("rqttl receive 'ord") == ["orders", "orders/dead"]
    assert offered("rqttl receive x") == []


@pytest.mark.parametrize("command", ["show", "purge", "redrive", "report"])
def test_reasons_of_deaths_are_offered(offered: Complete, command: str) -> None:
    assert offered(f"rqttl dead {command} dead --reason ") == ["expired", "maxlen", "rejected", "delivery_limit"]
    assert offered(f"rqttl dead {command} dead --reason expired --reason deliv") == ["delivery_limit"]


def test_the_redis_and_the_namespace_of_the_line_are_asked(redis_url: str, broker: Broker) -> None:
    Broker(redis_of(broker), "shop").declare_queue("carts")

    assert asked(f"rqttl --url {redis_url} --namespace shop receive ") == ["carts"]
    assert asked(f"rqttl receive --url {redis_url} --namespace=shop ") == ["carts"]
    assert asked("rqttl --namespace shop receive ", RQTTL_URL=redis_url) == ["carts"]


def test_nothing_is_completed_without_a_redis_and_none_is_started(
    start_server: Callable[..., Server], tmp_path: Path
) -> None:
    server = start_server()
    server.kill()

    assert asked("rqttl receive ", RQTTL_URL=server.url) == []
    assert asked("rqttl receive ", RQTTL_URL="http://nonsense") == []
    assert asked("rqttl --namespace 'a b' receive ", RQTTL_URL=server.url) == []
    assert asked("rqttl receive ", RQTTL_HOME=str(tmp_path / "home"), RQTTL_URL="") == []
    assert not (tmp_path / "home").exists()


def test_nobody_waits_for_a_redis_that_hangs(
    start_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server()
    monkeypatch.setattr(params, "PATIENCE", 0.05)
    with server.client() as client:
        client.execute_command("CLIENT", "PAUSE", "600000")

    assert asked("rqttl receive ", RQTTL_URL=server.url) == []


@pytest.mark.slow
def test_an_embedded_server_that_runs_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "my home"
    url = f"embedded://{tmp_path}/my%20home"
    with rqttl.connect(url) as broker:
        broker.declare_queue("orders")

        assert asked("rqttl receive ", RQTTL_HOME=str(home), RQTTL_URL="") == ["orders"]
        assert asked("rqttl receive ", RQTTL_URL=url) == ["orders"]
        assert asked(f"rqttl --url {url} receive ", RQTTL_URL="") == ["orders"]

    connected: list[object] = []
    monkeypatch.setattr(rqttl, "connect", connected.append)
    assert asked("rqttl receive ", RQTTL_HOME=str(home), RQTTL_URL="") == []
    assert connected == [], "nobody waits for a server that does not run"


def test_a_folder_of_another_user_is_not_read(tmp_path: Path, redis_url: str) -> None:
    (tmp_path / "address").write_text(redis_url.removeprefix("unix://"))

    assert asked("rqttl receive ", RQTTL_URL=f"embedded://{tmp_path}") == []


@pytest.mark.usefixtures("queues")
@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_other_shells_are_answered_too(shell: str, redis_url: str) -> None:
    words = {"COMP_WORDS": "rqttl receive orders/", "COMP_CWORD": "orders/" if shell == "fish" else "2"}
    asking = {"_RQTTL_COMPLETE": f"{shell}_complete", "RQTTL_URL": redis_url, **words}

    result = CliRunner(env=asking).invoke(cli)

    assert result.stdout == {"zsh": "plain\norders/dead\n_\n", "fish": "plain,orders/dead\n"}[shell]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_one_that_it_can_read(shell: str, run: Run) -> None:
    script = run("completion", shell)

    assert (script.exit_code, script.stderr) == (0, "")
    assert f"_RQTTL_COMPLETE={shell}_complete" in script.stdout
    if program := shutil.which(shell):
        subprocess.run([program, "-n"], input=script.stdout, text=True, check=True)
