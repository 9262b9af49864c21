"""The JSON Schema of deployment files, made from the table of options. `python -m tests.unit.test_docs` writes it."""

from __future__ import annotations

import json
from typing import Any

from rqttl.deployments.deployment import FORMAT
from rqttl.names import _MAX_NAME, _NAME
from rqttl.options import _MAX_COUNT, OPTIONS, Option
from rqttl.policies.patterns import MAX_BYTES, SYNTAXES
from rqttl.policies.policy import MAX_PRIORITY, NONE
from tests.repository import ROOT
from tests.unit.option_reference import default_of, takes, values_of

PATH = ROOT / "rqttl" / "deployments" / "schema.json"

_DURATION = r"^\s*\d{1,18}(\.\d{1,25})?\s*(ms|s|m|h|d|w)\s*$"
_ZERO = r"^\s*0\s*$"


def kebab(name: str) -> str:
    return name.replace("_", "-")


def duration(option: Option) -> dict[str, Any]:
    texts: list[dict[str, Any]] = [{"type": "string", "pattern": _DURATION}]
    return {"anyOf": [*texts, {"type": "string", "pattern": _ZERO}, {"const": 0}]} if takes(option, 0) else texts[0]


def number(option: Option) -> dict[str, Any]:
    kind = "integer" if option.kind == "count" else "number"
    most = _MAX_COUNT if takes(option, _MAX_COUNT) else 1
    return {"type": kind, "minimum": 0 if takes(option, 0) else 1, "maximum": most}


def value(option: Option) -> dict[str, Any]:
    """The values of an option."""
    if option.kind == "duration":
        return duration(option)
    if option.kind in ("count", "number"):
        return number(option)
    if option.kind == "choice":
        return {"enum": list(option.choices)}
    if option.kind == "target":
        return {"type": "string", "minLength": 0 if takes(option, "") else 1}
    return {"type": "boolean"}


def described(option: Option) -> dict[str, Any]:
    text = (
        f"{option.meaning[:1].upper()}{option.meaning[1:]}. Value: {values_of(option)}. Default: {default_of(option)}."
    )
    return {"description": text.replace("`", ""), **value(option)}


def options(values: dict[str, dict[str, Any]], **more: Any) -> dict[str, Any]:
    """A mapping of options. An editor offers the names with hyphens; those with underscores are valid, too."""
    patterns = {f"^{name}$": values[name] for name in values if "_" in name}
    return {
        "type": "object",
        "properties": {kebab(name): found for name, found in values.items()},
        "patternProperties": patterns,
        "additionalProperties": False,
        **more,
    }


def ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}"}


def policy() -> dict[str, Any]:
    apply_to = {"description": "Kind of objects that the policy is for.", "const": "queues"}
    bounds = {"minimum": -MAX_PRIORITY, "maximum": MAX_PRIORITY}
    return {
        "type": "object",
        "properties": {
            "pattern": {
                "description": "Names of queues: words with dots between them, * for one word, # for any number.",
                "type": "string",
                "minLength": 1,
                "maxLength": MAX_BYTES,
            },
            "syntax": {"description": "Syntax of the pattern.", "enum": list(SYNTAXES)},
            "priority": {"description": "A policy with a higher priority comes first.", "type": "integer", **bounds},
            "apply-to": apply_to,
            "definition": ref("definition"),
        },
        "patternProperties": {"^apply_to$": apply_to},
        "required": ["pattern", "definition"],
        "additionalProperties": False,
    }


def section(description: str, values: dict[str, Any]) -> dict[str, Any]:
    names = {"maxLength": _MAX_NAME, "pattern": f"^{_NAME.pattern}$"}
    return {
        "description": description,
        "type": ["object", "null"],
        "propertyNames": names,
        "additionalProperties": values,
    }


def schema() -> dict[str, Any]:
    """The whole schema."""
    operator = section("Operator policies by name. They beat declared options.", ref("policy"))
    kinds = {f"option-{kebab(option.name)}": described(option) for option in OPTIONS.values()}
    plain = {
        option.name: {"anyOf": [ref(f"option-{kebab(option.name)}"), {"type": "null"}]} for option in OPTIONS.values()
    }
    stopping = {name: {"anyOf": [*one["anyOf"], {"const": NONE}]} for name, one in plain.items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Deployment of rqttl",
        "description": "Queues, policies and operator policies, for `rqttl apply`.",
        "type": "object",
        "properties": {
            "$schema": {"type": "string"},
            "rqttl": {"description": "Version of the format.", "const": FORMAT},
            "queues": section("Declared options of queues, by name.", ref("queue")),
            "policies": section("Policies by name.", ref("policy")),
            "operator-policies": operator,
        },
        "patternProperties": {"^operator_policies$": operator},
        "required": ["rqttl"],
        "additionalProperties": False,
        "$defs": {
            **kinds,
            "queue": options(plain, type=["object", "null"]),
            "definition": options(stopping, minProperties=1),
            "policy": policy(),
        },
    }


def schema_text() -> str:
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"
