"""Docstrings and comments: each sentence has a noun as its subject, and is short enough for one reading."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.test_docstrings import docstrings
from tests.unit.test_size import ROOT, lua_files, name_of, python_files

PACKAGES = ("rqttl", "spark_connectors")
#: Words of the longest sentence in a docstring.
LONGEST = 40
#: First words of a sentence that is a clause without a noun.
_BEGINNINGS = "What|Whatever|Whether|Which|How|Who|Whoever|Those"
#: Clauses without a noun within a sentence: a pronoun with a relative clause, or `what` after a verb or a preposition.
_BEFORE_WHAT = (
    "about|all|and|as|at|but|by|do|does|for|from|gives?|has|have|in|is|are|keeps?|let|makes?|not|of|on|only|or|reads?|"
    "removes?|says?|sends?|takes?|tells?|than|that|to|with|without"
)
CLAUSE = re.compile(
    rf"(?:^|[.:;] )(?:{_BEGINNINGS})\b"
    r"|\b(?i:whoever|whosoever|whatever|whichever|whomever)\b"
    r"|\b(?i:those|these|anybody|anyone|somebody|someone|everybody|one|all|nobody) who\b"
    rf"|\b(?:{_BEFORE_WHAT}) what\b"
    r"|\bthe news\b"
)
#: Words that the project dropped, in every text.
DROPPED = re.compile(r"\b(?:bells?|Bells?|BELLS?)\b")
#: Tests that list dropped words.
LISTING = ("test_prose.py", "test_words.py")
TEXTS = (".py", ".lua", ".md", ".toml", ".yml", ".sh")


def sentences(text: str) -> Iterator[str]:
    """The sentences of a docstring, without its examples. An item of a list is a paragraph."""
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*[*-] )", text):
        if not paragraph.startswith("    ") or paragraph.lstrip().startswith(("* ", "- ")):
            yield from re.split(r"(?<=[.!?:;])\s+(?=[A-Z`*])", " ".join(paragraph.split()))


def words(sentence: str) -> int:
    """The number of words. An expression in backticks is one word."""
    return len(re.findall(r"`[^`]*`|\w[\w'’./-]*", sentence))


def comments(path: Path) -> Iterator[tuple[int, str]]:
    """The comments of a module with the numbers of their first lines. Lines that follow each other are one comment."""
    begun, last, lines = 0, -1, list[str]()
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.type == tokenize.COMMENT:
            number, text = token.start[0], token.string.lstrip("#: ")
            if number != last + 1 and lines:
                yield begun, " ".join(lines)
                lines = []
            begun = begun if lines else number
            last, lines = number, [*lines, text]
    if lines:
        yield begun, " ".join(lines)


def lua_comments(path: Path) -> Iterator[str]:
    """The comments of a script without the tags of its header. Lines that follow each other are one comment."""
    block: list[str] = []
    for line in [*path.read_text(encoding="utf-8").splitlines(), ""]:
        comment = re.match(r"\s*-{2,}(?!-)(?! ?@) ?(.*)", line)
        if comment and comment[1]:
            block.append(comment[1])
            continue
        if block:
            yield " ".join(block)
        block = []
        if trailing := re.search(r"\S.* -- (.*)", line):
            yield trailing[1]


@pytest.mark.parametrize("package", PACKAGES)
def test_no_sentence_of_a_docstring_is_a_clause_without_a_noun(package: str) -> None:
    assert [
        f"{name_of(path)}: {name}: {sentence}"
        for path in python_files(package)
        for name, text in docstrings(path)
        for sentence in sentences(text)
        if CLAUSE.search(sentence)
    ] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_comment_is_a_clause_without_a_noun(package: str) -> None:
    assert [
        f"{name_of(path)}:{line}: {text}"
        for path in python_files(package)
        for line, text in comments(path)
        if CLAUSE.search(text)
    ] == []


def test_no_comment_of_a_script_is_a_clause_without_a_noun() -> None:
    assert [
        f"{path.stem}: {text}"
        for kind in ("commands", "lib")
        for path in lua_files(kind)
        for text in lua_comments(path)
        if CLAUSE.search(text)
    ] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_sentence_of_a_docstring_has_more_words_than_one_reading_takes(package: str) -> None:
    assert [
        f"{name_of(path)}: {name}: {words(sentence)} words: {sentence}"
        for path in python_files(package)
        for name, text in docstrings(path)
        for sentence in sentences(text)
        if words(sentence) > LONGEST
    ] == []


def test_no_text_of_the_project_uses_a_dropped_word() -> None:
    files = [
        path
        for folder in ("rqttl", "spark_connectors", "lua", "tests", "deploy")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in TEXTS and path.name not in LISTING
    ]

    assert [
        f"{name_of(path)}:{number}: {line.strip()}"
        for path in [*files, *ROOT.glob("*.md")]
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if DROPPED.search(line)
    ] == []
    assert len(files) > 400


@pytest.mark.parametrize(
    "sentence,is_clause",
    [
        ("What comes next looks at the queue.", True),
        ("Looked at only now: whoever asks from here on finds the socket.", True),
        ("A pool lets those who wait queue too.", True),
        ("The result: Whether it was there.", True),
        ("The text of what was sent.", True),
        ("Check what a script may do.", False),
        ("Return whether the queue exists.", False),
        ("The owner, who closes it.", False),
        ("The list of what a queue needs.", True),
        ("The consumer that waits takes an element.", False),
    ],
)
def test_a_clause_without_a_noun_is_seen(sentence: str, is_clause: bool) -> None:
    assert (CLAUSE.search(sentence) is not None) == is_clause


def test_the_parts_of_a_docstring_are_its_sentences() -> None:
    text = "One fact. Another: A third one.\n\n    example()  # no sentence. None.\n\n* An item\n  of a list."

    assert list(sentences(text)) == ["One fact.", "Another:", "A third one.", "* An item of a list."]
    assert [words(sentence) for sentence in sentences("Use `a b c` twice, don't. Ok?")] == [4, 1]


def test_comments_are_read_whole(tmp_path: Path) -> None:
    module, script = tmp_path / "a.py", tmp_path / "a.lua"
    module.write_text("# One\n# two.\nx = 1  # three\n\n#: four\ny = '# five'\n", encoding="utf-8")
    script.write_text("--- One\n-- two.\n--\n-- @use a\nlocal x = 1 -- three\n-- four\n", encoding="utf-8")

    assert list(comments(module)) == [(1, "One two. three"), (5, "four")]
    assert list(lua_comments(script)) == ["One two.", "three", "four"]
