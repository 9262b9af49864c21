"""What holds for every committed file: the table of volume, no paths of one machine, no work left behind."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.repository import ROOT, lua_files, name_of

#: folder -> lines, by `wc -l` over tracked files; Markdown in words. A number falls with the folder. It rises only for
#: a new capability, by what that needs, and the commit says why.
VOLUME = {
    "rqttl": 35_800,
    "spark_connectors": 7_700,
    "lua": 3_800,
    "tests": 76_200,
    "*.md": 28_000,
}


@pytest.fixture(scope="module")
def committed() -> dict[str, str]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode:
        pytest.skip("not a git checkout")
    paths = [ROOT / name for name in listing.stdout.split("\0") if name]
    return {name_of(path): path.read_text(encoding="utf-8") for path in paths if path.is_file()}


def test_no_folder_is_larger_than_the_table_of_volume_says(committed: dict[str, str]) -> None:
    volume = dict.fromkeys(VOLUME, 0)
    for name, text in committed.items():
        if name.endswith(".md"):
            volume["*.md"] += len(text.split())
        elif (folder := name.partition("/")[0]) in volume:
            volume[folder] += text.count("\n")

    assert {part: size for part, size in volume.items() if size > VOLUME[part]} == {}


def test_no_committed_file_names_a_folder_of_one_machine(committed: dict[str, str]) -> None:
    one_machine = re.compile(r"(?<![\w.~-])/(?:home|root|work|Users)/")

    assert [name for name, text in committed.items() if one_machine.search(text)] == []


def test_no_committed_file_leaves_work_behind(committed: dict[str, str]) -> None:
    marker = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")

    assert [name for name, text in committed.items() if marker.search(text)] == []


def test_lua_never_names_keys_and_arguments_by_position() -> None:
    by_position = re.compile(r"\b(?:KEYS|ARGV)\s*\[")

    assert [name_of(f) for f in lua_files("") if by_position.search(f.read_text(encoding="utf-8"))] == []
