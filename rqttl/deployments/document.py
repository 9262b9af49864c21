"""The content of a deployment file, checked and read as a `Deployment`. Each error names the place in the file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeAlias, TypeVar, cast

from rqttl.deployments.deployment import FORMAT, Deployment
from rqttl.errors import InvalidDeployment, InvalidInput
from rqttl.names import check_namespace, check_queue_name
from rqttl.options import OPTIONS, QueueOptions, by_name
from rqttl.policies import Policy
from rqttl.policies.policy import NONE
from rqttl.text import did_you_mean, escape, format_value, plain_text

T = TypeVar("T")
_Path: TypeAlias = tuple[str, ...]

SECTIONS = ("queues", "policies", "operator_policies")
PARTS = ("pattern", "definition", "priority", "apply_to", "syntax")
_NEEDED = ("pattern", "definition")


def read_document(document: object) -> Deployment:
    """Check the content of a deployment file. Raises `InvalidDeployment`, which names place, value and rule.

    Keys have hyphens or underscores.
    """
    reader = _Reader()
    entries = reader.keys(document, (), ("rqttl", "namespace", *SECTIONS))
    reader.check_format(entries)
    return Deployment(
        reader.section(entries, "queues", reader.queue),
        reader.section(entries, "policies", lambda name, value, path: reader.policy(name, value, path, operator=False)),
        reader.section(
            entries, "operator_policies", lambda name, value, path: reader.policy(name, value, path, operator=True)
        ),
        reader.namespace(entries),
    )


def _refused(path: _Path, rule: str) -> InvalidDeployment:
    """The error for a path, such as `queues.orders.max-length`."""
    return InvalidDeployment(".".join(escape(part, 80) for part in path) or "the file", rule)


class _Reader:
    def keys(self, value: object, path: _Path, known: Iterable[str]) -> dict[str, tuple[object, _Path]]:
        """The values of a mapping with known keys, each with its path. The keys have underscores."""
        names = tuple(known)
        entries: dict[str, tuple[object, _Path]] = {}
        for key, item in self._mapping(value, path).items():
            inner, name = (*path, key), key.replace("-", "_")
            if name not in names:
                hint = did_you_mean(name, names, f"the keys are {', '.join(_kebab(known) for known in names)}")
                raise _refused(inner, f"no such key{_kebab(hint)}")
            if name in entries:
                raise _refused(inner, "given twice, with a hyphen and with an underscore")
            entries[name] = item, inner
        return entries

    def check_format(self, entries: Mapping[str, tuple[object, _Path]]) -> None:
        """Check the version of the format."""
        version, path = entries.get("rqttl", (None, ()))
        if type(version) is not int or version != FORMAT:
            rule = f"expected 'rqttl: {FORMAT}', the version of the format that this rqttl reads"
            raise _refused(path, f"{rule}, got {format_value(version, int)}")

    def namespace(self, entries: Mapping[str, tuple[object, _Path]]) -> str | None:
        """The namespace that the file was exported from."""
        value, path = entries.get("namespace", (None, ()))
        return None if value is None else self._call(path, lambda: check_namespace(value))

    def section(
        self, entries: Mapping[str, tuple[object, _Path]], name: str, read: Callable[[str, object, _Path], T]
    ) -> dict[str, T]:
        """The entries of a section, by their names."""
        value, path = entries.get(name, ({}, (_kebab(name),)))
        return {key: read(key, item, (*path, key)) for key, item in self._mapping(value, path).items()}

    def queue(self, name: str, value: object, path: _Path) -> QueueOptions:
        """The declared options of a queue."""
        self._call(path, lambda: check_queue_name(name))
        options = self._mapping(value, path)
        for key, item in options.items():
            if plain_text(item) == NONE:
                rule = "'none' stands in policies only; leave the option out, or write '' for a target that drops"
                raise _refused((*path, key), f"{key}: {rule}")
            self._check_option(key, item, (*path, key))
        return self._call(path, lambda: QueueOptions.read(name, options))

    def policy(self, name: str, value: object, path: _Path, *, operator: bool) -> Policy:
        """A policy of one kind."""
        parts = self.keys(value, path, PARTS)
        for part in _NEEDED:
            if part not in parts:
                raise _refused(path, f"expected the key {part!r}")
        definition, inner = parts.pop("definition")
        for key, item in self._mapping(definition, inner).items():
            if plain_text(item) != NONE:
                self._check_option(key, item, (*inner, key))
        arguments = {part: item for part, (item, _) in parts.items()}
        pattern = arguments.pop("pattern")
        return self._call(path, lambda: Policy.read(name, pattern, definition, **arguments, operator=operator))

    def _check_option(self, key: str, value: object, path: _Path) -> None:
        """Check one option by itself, so that the error has its place."""
        for name in self._call(path, lambda: by_name({key: value})):
            if value is not None:
                self._call(path, partial(OPTIONS[name].read, name, value))

    def _mapping(self, value: object, path: _Path) -> Mapping[str, object]:
        """A mapping with texts as keys. Nothing at all is an empty one."""
        if value is None and path:
            return {}
        if not isinstance(value, Mapping):
            raise _refused(path, f"expected a mapping, got {format_value(value, dict)}")
        for key in value:
            if plain_text(key) is None:
                raise _refused(path, f"expected text as a key, got {format_value(key)}")
        return cast("Mapping[str, object]", value)

    def _call(self, path: _Path, read: Callable[[], T]) -> T:
        try:
            return read()
        except InvalidInput as error:
            raise _refused(path, str(error)) from None


def _kebab(text: str) -> str:
    return text.replace("_", "-")
