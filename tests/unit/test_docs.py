"""The documentation against the code: tables are up to date, examples run, names and links lead somewhere.

`python -m tests.unit.test_docs` writes all generated text anew: tables, and methods of the asyncio interface.
"""

import ast
import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import rqttl
from rqttl import Broker
from rqttl.cli import cli
from rqttl.metrics import SOURCES
from rqttl.options import SCRIPT_OPTIONS
from rqttl.protocol import codec
from rqttl.protocol.keys import PARTS, STATES
from rqttl.protocol.roles import ROLES
from tests.bench.compare import __main__ as compare
from tests.bench.compare import page
from tests.bench.compare.candidates import CANDIDATES
from tests.cli import tree
from tests.drivers import redis_of
from tests.ports import free_port
from tests.repository import ROOT, lua_files
from tests.unit import asyncio_face, spark_reference
from tests.unit.reference import between, errors_table, option_keys, options_table, owner, table, verifying
from tests.unit.test_scripts import NAMES, header, refusals, source

README, ARCHITECTURE, PROTOCOL, COMMANDS = (
    "README.md",
    "ARCHITECTURE.md",
    "lua/README.md",
    "docs/guides/command-line.md",
)
TESTING, DEPLOY, SPARK = "docs/guides/tests.md", "deploy/README.md", "spark_connectors/README.md"
ASYNCIO, METRICS = "docs/guides/asyncio.md", "docs/guides/metrics-and-traces.md"
OPTION_TYPES = "rqttl/options.py"
#: All documents: those of folders, and the guides and decisions.
DOCUMENTS = sorted(
    str(path.relative_to(ROOT))
    for pattern in ("*.md", "*/README.md", "*/*/README.md", "docs/**/*.md")
    for path in ROOT.glob(pattern)
    if not path.relative_to(ROOT).parts[0].startswith((".", "build"))
)
#: Programs that an example may run, beside `rqttl` and `make`.
PROGRAMS = {"printf", "export", "cp", "install", "pip", "pytest", "python", "python3", "systemctl", "docker"}


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


#: An example that begins with its name is a file, such as `# jobs.py`.
_FILE = re.compile(r"# ([\w/]+\.py)\n")


def fenced(name: str) -> list[tuple[str, str]]:
    """The examples of a document, each with its language."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", read(name), re.MULTILINE | re.DOTALL)


def blocks(name: str, *languages: str) -> list[str]:
    """The examples in these languages, without those that are files."""
    return [text for language, text in fenced(name) if language in languages and not _FILE.match(text)]


def files(name: str) -> dict[str, str]:
    """The files that a reader writes, as they are in the end."""
    return {found[1]: text for language, text in fenced(name) if language == "python" and (found := _FILE.match(text))}


# Scripts


def first_sentence(command: str) -> str:
    """The first sentence of a command's header."""
    [said] = re.findall(r"\A--- (.*?\.)\s", source("commands", command), re.DOTALL)
    return re.sub(r"\s+(-- )?", " ", said)


def explained(said: str) -> str:
    """Names, and the explanation behind a colon."""
    names, colon, meaning = said.partition(":")
    return f"`{names}`{colon}{meaning}" if names else "–"


def commands_table() -> str:
    rows = []
    for name in NAMES:
        cells = [explained(header(name).get(tag, "")) for tag in ("args", "reply", "refuse", "targets")]
        rows.append([f"`{name}`", first_sentence(name), *cells])
    return table(["command", "what", "arguments", "reply", "refusals", "targets"], rows)


def states_table() -> str:
    ends = {True: "a sweep promotes it", False: "a sweep takes it back, as a failed delivery"}
    places = "in `log` ahead of the cursor, or in `requeued` and in `log` or `detached`"
    rows = [["ready", f"{places}; and in `expiry` if it has an own deadline", ""]]
    for part, state in STATES.items():
        place, end = (
            ("and in `log` or `detached`", ends[state.promoted])
            if state.inside
            else ("with the message in `upcoming`", "a sweep lets it arrive, under a new sequence")
        )
        rows.append([state.name, f"in `{part}`, {place}", end])
    return table(["state", "where its sequence is", "at its end"], rows)


