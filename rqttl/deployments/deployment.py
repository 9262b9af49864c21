"""A deployment: queues with their declared options, policies, and operator policies; and the content of its file.

Each error names the place in the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar, cast

from rqttl.checks import check_namespace, check_queue_name
from rqttl.errors import InvalidDeployment, InvalidInput
from rqttl.options import OPTIONS, QueueOptions, by_name
from rqttl.policies import Policy
from rqttl.policies.policy import NONE
from rqttl.text import did_you_mean, escape, format_value, plain_text

T = TypeVar("T")
_Path: TypeAlias = tuple[str, ...]

#: The version of the format of deployment files.
FORMAT = 1
_KEYS = ("rqttl", "namespace", "queues", "policies", "operator_policies")
_PARTS = ("pattern", "definition", "priority", "apply_to", "syntax")


@dataclass(frozen=True)
class Deployment:
    """The queues, policies and operator policies of a file or of a namespace, each by name.

    `namespace` is the one that they were exported from, if the file says so. Equal deployments may differ in it.
    """

    queues: Mapping[str, QueueOptions] = field(default_factory=dict)
    policies: Mapping[str, Policy] = field(default_factory=dict)
    operator_policies: Mapping[str, Policy] = field(default_factory=dict)
    namespace: str | None = field(default=None, compare=False)

    @classmethod
    def of(cls, queues: Iterable[QueueOptions], policies: Iterable[Policy], namespace: str | None = None) -> Deployment:
        """The deployment with these queues and with policies of both kinds, in the order of their names."""
        by_name = sorted(policies, key=lambda policy: policy.name)
        return cls(
            {options.queue: options for options in sorted(queues, key=lambda options: options.queue)},
            {policy.name: policy for policy in by_name if not policy.operator},
            {policy.name: policy for policy in by_name if policy.operator},
            namespace,
        )

    def as_document(self) -> dict[str, object]:
        """The content of a deployment file: names of options in kebab-case, durations with a unit."""
        return {
            "rqttl": FORMAT,
            **({} if self.namespace is None else {"namespace": self.namespace}),
            "queues": {name: _kebab(options.as_arguments()) for name, options in sorted(self.queues.items())},
            "policies": {name: _written(policy) for name, policy in sorted(self.policies.items())},
            "operator-policies": {name: _written(policy) for name, policy in sorted(self.operator_policies.items())},
        }


def _kebab(mapping: Mapping[str, object]) -> dict[str, object]:
    """A mapping with hyphens in its keys, and the word `none` for `None`."""
    return {name.replace("_", "-"): NONE if value is None else value for name, value in mapping.items()}


def _written(policy: Policy) -> dict[str, object]:
    parts: dict[str, Any] = policy.as_arguments()
    definition = parts.pop("definition")
    return {**_kebab(parts), "definition": _kebab(definition)}


def read_document(document: object) -> Deployment:
    """Check the content of a deployment file. Raises `InvalidDeployment`, which names place, value and rule.

    Keys have hyphens or underscores.
    """
    entries = _entries(document, (), _KEYS)
    version, path = entries.get("rqttl", (None, ()))
    if type(version) is not int or version != FORMAT:
        rule = f"expected 'rqttl: {FORMAT}', the version of the format that this rqttl reads"
        raise _refused(path, f"{rule}, got {format_value(version, int)}")

    def section(name: str, read: Callable[[str, object, _Path], T]) -> dict[str, T]:
        value, path = entries.get(name, ({}, ()))
        return {key: read(key, item, (*path, key)) for key, item in _mapping(value, path or (name,)).items()}

    namespace, path = entries.get("namespace", (None, ()))
    return Deployment(
        section("queues", _queue),
        section("policies", lambda name, value, path: _policy(name, value, path, operator=False)),
        section("operator_policies", lambda name, value, path: _policy(name, value, path, operator=True)),
        None if namespace is None else _call(path, lambda: check_namespace(namespace)),
    )


def _refused(path: _Path, rule: str) -> InvalidDeployment:
    """The error for a path, such as `queues.orders.max-length`."""
    return InvalidDeployment(".".join(escape(part, 80) for part in path) or "the file", rule)


def _call(path: _Path, read: Callable[[], T]) -> T:
    try:
        return read()
    except InvalidInput as error:
        raise _refused(path, str(error)) from None


def _entries(value: object, path: _Path, names: Iterable[str]) -> dict[str, tuple[object, _Path]]:
    """The values of a mapping with known keys, each with its path. The keys have underscores."""
    entries: dict[str, tuple[object, _Path]] = {}
    for key, item in _mapping(value, path).items():
        inner, name = (*path, key), key.replace("-", "_")
        if name not in names:
            hint = did_you_mean(name, names, f"the keys are {', '.join(names)}").replace("_", "-")
            raise _refused(inner, f"no such key{hint}")
        if name in entries:
            raise _refused(inner, "given twice, with a hyphen and with an underscore")
        entries[name] = item, inner
    return entries


def _mapping(value: object, path: _Path) -> Mapping[str, object]:
    """A mapping with texts as keys. Nothing at all is an empty one."""
    if value is None and path:
        return {}
    if not isinstance(value, Mapping):
        raise _refused(path, f"expected a mapping, got {format_value(value, dict)}")
    for key in value:
        if plain_text(key) is None:
            raise _refused(path, f"expected text as a key, got {format_value(key)}")
    return cast("Mapping[str, object]", value)


def _queue(name: str, value: object, path: _Path) -> QueueOptions:
    """The declared options of a queue."""
    _call(path, lambda: check_queue_name(name))
    options = _mapping(value, path)
    for key, item in options.items():
        if plain_text(item) == NONE:
            rule = "'none' stands in policies only; leave the option out, or write '' for a target that drops"
            raise _refused((*path, key), f"{key}: {rule}")
        _check_option(key, item, (*path, key))
    return _call(path, lambda: QueueOptions.read(name, options))


def _policy(name: str, value: object, path: _Path, *, operator: bool) -> Policy:
    """A policy of one kind."""
    parts = _entries(value, path, _PARTS)
    for part in ("pattern", "definition"):
        if part not in parts:
            raise _refused(path, f"expected the key {part!r}")
    definition, inner = parts.pop("definition")
    for key, item in _mapping(definition, inner).items():
        if plain_text(item) != NONE:
            _check_option(key, item, (*inner, key))
    arguments = {part: item for part, (item, _) in parts.items()}
    pattern = arguments.pop("pattern")
    return _call(path, lambda: Policy.read(name, pattern, definition, **arguments, operator=operator))


def _check_option(key: str, value: object, path: _Path) -> None:
    """Check one option by itself, so that the error has its place."""
    [name] = _call(path, lambda: by_name({key: value}))
    if value is not None:
        _call(path, lambda: OPTIONS[name].read(name, value))
