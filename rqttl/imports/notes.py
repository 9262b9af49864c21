"""Notes during an import, and the table `settings.txt`: the option that a setting becomes, or why it becomes none."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rqttl.errors import InvalidInput
from rqttl.imports.report import Kind, Note
from rqttl.imports.source import read, read_duration
from rqttl.options import OPTIONS, QueueOptions, written
from rqttl.text import did_you_mean, escape
from rqttl.units import MAX_DURATION, as_text

#: Characters of a value in a note.
_LONGEST = 200
#: What a value becomes, by the words behind `as` in the table.
_READERS: Mapping[str, Callable[[object, str], object]] = {
    "milliseconds": lambda value, place: as_text(read(int, value, place)),
    "count": functools.partial(read, int),
    "kibibytes": lambda value, place: read(int, value, place) * 2**10,
    "mebibytes": lambda value, place: read(int, value, place) * 2**20,
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
    for line in Path(__file__).with_name("settings.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{section} |"):
            _, settings, becomes, text = (cell.strip() for cell in f"{line} ".split(" | "))
            by_code = " by " in becomes or becomes == "code"
            options, _, reader = becomes.partition(" by " if by_code else " as ")
            _, _, alike = becomes.partition("none unless ")
            row = Row(by_code, tuple(options.split()) if reader else (), reader, tuple(alike.split()), text)
            found |= dict.fromkeys(settings.split(), row)
    return found


class Notes:
    """The notes about one object of the source, and the options that it becomes."""

    def __init__(self, subject: str = "", found: list[Note] | None = None) -> None:
        self.subject = subject
        self.found: list[Note] = [] if found is None else found
        self.options: dict[str, object] = {}

    def about(self, subject: str) -> Notes:
        """The notes about another object, which follow those that there are."""
        return Notes(subject, self.found)

    def add(self, kind: Kind, setting: str, value: object, text: str) -> None:
        """Record the treatment of a setting."""
        shown = "" if value is None else value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        self.found.append(Note(kind, self.subject, setting, escape(shown, _LONGEST), text))

    def taken(self, setting: str, value: object, text: str) -> None:
        """Record a setting that rqttl has, too."""
        self.add("taken", setting, value, text)

    def translated(self, setting: str, value: object, text: str) -> None:
        """Record a setting that became something else. `text` names that."""
        self.add("translated", setting, value, text)

    def left_out(self, setting: str, value: object, text: str) -> None:
        """Record a setting that has no counterpart. `text` says why, and names the nearest thing in rqttl."""
        self.add("left out", setting, value, text)

    def take(self, option: str, value: object, setting: str, source: object, *, because: str = "") -> bool:
        """Set an option, and note it: as taken, or as translated if `because` says how. Return False if refused."""
        try:
            shown = written(option, OPTIONS[option].read(option, value))
        except InvalidInput as error:
            self.left_out(setting, source, f"rqttl refuses the value: {error}")
            return False
        self.options[option] = value
        text = f"{option}={shown!r}" if isinstance(shown, str) else f"{option}={shown}"
        if because:
            self.translated(setting, source, f"{text}: {because}")
        else:
            self.taken(setting, source, text)
        return True

    def take_setting(self, section: str, setting: str, name: str, value: Any, place: str) -> None:
        """Take the setting `name` of the source, which is `setting` in the table, or note why not."""
        row = rows(section).get(setting.lower(), rows(section).get(setting))
        if row is None:
            hint = did_you_mean(setting, tuple(rows(section)), ignore_case=True)
            self.left_out(name, value, f"it is no documented setting{hint}")
        elif not row.options:
            is_alike = str(value).lower() in row.alike
            (self.taken if is_alike else self.left_out)(name, value, "rqttl does the same" if is_alike else row.text)
        elif row.reader != "duration":
            self.take(row.options[0], _READERS[row.reader](value, place), name, value, because=row.text)
        elif (length := read_duration(read(str, value, place), place)) > MAX_DURATION:
            self.translated(name, value, f"no {row.options[0]}: it is longer than ten years")
        else:
            self.take(row.options[0], as_text(length), name, value, because=row.text)

    def queue(self, name: str) -> Mapping[str, object] | None:
        """The options as those of a queue; `None`, with a note, if rqttl refuses them together."""
        try:
            QueueOptions.read(name, self.options)
        except InvalidInput as error:
            self.left_out("", None, f"the queue is not imported: {error}")
            return None
        return self.options