#: The calls whose scripts read an option.
READ = {
    "always": "each call, unless `option_set` is `default`",
    "lifetime": "each call on a queue with a lifetime",
    "failure": "a failed delivery",
}


def fields_table() -> str:
    names = {use: [f"`{name}`" for name, one in SCRIPT_OPTIONS.items() if one == use] for use in READ}
    return table(["options", "read by"], [[", ".join(names[use]), calls] for use, calls in READ.items()])


def metrics_table() -> str:
    rows = [
        [source, f"`{metric.name}`", metric.kind, ", ".join(f"`{label}`" for label in metric.labels), metric.meaning]
        for source, metrics in SOURCES.items()
        for metric in metrics
    ]
    return table(["source", "name", "type", "labels", "meaning"], rows)


def roles_table() -> str:
    return table(["role", "may"], [[f"`{name}`", role.may] for name, role in ROLES.items()])


def reader_rules() -> str:
    return f"```text\n{CliRunner().invoke(cli, ['acl', 'generate', '--role', 'reader']).stdout}```"


TABLES: dict[tuple[str, str], Callable[[], str]] = {
    (README, "options"): options_table,
    (OPTION_TYPES, "options"): option_keys,
    (COMMANDS, "errors"): errors_table,
    (PROTOCOL, "fields"): fields_table,
    (PROTOCOL, "states"): states_table,
    (PROTOCOL, "commands"): commands_table,
    (METRICS, "metrics"): metrics_table,
    (DEPLOY, "reader"): reader_rules,
    (DEPLOY, "roles"): roles_table,
    ("SECURITY.md", "verifying"): verifying,
    (".github/CODEOWNERS", "owner"): owner,
    (SPARK, "columns"): spark_reference.columns_table,
    (SPARK, "options"): spark_reference.options_table,
    (SPARK, "written"): spark_reference.written_table,
    **asyncio_face.TABLES,
}


@pytest.mark.parametrize("document, mark", TABLES)
def test_generated_text_is_what_the_code_says(document: str, mark: str) -> None:
    written = between(mark).findall(read(document))

    assert written == [TABLES[document, mark]() + "\n"], "write it anew: .venv/bin/python -m tests.unit.test_docs"


def test_the_page_of_the_protocol_has_each_part_of_a_queue_in_order() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (hash|list|set|stream|zset) \| (.*?) ?\| \S", read(PROTOCOL), re.MULTILINE)

    marks = {part.name: (part.in_target, part.outlives) for part in PARTS.values()}
    assert [(name, kind) for name, kind, _ in rows] == [(part.name, part.type) for part in PARTS.values()]
    assert {name: ("in a target" in mark, "outlives the queue" in mark) for name, _, mark in rows} == marks


def test_the_shares_of_the_page_are_of_the_peers_that_are_compared_and_name_their_date_and_command() -> None:
    [written] = between("shares").findall(page.PAGE.read_text(encoding="utf-8"))
    said, _, shares = written.partition("\n\n")
    [(day, words)] = re.findall(r"^Measured on (\d{4}-\d\d-\d\d) by `make compare PAGE=1 (.*?)`", said)
    figure = re.compile(r"(?<=\| )(–|\d[\d.e+-]*)(?= \|)")

    assert date(2026, 11, 30) <= date.fromisoformat(day) <= datetime.now(timezone.utc).date()
    assert compare.parsed(["--page", *re.sub(r"(\w+)=", r"--\1 ", words).lower().split()]).rounds >= 3
    assert figure.sub("–", shares) == page.shares({}, CANDIDATES) + "\n", "measure anew: make compare PAGE=1"
    assert len(figure.findall(shares.replace("–", ""))) == len(page.COLUMNS) * (len(CANDIDATES) - 1)


def rewrite() -> None:
    for (document, mark), made in TABLES.items():
        (ROOT / document).write_text(between(mark).sub(lambda _, made=made: made() + "\n", read(document)), "utf-8")  # type: ignore[misc]  # bound at once


