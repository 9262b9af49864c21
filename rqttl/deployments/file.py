"""The text of a deployment file, YAML or JSON, and a `Deployment`."""

from __future__ import annotations

import json

from rqttl.deployments.deployment import Deployment
from rqttl.deployments.document import read_document
from rqttl.deployments.places import Path
from rqttl.deployments.yaml_text import read_yaml
from rqttl.errors import InvalidDeployment
from rqttl.text import format_value

#: Bytes of the largest file.
MAX_SIZE = 64 * 2**20


def read_deployment(text: str | bytes) -> Deployment:
    """Read a deployment file. Raises `InvalidDeployment`, which names the place, the value and the rule.

    Text that is no JSON is read as YAML.
    """
    plain = _decoded(text)
    if not plain.lstrip("\ufeff \t\r\n").startswith("{"):
        return read_document(*read_yaml(plain))
    try:
        document = json.loads(plain, object_pairs_hook=_without_duplicates, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        return read_document(*_braces_of_yaml(plain, error))
    except (ValueError, RecursionError) as error:  # a number with thousands of digits, or deep nesting
        reason = "too many levels" if isinstance(error, RecursionError) else str(error)
        raise InvalidDeployment("the file", f"expected JSON: {reason}") from None
    return read_document(document)


def write_yaml(deployment: Deployment) -> str:
    """A deployment as YAML that `read_deployment` reads. Equal deployments give equal texts."""
    import yaml

    document = deployment.as_document()
    return yaml.safe_dump(document, sort_keys=False, default_flow_style=None, allow_unicode=True, width=120)


def write_json(deployment: Deployment) -> str:
    """A deployment as JSON that `read_deployment` reads. Equal deployments give equal texts."""
    return json.dumps(deployment.as_document(), indent=2) + "\n"


def _decoded(text: object) -> str:
    if not isinstance(text, (str, bytes)):
        raise InvalidDeployment("the file", f"expected text, got {format_value(text)}")
    if len(text) > MAX_SIZE:
        raise InvalidDeployment("the file", f"expected at most {MAX_SIZE:,} bytes, got {len(text):,}")
    try:
        return text.decode("utf-8-sig") if isinstance(text, bytes) else text.removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = bytes(text[: error.start]).count(b"\n") + 1  # type: ignore[arg-type]  # only bytes are decoded
        raise InvalidDeployment(f"line {line}", f"expected text in UTF-8: {error.reason}") from None


def _braces_of_yaml(text: str, error: json.JSONDecodeError) -> tuple[object, dict[Path, tuple[int, int]]]:
    """Read text in braces that is no JSON, but perhaps YAML."""
    try:
        return read_yaml(text)
    except InvalidDeployment as other:
        place = f"line {error.lineno}, column {error.colno}"
        raise InvalidDeployment(place, f"expected JSON: {error.msg}; as YAML, {other}") from None


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    by_key: dict[str, object] = {}
    for key, value in pairs:
        if key in by_key:
            raise InvalidDeployment(format_value(key), "the key stands twice in one object")
        by_key[key] = value
    return by_key


def _no_constant(name: str) -> object:
    raise InvalidDeployment("the file", f"expected JSON, got the number {name}")
