"""The table of settings of other brokers, `settings.txt`: the option that each becomes, or why it becomes none."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rqttl.imports.durations import parse_duration
from rqttl.imports.report import Collector
from rqttl.imports.source import read_text, read_whole
from rqttl.text import did_you_mean
from rqttl.units import MAX_DURATION, as_text

_FILE = Path(__file__).with_name("settings.txt")
#: What a value becomes, by the words behind `as` in the table; a text of the file has these units.
_READERS: Mapping[str, Callable[[object, str], object]] = {
    "milliseconds": lambda value, place: as_text(read_whole(value, place)),
    "count": read_whole,
    "text": read_text,
    "kibibytes": lambda value, place: read_whole(value, place) * 2**10,
    "mebibytes": lambda value, place: read_whole(value, place) * 2**20,
}


@dataclass(frozen=True, slots=True)
class Row:
    """A row. Without options the setting has no counterpart, except for the values in `alike`: rqttl does the same.

    `by_code` means that a module reads the setting.
    """

    by_code: bool
    options: tuple[str, ...]
    reader: str
    alike: tuple[str, ...]
    text: str


@functools.cache
def rows(section: str) -> Mapping[str, Row]:
    """The rows of a section, by setting."""
    found: dict[str, Row] = {}
    for line in _FILE.read_text(encoding="utf-8").splitlines():
        if line.startswith("#") or not line:
            continue
        where, setting, becomes, text = (cell.strip() for cell in f"{line} ".split(" | "))
        by_code = " by " in becomes or becomes == "code"
        options, _, reader = becomes.partition(" by " if by_code else " as ")
        _, _, alike = becomes.partition("none unless ")
        if where == section:
            found[setting] = Row(by_code, tuple(options.split()) if reader else (), reader, tuple(alike.split()), text)
    return found


def beginning(section: str, name: str) -> Row | None:
    """The row with the longest beginning of a name."""
    fitting = [setting for setting in rows(section) if name.startswith(setting)]
    return rows(section)[max(fitting, key=len)] if fitting else None


def take(out: Collector, section: str, setting: str, name: str, value: Any, place: str) -> None:
    """Take the setting `name` of the source, which is `setting` in the table, or note why not."""
    row = rows(section).get(setting.lower(), rows(section).get(setting))
    if row is None:
        hint = did_you_mean(setting, tuple(rows(section)), ignore_case=True)
        out.left_out(name, value, f"it is no documented setting{hint}")
    elif not row.options:
        is_alike = str(value).lower() in row.alike
        (out.taken if is_alike else out.left_out)(name, value, "rqttl does the same" if is_alike else row.text)
    elif row.reader == "duration":
        length = parse_duration(read_text(value, place), place)
        if length > MAX_DURATION:
            out.translated(name, value, f"no {row.options[0]}: it is longer than ten years")
        else:
            out.take(row.options[0], as_text(length), name, value, because=row.text)
    else:
        out.take(row.options[0], _READERS[row.reader](value, place), name, value, because=row.text)
