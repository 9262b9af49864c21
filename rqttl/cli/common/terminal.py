"""Text in cells of a terminal: widths, cuts, folds, and the width of the terminal itself."""

from __future__ import annotations

import os
import re
import sys
from typing import TextIO

#: A word with everything that stands in backticks or in quotes in it.
_UNBROKEN = re.compile(r"(?:`[^`]*`|(?<!\w)'[^']*'|\S)+")


def columns_of(stream: TextIO) -> int | None:
    """The width of the terminal behind a stream, or that of `$COLUMNS`; `None` if it is no terminal."""
    if not stream.isatty():
        return None
    columns = os.environ.get("COLUMNS", "")
    if columns.isascii() and columns.isdigit() and int(columns):
        return int(columns)
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except OSError:  # the stream claims to be a terminal and has no file
        return 80


def coloured() -> bool:
    """Return whether stdout is a terminal with colours and bold text whose user wants them."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") not in ("dumb", "unknown")


def can_encode(characters: str, encoding: str | None) -> bool:
    """Return whether an encoding, such as that of stdout, has these characters."""
    try:
        characters.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def width(text: str) -> int:
    """The number of cells that a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def truncate(text: str, cells: int) -> str:
    """A text cut to a number of cells."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= cells:
        return text
    return f"{set_cell_size(text, cells - 1)}…"


def wrap(text: str, cells: int) -> list[str]:
    """A text in lines of at most so many cells: broken between words, and within a word that is longer than a line."""
    from rich.cells import cell_len, chop_cells

    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}".lstrip(" ")
        if cell_len(longer) <= cells:
            lines[-1] = longer
        else:
            lines += chop_cells(word, cells)
    return lines if lines[0] or len(lines) == 1 else lines[1:]


def wrap_words(line: str, cells: int) -> str:
    """A line folded at so many cells. Words, and everything in backticks or quotes, stay whole, so they can be copied.

    A word that is longer than a line stays as long as it is.
    """
    if width(line) <= cells:
        return line
    lines = [""]
    for word in _UNBROKEN.findall(line):
        longer = f"{lines[-1]} {word}" if lines[-1].strip() else f"{lines[-1]}{word}"
        if width(longer) <= cells or not lines[-1].strip():
            lines[-1] = longer
        else:
            lines.append(f"  {word}")
    return "\n".join(lines)


def chunk(text: str, cells: int | None) -> list[str]:
    """A text in pieces of so many cells, with nothing left out; one piece for None."""
    from rich.cells import chop_cells

    return [text] if cells is None or not text else chop_cells(text, max(cells, 2))
