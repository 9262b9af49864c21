"""Names are nouns and verbs of their subject, and docstrings begin with a noun or a verb."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.test_docstrings import docstrings
from tests.unit.test_size import name_of, python_files

#: Folders whose names and docstrings follow the rules.
FOLDERS = (
    "rqttl/cli", "rqttl/consuming", "rqttl/demo", "rqttl/inspector", "rqttl/reaper", "rqttl/runtime", "rqttl/testing",
)  # fmt: skip
#: Words that fit any variable, and so say nothing about one.
FILLERS = re.compile(
    "_*(?:found|one|said|told|some|wanted|given|shown|meant|chosen|there|here|way|rest|facts|what|who)"
)
#: Old names of functions and classes, which other names have replaced.
DROPPED = re.compile(
    "_*(?:Wanted|Chosen|choose|described|tell_dry|note_rest|in_steps|Stopping|Ending|Stop|Stopped|held|Look|together|"
    "Setting|tell|observe|visible|fitted|folded|chopped|moment|Misread|Filed|Printed|read_duration|read_instant)"
)
VAGUE = re.compile(r"(?:What|Whether|How|Those|Where|Which|Who|One|Whatever)\b")


def names(path: Path) -> Iterator[tuple[str, int, bool]]:
    """The names that a module gives, with their lines; True for functions and classes, False for variables."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr, node.lineno, False
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno, False
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name, node.lineno, True


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_name_is_a_filler_or_was_dropped(folder: str) -> None:
    assert [
        f"{name_of(path)}:{line}: {name}"
        for path in python_files(folder)
        for name, line, defined in names(path)
        if FILLERS.fullmatch(name) or (defined and DROPPED.fullmatch(name))
    ] == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_docstring_begins_with_a_relative_clause(folder: str) -> None:
    assert [
        f"{name_of(path)}: {name}: {text.splitlines()[0]}"
        for path in python_files(folder)
        for name, text in docstrings(path)
        if VAGUE.match(text)
    ] == []
