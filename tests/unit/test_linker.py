"""The linker: where it finds fragments, and from a header to the linked text and its `Script`."""

import dataclasses
import os
import re
import signal
import threading
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from rqttl.errors import ContractError
from rqttl.protocol import scripts
from rqttl.protocol.contract import IncompleteReply, Refused, Script
from tests.repository import lua_files
from tests.unit.test_scripts import forget
from tests.waiting import PATIENCE


@pytest.fixture
def lua(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder of scripts."""
    (tmp_path / "commands").mkdir()
    (tmp_path / "plain").mkdir()
    (tmp_path / "lib" / "base").mkdir(parents=True)
    monkeypatch.setattr(scripts, "_root", lambda: tmp_path)
    forget()
    yield tmp_path
    forget()


def write(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        kind, _, stem = name.partition("_")
        (folder / kind.replace("lib", "lib/base") / f"{stem}.lua").write_text(text, encoding="utf-8")


HEADER = "--- Go.\n-- @keys meta\n-- @args one\n"
USES = "--- A.\n-- @use {}\n"


def test_a_plain_case_stands_before_all_functions_and_names_positions(lua: Path) -> None:
    write(
        lua,
        commands_go="--- Go.\n--\n-- @keys meta log\n-- @args one rest...\n\nreturn q.log\n",
        plain_go="--- Plain.\n\nlocal n, i = rest.size, 1 -- a comment\n"
        "return redis.call(arg.one, key.log, rest[2], rest[i + 1], rest.from(3))\n",
    )

    assert scripts.load("go").text.splitlines()[1:6] == [
        "do",
        "local call = redis.call",
        "local n, i = (#ARGV - 1), 1",
        "return call(ARGV[1], KEYS[2], ARGV[3], ARGV[1 + i + 1], unpack(ARGV, 4))",
        "end",
    ]


@pytest.mark.parametrize(
    "texts, told",
    [
        ({"commands_go": HEADER, "plain_go": "return key.log\n"}, r"plain/go: its command has no key\.log"),
        ({"commands_go": HEADER.replace("one", "one-two")}, "lua: go: 'one-two' in its header is not a name"),
        ({"commands_go": HEADER + "-- @reply one-two\n"}, "lua: go: 'one-two' in its header is not a name"),
        ({"commands_go": HEADER.replace("one", "now version")}, "go: version must be the first arguments"),
        ({"commands_go": HEADER + "-- @use a\n", "lib_a": USES.format("b"), "lib_b": USES.format("a")}, "a > b > a"),
    ],
    ids=["plain case", "argument", "value", "order", "circle"],
)
def test_a_script_that_cannot_be_linked_is_a_bug_and_named(lua: Path, texts: dict[str, str], told: str) -> None:
    write(lua, **texts)

    with pytest.raises(ContractError, match=told):
        scripts.load("go")


@pytest.mark.parametrize("values,kind", [([], IncompleteReply), ([1], IncompleteReply), ([1, 2, 3], ContractError)])
def test_a_reply_with_another_number_of_values_than_its_header_is_a_bug(
    lua: Path, values: list[int], kind: type[Exception]
) -> None:
    write(lua, commands_go="--- Go.\n-- @keys\n-- @args\n-- @reply one two\n\nreturn 1\n")

    with pytest.raises(kind, match=r"script go: \d values in its reply, expected one, two") as raised:
        scripts.load("go").read([b"ok", b"", *values])
    assert type(raised.value) is kind


def test_a_refusal_has_its_code_and_facts(lua: Path) -> None:
    write(lua, commands_go="--- Go.\n-- @keys\n-- @args\n-- @reply one\n-- @refuse no: a number\n\nreturn 1\n")

    script = scripts.load("go")

    assert script.refusals == ("no",)
    assert script.read([b"refused", b"no", 5, b"x"]) == Refused("no", (5, b"x"))


LOOP = "for state in each('states') do\n  n = n + redis.call('ZCARD', q[state.part]) * state.per_ms\nend\n"


@pytest.mark.parametrize(
    "change,error",
    [
        (("'states'", "'nobody'"), "each: expected one of states, .*, got nobody"),
        (("state.per_ms", "state.nobody"), "each: leases has no field nobody"),
        (("state.per_ms", "state"), "each: leases has no field state"),
        (("end\n", "  break\nend\n"), "each: a loop that is written out has no break"),
        (("for state", "for _, state"), "each: expected a loop with `do` at the end of its line, or a list"),
    ],
)
def test_a_loop_that_cannot_be_written_out_is_a_bug(lua: Path, change: tuple[str, str], error: str) -> None:
    write(lua, commands_go=f"--- Go.\n-- @keys\n-- @args\n\n{LOOP.replace(*change)}return 1\n")

    with pytest.raises(ContractError, match=f"lua: go: {error}"):
        scripts.load("go")


def test_a_command_whose_linking_was_interrupted_is_linked_whole_the_next_time(
    lua: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(lua, commands_go="--- Go.\n-- @keys meta\n-- @args one rest...\n\nreturn 1\n")

    def interrupted(*_: object) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(scripts, "_join", interrupted)
        with pytest.raises(KeyboardInterrupt):
            scripts.load("go")
    after = scripts.load("go")
    forget()

    assert dataclasses.astuple(after) == dataclasses.astuple(scripts.load("go"))
    assert (after.keys, after.args, after.has_rest) == (("meta",), ("one",), True)


@pytest.mark.parametrize("missing", ["command", "fragment"])
def test_a_missing_command_or_fragment_is_named(lua: Path, missing: str) -> None:
    write(lua, commands_go="--- Go.\n-- @use nobody\n-- @keys\n-- @args\n\nreturn 1\n")

    with pytest.raises(FileNotFoundError, match=r"nobody\.lua"):
        scripts.load("nobody" if missing == "command" else "go")


def test_a_child_that_was_forked_while_another_thread_linked_can_link(monkeypatch: pytest.MonkeyPatch) -> None:
    linking, done, parent, link = threading.Event(), threading.Event(), os.getpid(), scripts._link

    def held(name: str) -> Script:
        if os.getpid() == parent:
            linking.set()
            assert done.wait(PATIENCE)
        return link(name)

    monkeypatch.setattr(scripts, "_link", held)
    forget()
    thread = threading.Thread(target=scripts.load, args=["ack"])
    thread.start()
    assert linking.wait(PATIENCE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the child of a process with threads
        child = os.fork()
    if child == 0:
        signal.alarm(int(PATIENCE))  # instead of a hang
        os._exit(scripts.load("sweep").name != "sweep")
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_two_fragments_of_one_name_are_a_bug(lua: Path) -> None:
    (lua / "lib" / "log").mkdir()
    (lua / "lib" / "log" / "a.lua").write_text("--- A.\nlocal a = {}\n", encoding="utf-8")
    write(lua, lib_a="--- A.\nlocal a = {}\n", commands_go="--- Go.\n-- @use a\n-- @keys\n-- @args\n\nreturn 1\n")

    with pytest.raises(ContractError, match="two fragments are named a"):
        scripts.load("go")


def top_level_locals(text: str) -> Iterator[tuple[str, str]]:
    """The local names at the top level of a fragment, each with the assignment that defines it."""
    for line in re.findall(r"^local .*$", re.sub(r"[ \t]*--.*", "", text), re.MULTILINE):
        if function := re.match(r"local function (\w+)", line):
            yield function[1], line
            continue
        names, _, _ = line.removeprefix("local ").partition("=")
        yield from ((name.strip(), line) for name in names.split(","))


def clashes(fragments: Mapping[str, str]) -> dict[str, set[str]]:
    """The names that fragments define differently, with their definitions. A linked text is one scope for all of them.

    The linker defines some names itself: for these each definition of a fragment is a clash.
    """
    definitions: dict[str, set[str]] = {name: {f"local {name}"} for name in ("q", "arg", "call", "built", "lazy")}
    for fragment, text in fragments.items():
        for name, line in top_level_locals(text):
            own = f"{line} in {fragment}" if line.startswith("local function") else line
            definitions.setdefault(name, set()).add(own)
    return {name: lines for name, lines in definitions.items() if len(lines) > 1}


def test_fragments_do_not_give_one_name_different_values() -> None:
    fragments = {path.stem: path.read_text(encoding="utf-8") for path in lua_files("lib")}

    assert clashes(fragments) == {}
    assert {"DIGITS", "LAST", "dedup", "unread"} <= {
        name for text in fragments.values() for name, _ in top_level_locals(text)
    }
