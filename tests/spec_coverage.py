"""Rows of the behaviour specification: shown by a test, different on purpose, or open.

`python -m tests.spec_coverage` (`make coverage-of-spec`) prints a line for each row of `spec_rows.txt`, and the totals.
Tests are not run: their `@pytest.mark.spec("TTL-15", …)` marks are read from the source.
"""

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROWS = TESTS / "spec_rows.txt"


@dataclass(frozen=True)
class Row:
    """One row: what it is about, and why rqttl does otherwise (empty: it must be shown by a test)."""

    id: str
    title: str
    reason: str


def read_rows(text: str) -> list[Row]:
    """The rows of the data file, in order."""
    rows = []
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            id, title, reason = [*line.split(" | ", 2), ""][:3]
            rows.append(Row(id, title, reason))
    return rows


def marks(source: str, module: str) -> Iterator[tuple[str, str]]:
    """Each row id that a test of this module is marked with, and the name of the test."""
    for node in ast.parse(source).body:
        if not isinstance(node, ast.FunctionDef):
            continue
        for mark in node.decorator_list:
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.spec":
                for argument in mark.args:
                    yield ast.literal_eval(argument), f"{module}::{node.name}"


def read_marks(folder: Path = TESTS) -> dict[str, list[str]]:
    """The tests of each row id, by id."""
    found: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("test_*.py")):
        for id, test in marks(path.read_text(encoding="utf-8"), path.relative_to(folder).as_posix()):
            found.setdefault(id, []).append(test)
    return found


def status(row: Row, tests: Mapping[str, Sequence[str]]) -> str:
    """`covered`, `different` or `open`."""
    if row.reason:
        return "different"
    return "covered" if row.id in tests else "open"


def report(rows: Sequence[Row], tests: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the report as text."""
    lines = []
    for row in rows:
        told = [row.reason] if row.reason else []
        names = tests.get(row.id, [])
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            told.append(names[0] + more)
        lines.append(f"{row.id:<7} {status(row, tests):<9}  {row.title}: {' -- '.join(told) or 'no test'}")
    counts = {word: sum(status(row, tests) == word for row in rows) for word in ("covered", "different", "open")}
    shown = sum(bool(row.reason) and row.id in tests for row in rows)
    different = f"{counts['different']} different ({shown} of them shown by a test)"
    return [*lines, f"{len(rows)} rows: {counts['covered']} covered, {different}, {counts['open']} open"]


def main() -> int:
    rows, tests = read_rows(ROWS.read_text(encoding="utf-8")), read_marks()
    sys.stdout.write("\n".join(report(rows, tests)) + "\n")
    return 1 if any(status(row, tests) == "open" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