# Examples


#: The documents with examples in Python; tests/spark runs those of the data source.
WITH_PYTHON = [name for name in DOCUMENTS if blocks(name, "python") and not name.startswith("spark")]
#: The documents that name commands, and those whose commands a reader types one after the other.
WITH_COMMANDS = [name for name in DOCUMENTS if blocks(name, "sh", "bash") and not name.startswith("spark")]
TOURS = [name for name in WITH_COMMANDS if blocks(name, "sh") and name != DEPLOY]


@pytest.mark.parametrize("document", WITH_PYTHON)
def test_the_python_examples_print_what_they_say_to_a_newcomer(
    document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RQTTL_URL", raising=False)
    monkeypatch.setenv("RQTTL_HOME", str(tmp_path))
    names: dict[str, Any] = {}

    for block in blocks(document, "python"):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block, document, "exec"), names)  # noqa: S102  # running them is the test
        assert printed.getvalue().splitlines() == re.findall(r"^ *#> (.*)$", block, re.MULTILINE)

    assert names


def typed(text: str) -> list[tuple[str, list[str]]]:
    """The lines of shell examples, each with its output, if the document has it."""
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("#> "):
            found[-1][1].append(line[3:])
        else:
            found.append((line, []))
    return found


def make_targets() -> set[str]:
    [line] = re.findall(r"^\.PHONY:(.*)$", read("Makefile"), re.MULTILINE)
    return set(line.split())


@pytest.mark.parametrize("document", WITH_COMMANDS)
def test_shell_examples_name_only_programs_and_commands_that_exist(document: str) -> None:
    lines = typed("".join(blocks(document, "sh", "bash")))
    for words in (words for line, _ in lines for words in tree.stages(line)):
        if words[0] == "rqttl":
            tree.parse(words)
        elif words[0] == "make":
            assert {word for word in words[1:] if "=" not in word} <= make_targets()
        else:
            assert words[0] in PROGRAMS or os.access(ROOT / words[0], os.X_OK)


def told(text: str) -> list[str]:
    """Return printed lines without the parts that differ in each run: ages, times, widths of columns and lines."""
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:[\d.]+Z", "TIME", text)
    text = re.sub(r"\d[\d.]*(ms|s|m)( \d+s)?( ago)?", "AGE", re.sub("─+", "", text))
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


Shell = Callable[[str], "subprocess.CompletedProcess[str]"]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """Runs a line as a newcomer would: `rqttl` is installed, no server is named, and the folder is empty."""
    for name, module in {"rqttl": "-m rqttl.cli", "pytest": "-m pytest", "python": ""}.items():
        script = tmp_path / "bin" / name
        script.parent.mkdir(exist_ok=True)
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {module} "$@"\n')
        script.chmod(0o700)
    kept = {name: value for name, value in os.environ.items() if name != "RQTTL_URL"}
    environment = {
        **kept,
        "PATH": f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "RQTTL_HOME": str(tmp_path / "home"),
    }

    def run(line: str) -> subprocess.CompletedProcess[str]:
        words = ["bash", "-euo", "pipefail", "-c", line]
        return subprocess.run(words, env=environment, capture_output=True, cwd=tmp_path, text=True, check=False)

    with rqttl.connect(f"embedded://{tmp_path}/home"):  # so that it does not start and stop for each line
        yield run


@pytest.mark.slow
@pytest.mark.parametrize("document", TOURS)
def test_a_tour_runs_and_prints_what_it_says(document: str, shell: Shell, tmp_path: Path) -> None:
    """A reader writes each file and types each line, from the top."""
    checked = 0
    for language, text in fenced(document):
        if language == "python" and (file := _FILE.match(text)):
            (tmp_path / file[1]).write_text(text)
        for line, expected in typed(text) if language == "sh" else ():
            done = shell(line)
            assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
            assert not expected or told(done.stdout) == told("\n".join(expected))
            checked += bool(expected)

    assert checked


