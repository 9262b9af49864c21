"""Collects the options of one queue or policy during an import, with a note for each setting."""

from __future__ import annotations

from rqttl.errors import InvalidInput
from rqttl.imports.report import Notes
from rqttl.options import OPTIONS, written


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
            self.notes.translated(self.subject, setting, source, f"{text}: {because}")
        else:
            self.notes.taken(self.subject, setting, source, text)
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
