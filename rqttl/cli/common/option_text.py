"""Queue options as the command line writes them: flags for people, names and milliseconds in JSON for programs."""

from __future__ import annotations

import re
from typing import Any

from rqttl.options import OPTIONS, Option, QueueOptions, Value
from rqttl.units import as_text

#: Names that are no words of English, and not a part of a longer name or a quoted value.
_NAMES = re.compile(
    rf"(?<![\w'\"./:{{-])({'|'.join(sorted((name for name in OPTIONS if '_' in name), key=len, reverse=True))})"
    r"(?![\w'\"/}-]|\.\w)"
)


def flag(option: str) -> str:
    """The flag of an option."""
    return f"--{option.replace('_', '-')}"


#: Arguments of the library that are no queue options, and their flags.
_FLAGS = {name: flag(name) for name in ("id", "ttl", "expires_at", "content_type", "scan_period", "namespace", "after")}
_FLAGS["headers"] = "--header"


def shown(option: Option, value: Value | None) -> str:
    """The value of an option as it would be written on the command line."""
    if value is None:
        return "(none)"
    if option.kind == "duration":
        return as_text(int(value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if option.kind == "count":
        return f"{value:,}"
    return str(value) or "(drop)"


def with_flags(message: str) -> str:
    """A message of the library in which options have the names of their flags: `max_length` is `--max-length`."""
    return _NAMES.sub(lambda name: flag(name[0]), message)


def naming_flag(message: str) -> str:
    """`with_flags`; and an argument with which the message begins, `id: expected …`, has the name of its flag too."""
    name, colon, rest = message.partition(": ")
    named = flag(name) if name in OPTIONS else _FLAGS.get(name)
    return f"{named}{colon}{with_flags(rest)}" if named and colon else with_flags(message)


def json_name(option: str) -> str:
    """The name of an option in JSON, where the names of durations say their unit."""
    return f"{option}_ms" if OPTIONS[option].kind == "duration" else option


def option_facts(options: QueueOptions) -> dict[str, Any]:
    """All options of a queue, for `text.as_json`."""
    return {json_name(name): value for name, value in options.items()}
