"""Queue options as text: flags and values for people, names and milliseconds in JSON."""

from __future__ import annotations

import re
from typing import Any

from rqttl.options import OPTIONS, Option, QueueOptions, Value
from rqttl.units import as_text

#: Names of options with an underscore, which no English word has; not within a longer name or a quoted value.
_NAMES = re.compile(
    rf"(?<![\w'\"./:{{-])({'|'.join(sorted((name for name in OPTIONS if '_' in name), key=len, reverse=True))})"
    r"(?![\w'\"/}-]|\.\w)"
)


def flag(option: str) -> str:
    """The flag of an option."""
    return f"--{option.replace('_', '-')}"


#: Arguments of the library that are no queue options, and their flags.
_FLAGS = {name: flag(name) for name in ("id", "ttl", "expires_at", "content_type", "scan_period", "namespace", "after")}
_FLAGS |= {"headers": "--header", "queues": "QUEUE"}
#: The options of workers.
WORKER_OPTIONS = (
    "call",
    "exec",
    "delivery",
    "processes",
    "threads",
    "asyncio",
    "lease",
    "timeout",
    "max_messages",
    "max_memory",
    "grace",
    "retry_delay",
    "retry_max",
    "retry_jitter",
    "burst",
    "idle_exit",
    "reaper",
    "health",
)
_FLAGS |= {name: flag(name) for name in WORKER_OPTIONS}
#: An argument that the rule about another one names.
_QUOTED = re.compile(rf"`({'|'.join(WORKER_OPTIONS)})`")


def format_value(option: Option, value: Value | None) -> str:
    """The value of an option as people write it on the command line."""
    if value is None:
        return "(none)"
    if option.kind == "duration":
        return as_text(int(value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if option.kind in ("count", "size"):
        return f"{value:,}"
    return str(value) or "(drop)"


def with_flags(message: str) -> str:
    """A message of the library in which options have the names of their flags: `max_length` is `--max-length`."""
    return _NAMES.sub(lambda name: flag(name[0]), message)


def naming_flag(message: str) -> str:
    """`with_flags`; a message that begins with an argument, `id: expected …`, then begins with its flag.

    If its rule names another argument in backquotes, this becomes a flag, too.
    """
    name, colon, rule = message.partition(": ")
    named = flag(name) if name in OPTIONS else _FLAGS.get(name)
    if not named or not colon:
        return with_flags(message)
    return f"{named}{colon}{_QUOTED.sub(lambda other: flag(other[1]), with_flags(rule))}"


def json_name(option: str) -> str:
    """The name of an option in JSON, with the unit of a duration."""
    return f"{option}_ms" if OPTIONS[option].kind == "duration" else option


def to_json(options: QueueOptions) -> dict[str, Any]:
    """All options of a queue, for `json_text.dump`."""
    return {json_name(name): value for name, value in options.items()}
