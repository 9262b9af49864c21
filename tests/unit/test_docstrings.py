"""Docstrings name no rows of the behaviour specification."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.test_size import ROOT

#: An id of a row of the behaviour specification, such as QTL-05. Rows are the business of tests: `pytest.mark.spec`.
ROW = re.compile(r"\b(?:A|C|CYC|DEC|DH|DLX|LEN|OPP|POL|QTL|S|TTL|WA|WS)-\d{2,3}\b|\bW\d{1,2}\b")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)


def docstrings(path: Path) -> Iterator[tuple[str, str]]:
    """The docstrings of a module, its classes and functions, by name."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)):
            yield getattr(node, "name", path.stem), text


@pytest.mark.parametrize("package", ["rqttl", "spark_connectors"])
def test_no_docstring_names_a_row_of_the_specification(package: str) -> None:
    found = [
        (path.relative_to(ROOT).as_posix(), name, marks)
        for path in sorted((ROOT / package).rglob("*.py"))
        for name, text in docstrings(path)
        if (marks := ROW.findall(text))
    ]

    assert found == []


def test_every_kind_of_row_is_looked_for() -> None:
    rows = (ROOT / "tests" / "spec_rows.txt").read_text(encoding="utf-8").splitlines()
    ids = [line.split(" | ")[0] for line in rows if line.strip() and not line.startswith("#")]

    assert [id for id in ids if not ROW.fullmatch(id.rstrip("abcde"))] == []
