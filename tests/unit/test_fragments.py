"""Fragments of scripts: where the linker finds them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from rqttl.errors import ContractError
from rqttl.protocol import scripts
from tests.repository import ROOT, lua_files
from tests.unit.test_scripts import forget

COMMAND = "--- Go.\n-- @use a\n-- @keys\n-- @args\n\nreturn a.one()\n"
FRAGMENT = "--- A.\nlocal a = {}\nfunction a.one()\n  return 1\nend\n"


@pytest.fixture
def lua(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of scripts with one command, which calls the fragment `a`."""
    for folder in ("commands", "lib/base", "lib/log"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "commands" / "go.lua").write_text(COMMAND, encoding="utf-8")
    monkeypatch.setattr(scripts, "_root", lambda: tmp_path)
    forget()
    yield tmp_path
    forget()


@pytest.mark.parametrize("folder", ["base", "log"])
def test_the_linker_finds_a_fragment_in_any_folder(lua: Path, folder: str) -> None:
    (lua / "lib" / folder / "a.lua").write_text(FRAGMENT, encoding="utf-8")

    assert "function a_one()" in scripts.load("go").text


def test_two_fragments_of_one_name_are_a_bug(lua: Path) -> None:
    for folder in ("base", "log"):
        (lua / "lib" / folder / "a.lua").write_text(FRAGMENT, encoding="utf-8")

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


@pytest.mark.parametrize(
    "first,second,names",
    [
        ("local MOST = 5\n", "local MOST = 5 -- the same\n", set()),
        ("local MOST = 5\n", "local MOST = 6\n", {"MOST"}),
        ("local FEW, MOST = 1, 5\n", "local MOST = 5\n", {"MOST"}),
        ("local left = 5\n", "local left = 6\n", {"left"}),
        ("local LIMIT2 = 5\n", "local LIMIT2 = 6\n", {"LIMIT2"}),
        ("local left\n", "local left = 6\n", {"left"}),
        ("local function help()\n", "local function help()\n", {"help"}),
        ("local b = {}\n", "local b = 1\n", {"b"}),
        ("function a.one()\n  local most = 1\nend\n", "function b.one()\n  local most = 2\nend\n", set()),
        ("local call = 1\n", "", {"call"}),
    ],
)
def test_a_name_that_two_fragments_define_differently_is_a_clash(first: str, second: str, names: set[str]) -> None:
    assert set(clashes({"a": first, "b": second})) == names


def test_every_fragment_lies_in_a_folder_of_its_subject() -> None:
    assert {path.parent.parent for path in lua_files("lib")} == {ROOT / "lua" / "lib"}
