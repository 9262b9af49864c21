"""Fragments of scripts: where the linker finds them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rqttl.errors import ContractError
from rqttl.protocol import scripts
from tests.unit.test_scripts import forget
from tests.unit.test_size import ROOT, lua_files

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


def test_every_fragment_lies_in_a_folder_of_its_subject() -> None:
    assert {path.parent.parent for path in lua_files("lib")} == {ROOT / "lua" / "lib"}
