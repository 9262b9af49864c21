"""The size budget: a file, a function or a script that outgrows it is split, or named here with its reason."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

FILE_LINES = 350
FUNCTION_LINES = 40
COMMAND_LINES = 60
PLAIN_LINES = 100
FRAGMENT_LINES = 140
FRAGMENT_FUNCTION_LINES = 25
FOLDER_MODULES = 15

#: What may be longer, one line each, with the reason: "path" or "path:function" -> reason.
EXCEPTIONS: dict[str, str] = {}

PACKAGES = ("rqttl", "spark_connectors")


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def lua_files(kind: str) -> list[Path]:
    return sorted((ROOT / "lua" / kind).rglob("*.lua"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def without_header(text: str) -> list[str]:
    """The lines of a script from the first one that is neither a comment nor empty."""
    lines = text.splitlines()
    first = next((i for i, line in enumerate(lines) if line.strip() and not line.startswith("--")), len(lines))
    return lines[first:]


def python_functions(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def lua_functions(path: Path) -> Iterator[tuple[str, int]]:
    text = path.read_text(encoding="utf-8")
    for found in re.finditer(r"^(?:local )?function ([\w.]+)\(.*?^end$", text, re.MULTILINE | re.DOTALL):
        yield found[1], found[0].count("\n") + 1


def too_long(sizes: Iterator[tuple[str, int]], limit: int) -> list[str]:
    return [f"{name}: {size} lines, {limit} allowed" for name, size in sizes if size > limit and name not in EXCEPTIONS]


def test_no_python_file_outgrows_its_budget() -> None:
    files = python_files(*PACKAGES, "tests")

    assert too_long(((name_of(f), len(f.read_text(encoding="utf-8").splitlines())) for f in files), FILE_LINES) == []


def test_no_folder_outgrows_its_budget() -> None:
    folders = Counter(name_of(f.parent) for f in python_files("spark_connectors", "rqttl/cli") if f.name[0] != "_")

    assert too_long(iter(folders.items()), FOLDER_MODULES) == []


def test_no_python_function_outgrows_its_budget() -> None:
    sizes = ((f"{name_of(f)}:{name}", size) for f in python_files(*PACKAGES) for name, size in python_functions(f))

    assert too_long(sizes, FUNCTION_LINES) == []


def test_no_lua_command_outgrows_its_budget_after_its_header() -> None:
    sizes = ((name_of(f), len(without_header(f.read_text(encoding="utf-8")))) for f in lua_files("commands"))

    assert too_long(sizes, COMMAND_LINES) == []


def test_no_plain_case_outgrows_its_budget_after_its_header() -> None:
    sizes = ((name_of(f), len(without_header(f.read_text(encoding="utf-8")))) for f in lua_files("plain"))

    assert too_long(sizes, PLAIN_LINES) == []


def test_no_lua_fragment_outgrows_its_budget() -> None:
    sizes = ((name_of(f), len(f.read_text(encoding="utf-8").splitlines())) for f in lua_files("lib"))

    assert too_long(sizes, FRAGMENT_LINES) == []


def test_no_function_of_a_lua_fragment_outgrows_its_budget() -> None:
    sizes = ((f"{name_of(f)}:{name}", size) for f in lua_files("lib") for name, size in lua_functions(f))

    assert too_long(sizes, FRAGMENT_FUNCTION_LINES) == []


def test_every_exception_is_still_needed_and_exists() -> None:
    assert [name for name in EXCEPTIONS if not (ROOT / name.partition(":")[0]).is_file()] == []


def test_lua_never_names_keys_and_arguments_by_position() -> None:
    by_position = re.compile(r"\b(?:KEYS|ARGV)\s*\[")

    assert [name_of(f) for f in lua_files("") if by_position.search(f.read_text(encoding="utf-8"))] == []


@pytest.fixture(scope="module")
def committed_texts() -> dict[str, str]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode:
        pytest.skip("not a git checkout")
    paths = [ROOT / name for name in listing.stdout.split("\0") if name]
    return {name_of(path): path.read_text(encoding="utf-8") for path in paths if path.is_file()}


def test_no_committed_file_names_a_folder_of_one_machine(committed_texts: dict[str, str]) -> None:
    one_machine = re.compile(r"(?<![\w.~-])/(?:home|root|work|Users)/")

    assert [name for name, text in committed_texts.items() if one_machine.search(text)] == []


def test_no_committed_file_leaves_work_behind(committed_texts: dict[str, str]) -> None:
    marker = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")

    assert [name for name, text in committed_texts.items() if marker.search(text)] == []