def stage(folder: Path) -> None:
    """Write the files that the examples of the commands read."""
    (folder / "shop").mkdir()
    (folder / "shop" / "jobs.py").write_text("def handle(body): pass\ndef ship(body): print(body.decode())\n")
    (folder / "queues.yaml").write_text("rqttl: 1\nqueues: {orders: {expires: 1h}}\n")
    (folder / "definitions.json").write_text('{"queues": [{"name": "orders", "vhost": "/", "arguments": {}}]}')
    (folder / "broker.xml").write_text("<configuration xmlns='urn:activemq'><core/></configuration>")
    (folder / "queues.json").write_text('[{"name": "shop/orders", "type": "Microsoft.ServiceBus/namespaces/queues"}]')


def set_stage(broker: Broker, *, empty: bool) -> None:
    """Make the queues, messages and policies that they name."""
    orders = broker.declare_queue("orders", expires="1h", dead_letter="{queue}/dead")
    for name in ("mails", "parked"):
        broker.declare_queue(name)
    news = broker.declare_topic("news", message_ttl="1h")
    news.subscribe("europe", "orders.eu.#")
    news.bind("mails", {"kind": "mail"})
    orders.enqueue_many([b"dies", rqttl.Message(b"x", id="order-17")])
    if not empty:
        orders.enqueue(b"later", id="order-18", delay="1h")
    for dead in orders.receive_many(2 if empty else 1):
        dead.reject()
    broker.set_policy("short-lived", "orders.#", {"message-ttl": "5m"})
    broker.set_policy("short-lived", "orders.#", {"message-ttl": "5m"}, operator=True)


#: Examples that go on until they are stopped.
ENDLESS = ("worker orders", "stats", "metrics", "reaper", "server ", "dashboard")


@pytest.mark.slow
def test_the_example_of_each_command_runs(shell: Shell, tmp_path: Path) -> None:
    stage(tmp_path)
    with rqttl.connect(f"embedded://{tmp_path}/home") as broker:  # one server for all
        for line in map(tree.example, tree.LEAVES):
            redis_of(broker).flushall()
            set_stage(broker, empty="--if-empty" in line)
            if line.removeprefix("rqttl ").startswith(ENDLESS):
                done = shell(f"timeout -s INT 3 {line}")
                assert done.returncode == 124, f"{line}\n{done.stdout}\n{done.stderr}"
            else:
                asks = re.search("queue delete|message (delete|expire|dead-letter)", line)
                done = shell(f"{line} --yes" if asks else line)
                assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"


@pytest.mark.slow
def test_the_first_example_of_the_guide_to_workers_runs(shell: Shell, tmp_path: Path) -> None:
    [line] = blocks("docs/guides/worker.md", "bash")
    line = line.strip().replace(":8080", f":{free_port()}")
    stage(tmp_path)
    shell(
        "rqttl queue declare orders; rqttl queue declare mails; rqttl send orders 'an order'; rqttl send mails 'a mail'"
    )
    done = shell(f"{line} --burst")

    assert (done.returncode, sorted(done.stdout.split("\n")[:2])) == (0, ["a mail", "an order"]), done.stderr


# Names


