"""What holds for every committed file: volume, no paths of one machine, rows of the specification, mutants, CI."""

import re
import subprocess

import pytest

from tests.model.mutants import MODEL, MUTANTS
from tests.repository import ROOT, lua_files, name_of
from tests.spec_coverage import ROWS, read_marks, read_rows, status

#: folder -> lines, by `wc -l` over tracked files; Markdown in words. A number falls with the folder. It rises only for
#: a new capability, by what that needs, and the commit says why.
VOLUME = {"rqttl": 41_045, "spark_connectors": 7_976, "lua": 5_531, "tests": 76_132, "*.md": 39_619}


@pytest.fixture(scope="module")
def committed() -> dict[str, str]:
    listing = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    paths = [ROOT / name for name in listing.stdout.split("\0") if name]
    texts = [path for path in paths if path.is_file() and path.suffix != ".png"]
    return {name_of(path): path.read_text(encoding="utf-8") for path in texts}


def test_no_folder_is_larger_than_the_table_of_volume_says(committed: dict[str, str]) -> None:
    volume = dict.fromkeys(VOLUME, 0)
    for name, text in committed.items():
        if name.endswith(".md"):
            volume["*.md"] += len(text.split())
        elif (folder := name.partition("/")[0]) in volume:
            volume[folder] += text.count("\n")

    assert [f"{part}: {n}, VOLUME allows {VOLUME[part]}" for part, n in volume.items() if n > VOLUME[part]] == []


def test_no_committed_file_names_a_folder_of_one_machine(committed: dict[str, str]) -> None:
    one_machine = re.compile(r"(?<![\w.~-])/(?:home|root|work|Users)/")

    assert [name for name, text in committed.items() if one_machine.search(text)] == []


def test_no_committed_file_leaves_work_behind(committed: dict[str, str]) -> None:
    marker = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")

    assert [name for name, text in committed.items() if marker.search(text)] == []


def test_lua_never_names_keys_and_arguments_by_position() -> None:
    by_position = re.compile(r"\b(?:KEYS|ARGV)\s*\[")

    assert [name_of(f) for f in lua_files("") if by_position.search(f.read_text(encoding="utf-8"))] == []


def test_a_mutant_changes_exactly_one_place_of_the_source_and_its_test_exists() -> None:
    names = [mutant.test.split("::") for mutant in MUTANTS if mutant.test != MODEL]

    assert [mutant.name for mutant in MUTANTS if len(mutant.places(ROOT)) != 1 or mutant.new == mutant.old] == []
    assert [name for path, name in names if f"def {name}(" not in (ROOT / path).read_text(encoding="utf-8")] == []


def test_every_row_has_an_id_of_its_own_and_a_title_and_every_mark_names_a_row_and_none_is_open() -> None:
    rows, tests = read_rows(ROWS.read_text(encoding="utf-8")), read_marks()
    ids = [row.id for row in rows]

    assert len(set(ids)) == len(ids)
    assert [row.id for row in rows if not re.fullmatch(r"[A-Z]+-\d{2,3}[a-e]?|W\d+", row.id)] == []
    assert [row.id for row in rows if not row.title or status(row, tests) == "open"] == []
    assert sorted(set(tests) - set(ids)) == []
