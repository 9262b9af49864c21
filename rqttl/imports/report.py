"""The result of an import: deployments, and a note about each setting of the source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

#: `taken`: rqttl has the same. `translated`: the text says how. `left out`: the text says why.
Kind = Literal["taken", "translated", "left out"]


@dataclass(frozen=True, slots=True)
class Note:
    """The treatment of one setting of the source.

    `subject` names the object of the source, such as `vhost '/': queue 'orders'`. `setting` is the name of the setting
    as the source writes it, and empty if the note is about the whole object. `value` is the setting's value as
    a text for a terminal, and empty for a whole object or a secret.
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