def anchors(text: str) -> set[str]:
    """The anchors of a document, as GitHub makes them of its headings."""
    headings = re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_headings_files_and_make_targets_exist(document: str) -> None:
    text = read(document)
    links = [link.partition("#") for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    files = re.findall(r"`((?:rqttl|lua|tests|deploy|spark_connectors|\.ci)/[\w./-]*\w/?)`", text)
    targets = re.findall(r"`make ([a-z][\w.-]*)`", text)

    for file, _, anchor in links:
        target = (ROOT / document).parent / file if file else ROOT / document
        assert target.exists(), file
        assert not anchor or target.suffix != ".md" or anchor in anchors(target.read_text()), anchor
    assert [file for file in files if not (ROOT / file).exists()] == []
    assert set(targets) <= make_targets()


def test_no_hint_installs_from_an_index_where_the_package_is_not() -> None:
    files = subprocess.run(["git", "ls-files", "*.py", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    index = re.compile(r"pip install [^`\n#]*(?<![\w/])rqttl(?![-/])\b")  # a wheel has a hyphen, a folder a slash

    assert [name for name in files.stdout.split() if index.search(read(name))] == []
    hint = "'rqttl[testing]'"
    assert index.search(f"pip install {hint}")


def test_the_architecture_places_every_module_of_the_layers() -> None:
    listing = re.findall(r"^layers = \[\n(.*?)^\]", read("pyproject.toml"), re.MULTILINE | re.DOTALL)[0]
    modules = {module for layer in re.findall(r'"(.*)"', listing) for module in re.findall(r"\w+", layer)}
    [folders] = re.findall(r"^## Folders\n(.*?)^## ", read(ARCHITECTURE), re.MULTILINE | re.DOTALL)
    cells = re.findall(r"^\| [a-z]+ \| (`.*?) \|", folders, re.MULTILINE)

    assert {name for cell in cells for name in re.findall(r"`(\w+)`", cell)} == modules


@pytest.mark.parametrize("document", [ARCHITECTURE, PROTOCOL])
def test_the_functions_of_scripts_that_a_document_names_exist(document: str) -> None:
    fragments = {path.stem: path.read_text(encoding="utf-8") for path in lua_files("lib")}
    named = [name for name in re.findall(r"`(\w+\.\w+)[`(]", read(document)) if name.partition(".")[0] in fragments]

    assert [name for name in named if f"function {name}(" not in fragments[name.partition(".")[0]]] == []


# The protocol


def first_cells(text: str, heading: str) -> dict[str, str]:
    """The rows of the first table below a heading of the protocol: the names in the first cell, and the second cell."""
    [section] = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| (`.*?) \| (.*?) \|", section, re.MULTILINE)
    return {name: second for names, second in rows for name in re.findall(r"`([^`]+)`", names)}


def test_the_table_of_refusals_is_what_the_commands_say() -> None:
    declared = set[str]().union(*(refusals(name) for name in NAMES))

    assert set(first_cells(read(PROTOCOL), "Refusals")) == declared


def test_keys_and_fields_are_documented_with_their_types(broker: Broker) -> None:
    queue = broker.declare_queue("q", max_length=3, max_ttl="1h", max_deliveries=2, dead_letter_expired="dead")
    queue.enqueue_many([b"x"] * 5)
    for settle in ("ack", "nack", "reject"):
        getattr(queue.receive(wait="1s"), settle)()
    queue.nack_many(queue.receive_many(1), delay="1h")
    queue.receive(lease="1h")
    queue.enqueue(b"x", ttl="1h")
    queue.enqueue(b"x", ttl=0)
    parts, fields = first_cells(read(PROTOCOL), "Keys"), first_cells(read(PROTOCOL), "Fields of `meta`")

    client = redis_of(broker)
    found = {key.decode().rpartition(":")[2]: client.type(key).decode() for key in client.keys("rqttl:{*")}  # type: ignore[union-attr]  # redis-py's types cover its asyncio twin too
    assert {part: parts[part] for part in found} == found
    written: Any = [*client.hgetall("rqttl:{q}:meta"), *client.hgetall("rqttl:{dead}:meta")]
    assert {name.decode().partition(":")[0] for name in written} <= {name.partition(":")[0] for name in fields}


def test_the_packed_headers_shown_are_read_as_they_say() -> None:
    examples = re.findall(r"^(b'.*') +(\w+=.*)$", "".join(blocks(PROTOCOL, "text")), re.MULTILINE)

    assert examples
    for packed, said in examples:
        unpacked = codec.unpack_header(ast.literal_eval(packed))
        facts = {
            **{name: getattr(unpacked, name) for name in ("deadline", "id", "content_type", "headers")},
            "deaths": len(unpacked.deaths),
        }
        expected = dict(pair.split("=", 1) for pair in said.split(", "))
        assert {name: str(facts[name]) for name in expected} == expected


if __name__ == "__main__":
    rewrite()
