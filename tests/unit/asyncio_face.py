"""The generated text of asyncio: methods that differ from those of the sync classes only by `await`, and their imports.

A method that a class has outside of its marks is typed by hand, and is not written.
"""

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import pairwise

from rqttl import _RENAMED as RENAMED
from rqttl import _TWINS as TWINS
from tests.repository import ROOT
from tests.unit.reference import between

FACE = "rqttl/aio/broker.py"
#: The marks of classes, with the file and the class that have the methods.
SOURCES = {
    "queue": ("rqttl/queue.py", "Queue"),
    "topic": ("rqttl/topic.py", "Topic"),
    "broker": ("rqttl/broker.py", "Broker"),
}
ASYNC = {name: f"Async{name}" for name in (*TWINS, "Driver")}
#: What is awaited, beside asynchronous methods of the class itself.
AWAITED = {"driver.perform", "self._driver.perform", "self._fast.perform"}
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
IMPORTS = ast.Import | ast.ImportFrom

#: An edit: line, column, length, and the text in this place.
Edit = tuple[int, int, int, str]


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def ruff(text: str, *command: str) -> str:
    words = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(ROOT / FACE), "-"]
    return subprocess.run(words, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout


def class_of(text: str, name: str) -> ast.ClassDef:
    [found] = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef) and node.name == name]
    return found


def calls(method: ast.AST, awaited: set[str]) -> list[ast.Call]:
    """The calls of a method that are to be awaited."""
    found = [node for node in ast.walk(method) if isinstance(node, ast.Call)]
    return [call for call in found if ast.unparse(call.func) in awaited]


def edits(method: ast.FunctionDef, awaited: set[str]) -> Iterator[Edit]:
    """What makes a sync method asynchronous."""
    found = calls(method, awaited)
    if found:
        yield method.lineno, method.col_offset, 0, "async "
    inner = [node.value for node in ast.walk(method) if isinstance(node, ast.Attribute | ast.Subscript)]
    for call in found:
        opens, closes = ("(", ")") if call in inner else ("", "")
        yield call.lineno, call.col_offset, 0, f"{opens}await "
        yield call.end_lineno or 0, call.end_col_offset or 0, 0, closes
    for node in ast.walk(method):
        if isinstance(node, ast.Name) and node.id in ASYNC:
            yield node.lineno, node.col_offset, len(node.id), ASYNC[node.id]


def asynchronous(method: ast.FunctionDef, lines: list[str], awaited: set[str]) -> list[str]:
    """The lines of a method, with `await` and without its docstring."""
    lines = lines.copy()
    for line, column, length, text in sorted(edits(method, awaited), key=lambda edit: edit[:2], reverse=True):
        old = lines[line - 1].encode()  # columns of `ast` count bytes
        lines[line - 1] = (old[:column] + text.encode() + old[column + length :]).decode()
    first = min([method.lineno, *(one.lineno for one in method.decorator_list)])
    body = method.body[ast.get_docstring(method) is not None]
    return [*lines[first - 1 : method.body[0].lineno - 1], *lines[body.lineno - 1 : method.end_lineno], ""]


def methods(source: str, name: str, twin: ast.ClassDef) -> str:
    """The methods of a class that `twin` has not by hand, under the headings of their sections."""
    lines, members = source.splitlines(), class_of(source, name).body
    by_hand = {RENAMED.get(one.name, one.name) for one in twin.body if isinstance(one, FUNCTIONS)}
    made = [one for one in members if isinstance(one, ast.FunctionDef) and one.name not in by_hand]
    awaited = AWAITED | {f"self.{one.name}" for one in twin.body if isinstance(one, ast.AsyncFunctionDef)}
    while more := {f"self.{one.name}" for one in made if calls(one, awaited)} - awaited:
        awaited |= more
    text: list[str] = []
    heading: list[str] = []
    for before, one in pairwise(members):  # the first member is the docstring
        heading = [line for line in lines[before.end_lineno : one.lineno - 1] if line.startswith("    # ")] or heading
        if one in made:
            text += [*heading, ""] * bool(heading) + asynchronous(one, lines, awaited)
            heading = []
    return "\n".join(text)


def imports(text: str) -> str:
    """The imports of the sync files that a text needs and has not got."""
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    has = {alias.asname or alias.name for node in nodes if isinstance(node, IMPORTS) for alias in node.names}
    has |= {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    needed = {node.id for node in nodes if isinstance(node, ast.Name)} - has | {"TYPE_CHECKING"}
    early: list[str] = []
    late = ["if TYPE_CHECKING:"]
    for source, _ in SOURCES.values():
        for node in ast.walk(ast.parse(read(source))):
            if isinstance(node, IMPORTS):
                node.names = [alias for alias in node.names if (alias.asname or alias.name) in needed]
                if node.names:
                    (late if node.col_offset else early).append(" " * node.col_offset + ast.unparse(node))
    return ruff("\n".join([*early, *late, ""]), "check", "--quiet", "--select", "I", "--fix")


@cache
def written() -> str:
    """The file with all its generated text anew."""
    by_hand = read(FACE)
    for mark in (*SOURCES, "imports"):
        by_hand = between(mark).sub("", by_hand)
    text = by_hand
    for mark, (source, name) in SOURCES.items():
        made = methods(read(source), name, class_of(by_hand, ASYNC[name]))
        text = between(mark).sub(lambda _, made=made: made, text)  # type: ignore[misc]  # bound at once
    return ruff(between("imports").sub(lambda _: imports(text), text), "format")


def part(mark: str) -> str:
    [found] = between(mark).findall(written())
    return str(found).removesuffix("\n")


TABLES: dict[tuple[str, str], Callable[[], str]] = {(FACE, mark): partial(part, mark) for mark in (*SOURCES, "imports")}
