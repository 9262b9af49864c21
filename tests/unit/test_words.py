"""Names are nouns and verbs of their subject, docstrings begin with a noun or a verb, documents have no old words."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from tests.unit.test_docs import DOCUMENTS
from tests.unit.test_docstrings import docstrings
from tests.unit.test_size import ROOT, lua_files, name_of, python_files

PACKAGES = ("rqttl", "spark_connectors")
#: Words that fit any variable, and so say nothing about one.
FILLERS = re.compile(
    "_*(?:found|one|said|told|heard|things?|some|wanted|given|shown|meant|chosen|there|here|way|rest|facts|what|who)",
    re.IGNORECASE,
)
#: Old names of functions and classes, which other names have replaced.
DROPPED = re.compile(
    "_*(?:Wanted|Chosen|choose|tell_dry|note_rest|in_steps|Stopping|Ending|Stop|Stopped|Look|together|Setting|tell|"
    "observe|visible|fitted|folded|chopped|Misread|Filed|Printed|read_duration|read_instant|Peeked|Redriven|Swept|"
    "redrive_these|purge_these|Stock|Facts|mend|mended|take_out|strike|Known|Enter|Follow|Together|Claimed|Unpacked|"
    "pack_said|said_id|fenced|run_plain|Hints|NotOnFake|EndlessWait|Companion|take_along|leave_behind|Wire|Odd|Wish|"
    "Pump|Piece|Found|ShareOut|Walker|hungry|keep_gc_quiet|Alarm|Watcher|Follower)"
)
#: Old names of keys, fields, refusals and notes in Redis.
DROPPED_KEYS = re.compile(
    "loose|returned|bell|waiting|seen|named|windows|gone|given|plain|born|used|active|last|grants|attended|"
    "lapsed|again|sweep_lag"
)
#: Words that no document has: old words for things, and subjects without a noun.
DROPPED_WORDS = re.compile(r"(?i)\b(?:bells?|loose|handovers?|hand-overs?|whoever|whatever|somebody)\b")
#: The first name in code marks.
CODE = re.compile(r"`(\w+)(?:\(…?\))?`")
VAGUE = re.compile(r"(?:That|What|Whatever|Whether|How|Those|Where|Which|Who|Whoever|One (?:who|that|which))\b")


def shared_names(path: Path) -> Iterator[tuple[str, int]]:
    """Names that other code can see: functions, classes, their attributes, module-level names, public parameters."""
    yield from _shared(ast.parse(path.read_text(encoding="utf-8")))


def definitions(path: Path) -> Iterator[tuple[str, int]]:
    """The functions and classes of a module, with their lines."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno


def _shared(scope: ast.AST, *, local: bool = False) -> Iterator[tuple[str, int]]:
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if not local:
                yield node.name, node.lineno
                yield from _parameters(node)
            yield from _shared(node, local=True)
            continue
        if isinstance(node, ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and not local:
            yield node.id, node.lineno
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp | ast.Lambda):
            continue
        yield from _shared(node, local=local)


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[str, int]]:
    if not function.name.startswith("_") or function.name == "__init__":
        arguments = function.args
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            yield argument.arg, argument.lineno


def all_names(path: Path) -> Iterator[tuple[str, int]]:
    """All names that a module gives, local ones too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name, node.lineno


def banned(folder: str, names: Callable[[Path], Iterable[tuple[str, int]]], words: re.Pattern[str]) -> list[str]:
    """Names in the modules of a folder that a pattern bans, with their places."""
    return [
        f"{name_of(path)}:{line}: {name}"
        for path in python_files(folder)
        for name, line in names(path)
        if words.fullmatch(name)
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_no_name_that_other_code_sees_is_a_filler(package: str) -> None:
    assert banned(package, shared_names, FILLERS) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_function_or_class_has_a_dropped_name(package: str) -> None:
    assert banned(package, definitions, DROPPED) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_local_name_is_a_filler(package: str) -> None:
    assert banned(package, all_names, FILLERS) == []


def lua_names(text: str) -> Iterator[str]:
    """The local names, the parameters and the loop variables of a script, and the fields that it gives to tables."""
    code = re.sub(r"--.*", "", text)
    for names in re.findall(
        r"\blocal (?!function)([\w, ]+)|\bfunction [\w.]*\(([\w, .]*)\)|\bfor ([\w, ]+?) in\b", code
    ):
        yield from re.findall(r"\w+", " ".join(names))
    for pair in re.findall(r"\.(\w+) = |[{,]\s*(\w+) = ", code):
        yield from filter(None, pair)


@pytest.mark.parametrize("kind", ["commands", "lib"])
def test_no_name_in_a_script_is_a_filler(kind: str) -> None:
    assert [
        f"{path.stem}: {name}"
        for path in lua_files(kind)
        for name in lua_names(path.read_text(encoding="utf-8"))
        if FILLERS.fullmatch(name)
    ] == []


@pytest.mark.parametrize("package", [*PACKAGES, "tests"])
def test_no_docstring_begins_with_a_relative_clause(package: str) -> None:
    assert [
        f"{name_of(path)}: {name}: {text.splitlines()[0]}"
        for path in python_files(package)
        for name, text in docstrings(path)
        if VAGUE.match(text)
    ] == []


def test_the_subject_of_a_test_name_is_a_noun() -> None:
    clause = r"test_(?:what|whether|how|those|where|which|who|one_(?:who|that))_.*"
    pronoun = r"test_(?:.*_)?(?:bell|whatever|whoever|somebody)(?:_.*)?"

    assert banned("tests", definitions, re.compile(f"{clause}|{pronoun}")) == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_no_document_has_a_dropped_word_or_a_subject_without_a_noun(document: str) -> None:
    assert dropped_words((ROOT / document).read_text(encoding="utf-8"), history=document == "CHANGELOG.md") == []


def dropped_words(text: str, *, history: bool = False) -> list[str]:
    """Words of a document that others have replaced. A `history` may name old names of Python as code."""
    words = DROPPED_WORDS.findall(text)
    return words if history else words + [code for code in CODE.findall(text) if is_dropped(code)]


def is_dropped(code: str) -> bool:
    """Return True for an old name of Python, or an old key, field or code of Redis."""
    return bool(DROPPED.fullmatch(code) or DROPPED_KEYS.fullmatch(code))


def test_the_rules_see_a_dropped_word_in_a_document_and_no_other() -> None:
    text = (
        "The Bell rings: `seen` and `Peeked(…)` are gone. Whoever looks has seen it. `waiters` and `MessageView` stay."
    )

    assert dropped_words(text) == ["Bell", "Whoever", "seen", "Peeked"]
    assert dropped_words(text, history=True) == ["Bell", "Whoever"]


def test_the_rules_see_each_kind_of_name(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        "found = 1\n"
        "class Peeked:\n    said: int\n    def told(self, wanted): self.given = some = wanted\n"
        "def read(*, shown): pass\n"
        "def _read(meant): return [one for one in meant]\n"
        "try: pass\nexcept OSError as told: pass\n"
    )

    assert {name for name, _ in shared_names(module)} == {
        "found", "Peeked", "said", "told", "self", "wanted", "given", "read", "shown", "_read"
    }  # fmt: skip
    assert {name for name, _ in all_names(module)} >= {"some", "meant", "one", "told"}


def test_the_rules_see_each_kind_of_name_in_a_script() -> None:
    text = (
        "local found, a = 1 -- local b\n"
        "function m.f(what)\n  for _, some in c do d.facts = {given = 1, rest = 2} end\nend\n"
    )

    assert set(lua_names(text)) == {"found", "a", "what", "_", "some", "facts", "given", "rest"}
