"""The text of a deployment file, YAML or JSON, and a `Deployment`. YAML needs PyYAML, the extra `yaml`."""

from __future__ import annotations

import json
import re
from typing import Any

from rqttl.deployments.deployment import Deployment, read_document
from rqttl.errors import InvalidDeployment
from rqttl.text import format_value, install

#: Tags of values without quotes that mean something else in YAML than most people read: 010, 1:30, 2026-01-01.
_TRAPS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp")
_PLAIN_NUMBER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?")


def read_deployment(text: str | bytes) -> Deployment:
    """Read a deployment file. Raises `InvalidDeployment`, which names the place, the value and the rule.

    Text that is no JSON is read as YAML.
    """
    plain = _decoded(text)
    try:
        if not plain.lstrip("\ufeff \t\r\n").startswith("{"):
            return read_document(_read_yaml(plain))
        try:
            document = json.loads(plain, object_pairs_hook=_without_duplicates)
        except json.JSONDecodeError as error:  # no JSON, but perhaps YAML
            try:
                document = _read_yaml(plain)
            except InvalidDeployment as other:
                place = f"line {error.lineno}, column {error.colno}"
                raise InvalidDeployment(place, f"expected JSON: {error.msg}; as YAML, {other}") from None
        except ValueError as error:  # a number with thousands of digits
            raise InvalidDeployment("the file", f"expected JSON: {error}") from None
        return read_document(document)
    except RecursionError:
        raise InvalidDeployment("the file", "expected fewer levels of mappings and lists") from None


def write_yaml(deployment: Deployment) -> str:
    """A deployment as YAML that `read_deployment` reads. Equal deployments give equal texts."""
    yaml = _yaml()
    document = deployment.as_document()
    return str(yaml.safe_dump(document, sort_keys=False, default_flow_style=None, allow_unicode=True, width=120))


def _decoded(text: object) -> str:
    if not isinstance(text, (str, bytes)):
        raise InvalidDeployment("the file", f"expected text, got {format_value(text)}")
    try:
        return text.decode("utf-8-sig") if isinstance(text, bytes) else text.removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = bytes(text[: error.start]).count(b"\n") + 1  # type: ignore[arg-type]  # only bytes are decoded
        raise InvalidDeployment(f"line {line}", f"expected text in UTF-8: {error.reason}") from None


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    by_key: dict[str, object] = {}
    for key, value in pairs:
        if key in by_key:
            raise InvalidDeployment(format_value(key), "the key stands twice in one object")
        by_key[key] = value
    return by_key


def _yaml() -> Any:
    """PyYAML, if it is installed."""
    try:
        import yaml
    except ImportError:
        rule = f"YAML needs the package PyYAML: {install('yaml')}; JSON needs none"
        raise InvalidDeployment("the file", rule) from None
    return yaml


def _read_yaml(text: str) -> object:
    """Read YAML, with keys as text. Duplicate keys, foreign tags, and numbers and times with a trap are refused."""
    yaml = _yaml()

    class Loader(yaml.SafeLoader):  # type: ignore[misc, name-defined]  # its base comes with an extra
        def mapping(self, node: Any) -> dict[str, object]:
            seen: set[str] = set()
            for key, _ in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    raise yaml.MarkedYAMLError(problem="the key is no text", problem_mark=key.start_mark)
                if key.value in seen:
                    problem = f"the key {format_value(key.value)} stands here twice"
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
                seen.add(key.value)
            self.flatten_mapping(node)  # `<<`
            return {key.value: self.construct_object(value, deep=True) for key, value in node.value}

        def plain(self, node: Any) -> object:
            if not node.style and not _PLAIN_NUMBER.fullmatch(node.value):
                problem = f"{format_value(node.value)} is another number or a time in YAML: write text in quotes"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
            return yaml.SafeLoader.yaml_constructors[node.tag](self, node)

    Loader.add_constructor("tag:yaml.org,2002:map", Loader.mapping)
    for tag in _TRAPS:
        Loader.add_constructor(tag, Loader.plain)
    try:
        document: object = yaml.load(text, Loader=Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "the file"
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        raise InvalidDeployment(place, f"expected YAML: {problem}") from None
    # PyYAML does not check the text behind a tag: `!!bool maybe` is a KeyError
    except (yaml.YAMLError, ValueError, LookupError, AttributeError) as error:
        raise InvalidDeployment("the file", f"expected YAML: {' '.join(str(error).split())}") from None
    return document
