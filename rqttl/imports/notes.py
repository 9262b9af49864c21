"""The result of an import: names and options that rqttl allows, and a note about each setting.

`settings.txt` is the table of settings: the option that a setting becomes, or why it becomes none.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rqttl.checks import is_queue_name
from rqttl.errors import InvalidImport, InvalidInput
from rqttl.imports.source import read, read_duration, read_whole
from rqttl.options import OPTIONS, QueueOptions, written
from rqttl.text import did_you_mean, escape
from rqttl.units import MAX_DURATION, as_text

#: `taken`: rqttl has the same. `translated`: the text says how. `left out`: the text says why.
Kind = Literal["taken", "translated", "left out"]


@dataclass(frozen=True, slots=True)
class Note:
    """The treatment of one setting of the source.

    `subject` names the object of the source, such as `vhost '/': queue 'orders'`. `setting` is the name of the setting
    as the source writes it, and empty if the note is about the whole object. `value` is the setting's value as
    a text for a terminal, and empty for a whole object or a secret. `costs` is true if the import has a queue, a policy
    or an option less.
    """

    kind: Kind
    subject: str
    setting: str
    value: str
    text: str
    costs: bool = False


@dataclass(frozen=True)
class ImportedDeployment:
    """The queues and policies of one vhost, namespace or broker.

    `queues` maps each name to arguments of `declare_queue`: options in snake_case, durations as text with a unit. That
    of a topic has `bindings`, too: a filter for each bound queue.
    `policies` and `operator_policies` map each name to the keys of a deployment file: `pattern`, `syntax`, `priority`,
    `apply-to` and `definition`, whose options are in kebab-case. `namespace` is a valid namespace for it, and no other
    deployment of the import has the same one.
    """

    queues: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    policies: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    operator_policies: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    namespace: str = "rqttl"


@dataclass(frozen=True)
class Imported:
    """The deployments of a file, by their names in the file, and the notes. Equal files give equal imports."""

    deployments: Mapping[str, ImportedDeployment]
    notes: tuple[Note, ...]


#: Characters of a value in a note.
_LONGEST = 200
#: What a value becomes, by the words behind `as` in the table.
_READERS: Mapping[str, Callable[[object, str], object]] = {
    "milliseconds": lambda value, place: as_text(read(int, value, place)),
    "count": read_whole,
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

    def add(self, kind: Kind, setting: str, value: object, text: str, *, costs: bool = False) -> None:
        """Record the treatment of a setting."""
        shown = "" if value is None else value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        self.found.append(Note(kind, self.subject, setting, escape(shown, _LONGEST), text, costs))

    def taken(self, setting: str, value: object, text: str) -> None:
        """Record a setting that rqttl has, too."""
        self.add("taken", setting, value, text)

    def translated(self, setting: str, value: object, text: str) -> None:
        """Record a setting that became something else. `text` names that."""
        self.add("translated", setting, value, text)

    def left_out(self, setting: str, value: object, text: str) -> None:
        """Record a setting that has no counterpart. `text` says why, and names the nearest thing in rqttl."""
        self.add("left out", setting, value, text)

    def lost(self, setting: str, value: object, text: str) -> None:
        """Record that the import has a queue, a policy or an option less. `text` says why."""
        self.add("left out", setting, value, text, costs=True)

    @contextmanager
    def reading(self, setting: str, value: object) -> Iterator[None]:
        """Record a setting as lost if its value cannot be read."""
        try:
            yield
        except InvalidImport as error:
            self.lost(setting, value, f"it cannot be read: {str(error).removeprefix(f'{error.place}: ')}")

    def take(self, option: str, value: object, setting: str, source: object, *, because: str = "") -> bool:
        """Set an option, and note it: as taken, or as translated if `because` says how. Return False if refused."""
        try:
            shown = written(option, OPTIONS[option].read(option, value))
        except InvalidInput as error:
            self.lost(setting, source, f"rqttl refuses the value: {error}")
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
            self.left_out(name, value, f"it is not a documented setting{hint}")
        elif not row.options:
            is_alike = str(value).lower() in row.alike
            (self.taken if is_alike else self.left_out)(name, value, "rqttl does the same" if is_alike else row.text)
        else:
            with self.reading(name, value):
                if row.reader != "duration":
                    self.take(row.options[0], _READERS[row.reader](value, place), name, value, because=row.text)
                elif (length := read_duration(value, place)) > MAX_DURATION:
                    self.translated(name, value, f"no {row.options[0]}: it is longer than ten years")
                else:
                    self.take(row.options[0], as_text(length), name, value, because=row.text)

    def queue(self, name: str) -> Mapping[str, object] | None:
        """The options as those of a queue; `None`, with a note, if rqttl refuses them together."""
        try:
            QueueOptions.read(name, self.options)
        except InvalidInput as error:
            self.lost("", None, f"the queue is not imported: {error}")
            return None
        return self.options


# Names of another broker as names that rqttl allows: always the same for the same file

MAX_NAME = 128
_MAX_NAMESPACE = 64
#: Characters of the hash that ends a shortened name.
_HASH = 8
_RULE = "1 to 128 of A-Z a-z 0-9 . _ : / -, first a letter or digit"


@dataclass(frozen=True)
class NameTable:
    """The names of a deployment. `names` maps source names to names in rqttl, `refused` maps the others to a reason."""

    names: Mapping[str, str]
    refused: Mapping[str, str]

    @classmethod
    def of(cls, sources: Iterable[str], longest: int = MAX_NAME, taken: Iterable[str] = ()) -> NameTable:
        """Translate distinct names. One that rqttl allows stays. One that meets another or a `taken` one is refused."""
        others = frozenset(taken)
        translations = {source: translate(source, longest) for source in sources}
        uses = Counter(translations.values())
        names: dict[str, str] = {}
        refused: dict[str, str] = {}
        for source, name in translations.items():
            if not name:
                refused[source] = f"the name has no character that a name in rqttl may have: {_RULE}"
            elif name in others:
                refused[source] = f"a queue or a topic of the file has the name {name!r}: rename one of them"
            elif source == name or uses[name] == 1:
                names[source] = name
            else:
                refused[source] = f"another name of the file also becomes {name!r}: rename one of them"
        return cls(names, refused)

    def take(self, source: str, what: str, notes: Notes) -> str | None:
        """The name in rqttl, with a note: the same, or the translated one with the rule; `None` if it is refused."""
        if source in self.refused:
            notes.lost("", None, f"the {what} is not imported: {self.refused[source]}")
            return None
        name = self.names[source]
        if name == source:
            notes.taken("name", source, "the same name")
        else:
            notes.translated("name", source, f"{name!r}: rqttl allows {_RULE}")
        return name


def translate(source: str, longest: int = MAX_NAME) -> str:
    """The nearest name that a queue may have: each other character becomes `-`. Empty if no character is left."""
    if is_queue_name(source) and len(source) <= longest:
        return source
    return _nearest(source, re.sub(r"[^A-Za-z0-9._:/-]", "-", source), "q", longest)


def namespaces(sources: Iterable[str], default: str = "rqttl") -> dict[str, str]:
    """A valid namespace for each source name, all different. A name without letters and digits gets the default."""
    plain = {source: re.sub(r"[^A-Za-z0-9._-]", "-", source).strip("-") for source in sources}
    names = {source: _nearest(source, name, "n", _MAX_NAMESPACE) or default for source, name in plain.items()}
    uses = Counter(names.values())
    return {
        source: name if uses[name] == 1 or source == name else _with_hash(source, name, _MAX_NAMESPACE)
        for source, name in names.items()
    }


def _nearest(source: str, name: str, first: str, longest: int) -> str:
    """A name that begins with a letter or digit, with a hash of the source if it is too long. Empty without one."""
    if not re.search(r"[A-Za-z0-9]", name):
        return ""
    name = name if name[0].isalnum() else f"{first}{name}"
    return name if len(name) <= longest else _with_hash(source, name, longest)


def _with_hash(source: str, name: str, longest: int) -> str:
    return f"{name[: longest - _HASH - 1]}-{hashlib.sha256(source.encode()).hexdigest()[:_HASH]}"
