"""Names of another broker as names that rqttl allows: always the same for the same file."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rqttl.checks import is_queue_name
from rqttl.imports.notes import Notes

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
    def of(cls, sources: Iterable[str], longest: int = MAX_NAME) -> NameTable:
        """Translate distinct names. A name that rqttl allows stays. Translations that meet another name are refused."""
        translations = {source: translate(source, longest) for source in sources}
        uses = Counter(translations.values())
        names: dict[str, str] = {}
        refused: dict[str, str] = {}
        for source, name in translations.items():
            if not name:
                refused[source] = f"the name has no character that a name in rqttl may have: {_RULE}"
            elif source == name or uses[name] == 1:
                names[source] = name
            else:
                refused[source] = f"another name of the file also becomes {name!r}: rename one of them"
        return cls(names, refused)

    def take(self, source: str, what: str, notes: Notes) -> str | None:
        """The name in rqttl, with a note: the same, or the translated one with the rule; `None` if it is refused."""
        if source in self.refused:
            notes.left_out("", None, f"the {what} is not imported: {self.refused[source]}")
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
