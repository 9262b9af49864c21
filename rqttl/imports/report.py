"""The result of an import: deployments, and a note about each setting of the source."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rqttl.errors import InvalidInput
from rqttl.options import OPTIONS, written
from rqttl.text import escape

#: `taken`: rqttl has the same. `translated`: the text says how. `left out`: the text says why.
Kind = Literal["taken", "translated", "left out"]

#: Characters of a value in a note.
_LONGEST = 200


@dataclass(frozen=True, slots=True)
class Note:
    """The treatment of one setting of the source.

    `subject` names the object of the source, such as `vhost '/': queue 'orders'`. `setting` is the name of the setting
    as the source writes it, and empty if the note is about the whole object. `value` is the setting's value as
    `value_text` writes it, and empty for a whole object or a secret.
    """

    kind: Kind
    subject: str
    setting: str
    value: str
    text: str


@dataclass(frozen=True)
class ImportedDeployment:
    """The queues and policies of one vhost, namespace or broker.

    `queues` maps each name to arguments of `declare_queue`: options in snake_case, durations as text with a unit.
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


class Notes:
    """Collects notes during an import."""

    def __init__(self) -> None:
        self._notes: list[Note] = []

    def add(self, kind: Kind, subject: str, setting: str, value: object, text: str) -> None:
        """Record the treatment of a setting."""
        self._notes.append(Note(kind, subject, setting, value_text(value), text))

    def taken(self, subject: str, setting: str, value: object, text: str) -> None:
        """Record a setting that rqttl has, too."""
        self.add("taken", subject, setting, value, text)

    def translated(self, subject: str, setting: str, value: object, text: str) -> None:
        """Record a setting that became something else. `text` names that."""
        self.add("translated", subject, setting, value, text)

    def left_out(self, subject: str, setting: str, value: object, text: str) -> None:
        """Record a setting that has no counterpart. `text` says why, and names the nearest thing in rqttl."""
        self.add("left out", subject, setting, value, text)

    def as_tuple(self) -> tuple[Note, ...]:
        """All notes, in order."""
        return tuple(self._notes)


class Collector:
    """The options of one object of the source. Each option is checked as `declare_queue` checks it."""

    def __init__(self, notes: Notes, subject: str) -> None:
        self.notes = notes
        self.subject = subject
        self.options: dict[str, object] = {}

    def take(self, option: str, value: object, setting: str, source: object, *, because: str = "") -> bool:
        """Set an option, and note it: as taken, or as translated if `because` says how. Return False if refused."""
        try:
            stored = OPTIONS[option].read(option, value)
        except InvalidInput as error:
            self.left_out(setting, source, f"rqttl refuses the value: {error}")
            return False
        self.options[option] = value
        value_text = written(option, stored)
        text = f"{option}={value_text!r}" if isinstance(value_text, str) else f"{option}={value_text}"
        if because:
            self.translated(setting, source, f"{text}: {because}")
        else:
            self.taken(setting, source, text)
        return True

    def taken(self, setting: str, source: object, text: str) -> None:
        """Note a setting that holds in rqttl without an option."""
        self.notes.taken(self.subject, setting, source, text)

    def translated(self, setting: str, source: object, text: str) -> None:
        """Note a setting that became something else."""
        self.notes.translated(self.subject, setting, source, text)

    def left_out(self, setting: str, source: object, text: str) -> None:
        """Note a setting without a counterpart."""
        self.notes.left_out(self.subject, setting, source, text)


def value_text(value: object) -> str:
    """A value of the source as text for a terminal: a text as it is, another value as JSON, `None` as an empty text."""
    text = "" if value is None else value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return escape(text, _LONGEST)
