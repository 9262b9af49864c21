"""YAML text as plain values. Duplicate keys, foreign tags, deep nesting and aliases without end are refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rqttl.deployments.places import Path, refused
from rqttl.errors import InvalidDeployment
from rqttl.text import format_value

if TYPE_CHECKING:
    import yaml

#: Levels of the deepest file.
MAX_DEPTH = 20
_TOO_DEEP = f"expected at most {MAX_DEPTH} levels of mappings and lists"
#: Values that aliases may add to a file.
MAX_REPEATED = 10_000

#: Numbers that mean something else in YAML than most people read.
_TRAP = re.compile(r"[-+]?(?:0[0-9_]+|[0-9_]+(?::[0-9_.]+)+)", re.ASCII)
_NUMBERS, _TIME = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float"), "tag:yaml.org,2002:timestamp"
_MAP, _SEQUENCE, _MERGE = "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq", "tag:yaml.org,2002:merge"


def read_yaml(text: str) -> tuple[object, dict[Path, tuple[int, int]]]:
    """Read YAML. Returns its value, and the line and column of each path. Raises `InvalidDeployment`."""
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _check_depth(yaml.parse(text, Loader=loader))
        node = yaml.compose(text, Loader=loader)
        return _Reader().read(node) if node else (None, {})
    except yaml.MarkedYAMLError as error:
        place = _at(error.problem_mark or error.context_mark)
        if "nesting depth" in (error.problem or ""):  # newer versions of libyaml have a limit, and read ahead
            raise InvalidDeployment(place, _TOO_DEEP) from None
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        raise InvalidDeployment(place, f"expected YAML: {problem}") from None
    except yaml.YAMLError as error:  # a character that YAML does not allow
        raise InvalidDeployment("the file", f"expected YAML: {' '.join(str(error).split())}") from None


def _at(mark: Any) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}" if mark else "the file"


def _check_depth(events: Iterator[yaml.Event]) -> None:
    """Refuse deep nesting before `compose`, which calls itself for each level."""
    import yaml

    depth = 0
    for event in events:
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise InvalidDeployment(_at(event.start_mark), _TOO_DEEP)


class _Reader:
    """Turns nodes into values. An alias is the same node again, so each visit after the first one is counted."""

    def __init__(self) -> None:
        import yaml

        self._yaml = yaml
        self._construct = yaml.SafeLoader("").construct_object
        self._seen: set[int] = set()
        self._repeated = 0
        self._places: dict[Path, tuple[int, int]] = {}

    def read(self, node: yaml.Node) -> tuple[object, dict[Path, tuple[int, int]]]:
        return self._value(node, ()), self._places

    def _value(self, node: yaml.Node, path: Path) -> object:
        self._places.setdefault(path, (node.start_mark.line + 1, node.start_mark.column + 1))
        self._count(node, path)
        if len(path) > MAX_DEPTH:
            raise refused(path, self._places, f"expected at most {MAX_DEPTH} levels; an alias contains itself")
        if isinstance(node, self._yaml.MappingNode) and node.tag == _MAP:
            return self._mapping(node, path)
        if isinstance(node, self._yaml.SequenceNode) and node.tag == _SEQUENCE:
            return [self._value(item, (*path, str(place))) for place, item in enumerate(node.value)]
        if isinstance(node, self._yaml.ScalarNode):
            return self._scalar(node, path)
        raise refused(path, self._places, f"expected a plain value, a mapping or a list, got the tag {node.tag}")

    def _count(self, node: yaml.Node, path: Path) -> None:
        self._repeated += id(node) in self._seen
        self._seen.add(id(node))
        if self._repeated > MAX_REPEATED:
            raise refused(path, self._places, f"expected aliases that add at most {MAX_REPEATED:,} values")

    def _scalar(self, node: yaml.ScalarNode, path: Path) -> object:
        if node.tag in _NUMBERS and _TRAP.fullmatch(node.value) and not node.style:
            rule = "in YAML a number with a leading 0 is octal, and one with colons counts in sixties"
            raise refused(path, self._places, f"expected a plain number or text in quotes, got {node.value}: {rule}")
        if node.tag == _TIME:
            rule = "it is a time in YAML: write text in quotes"
            raise refused(path, self._places, f"expected a plain value, got {format_value(node.value)}: {rule}")
        try:
            return self._construct(node)
        # PyYAML does not check the text behind a tag: `!!bool maybe` is a KeyError
        except (ValueError, LookupError, AttributeError, self._yaml.constructor.ConstructorError) as error:
            reason = getattr(error, "problem", None) or str(error)
            raise refused(
                path, self._places, f"expected a plain value, got {format_value(node.value)}: {reason}"
            ) from None

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, object]:
        values: dict[str, object] = {}
        merged: dict[str, object] = {}
        for key, item in node.value:
            if key.tag == _MERGE:
                merged = {**self._merged(item, path), **merged}
                continue
            if not isinstance(key, self._yaml.ScalarNode):
                raise refused(path, self._places, "expected text as a key, got a mapping or a list")
            inner = (*path, key.value)
            self._places[inner] = (key.start_mark.line + 1, key.start_mark.column + 1)
            if key.value in values:
                raise refused(inner, self._places, f"the key {format_value(key.value)} stands here twice")
            values[key.value] = self._value(item, inner)
        return {**merged, **values}

    def _merged(self, node: yaml.Node, path: Path) -> dict[str, object]:
        """The values of `<<`: a mapping, or a list of mappings of which the first one counts."""
        items = node.value if isinstance(node, self._yaml.SequenceNode) else [node]
        values: dict[str, object] = {}
        for item in items:
            mapping = self._value(item, path)
            if not isinstance(mapping, dict):
                raise refused(path, self._places, "expected a mapping behind '<<'")
            values = {**mapping, **values}
        return values
