"""Arguments of queues and keys of policies in RabbitMQ as options: which becomes which, and why some become none.

An argument of a queue is the key of a policy with `x-` before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rqttl.imports import table
from rqttl.imports.report import Collector
from rqttl.imports.source import at, read_text
from rqttl.options import OVERFLOWS
from rqttl.text import plain_whole

#: RabbitMQ's limit for quorum queues without one, and the version that brought it.
DEFAULT_DELIVERY_LIMIT = 20
_DEFAULT_SINCE = (4, 0)


@dataclass(frozen=True)
class SourceSetting:
    """A setting of the source: its name there, its value, and its place in the file."""

    name: str
    value: Any
    place: str


def read_settings(table: Mapping[str, Any], place: str, prefix: str = "") -> dict[str, SourceSetting]:
    """The settings of a queue (with the prefix `x-`) or of a definition, by key. Others keep their names."""
    return {name.removeprefix(prefix): SourceSetting(name, value, at(place, name)) for name, value in table.items()}


class SettingsReader:
    """Takes the settings of one queue or policy. `kind` is the type of the queue, and empty for a policy."""

    def __init__(self, settings: Mapping[str, SourceSetting], out: Collector, kind: str) -> None:
        self.settings = settings
        self.out = out
        self.kind = kind
        self._readers: dict[str, Callable[[SourceSetting], None]] = {
            "overflow": self._overflow,
            "delivery-limit": self._delivery_limit,
        }

    def read(self) -> None:
        """Take each setting as options, or note why not. Dead-letter exchanges are not read here."""
        for key, setting in self.settings.items():
            if key in self._readers:
                self._readers[key](setting)
            elif key not in table.rows("rabbitmq") or not table.rows("rabbitmq")[key].by_code:
                table.take(self.out, "rabbitmq", key, setting.name, setting.value, setting.place)

    def _overflow(self, setting: SourceSetting) -> None:
        rule = read_text(setting.value, setting.place)
        if rule == OVERFLOWS[2] and self.kind == "quorum":
            self.out.left_out(setting.name, rule, "a quorum queue does not have it, and drops its oldest messages")
        else:
            self.out.take("overflow", rule, setting.name, rule)

    def _delivery_limit(self, setting: SourceSetting) -> None:
        limit = plain_whole(setting.value)
        if self.kind not in ("", "quorum"):
            self.out.left_out(setting.name, setting.value, f"a {self.kind} queue does not have it")
        elif limit is None:
            self.out.left_out(setting.name, setting.value, "RabbitMQ ignores a value that is no whole number")
        elif limit < 0:
            self.out.translated(setting.name, limit, "no max_deliveries: below 0 there is no limit")
        else:
            self.out.take("max_deliveries", limit + 1, setting.name, limit, because=_LIMIT)


_LIMIT = (
    "RabbitMQ forgives as many failures as the limit says, and the next one ends the message; "
    "here every nack and every lost lease is a failure"
)


def has_default_limit(version: tuple[int, ...] | None) -> bool:
    """Return whether this RabbitMQ limits the deliveries of a quorum queue by default."""
    return version is not None and version >= _DEFAULT_SINCE
