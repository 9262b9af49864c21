"""Values for the parameters of an ARM template: from a parameter file, and from texts of a command line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rqttl.errors import InvalidImport
from rqttl.imports.servicebus.values import Unknown
from rqttl.imports.source import at, describe, load, optional_object, read_object
from rqttl.text import did_you_mean

_TEXTS = ("string", "securestring")
_TYPES: Mapping[str, tuple[type | tuple[type, ...], str]] = {
    "string": (str, "text"),
    "securestring": (str, "text"),
    "int": (int, "a whole number"),
    "bool": (bool, "true or false"),
    "object": (dict, "a JSON object"),
    "secureobject": (dict, "a JSON object"),
    "array": (list, "a JSON list"),
}


def read_parameter_file(text: str) -> dict[str, object]:
    """Read a parameter file of ARM: `{"parameters": {"NAME": {"value": ...}}}`. Raises `InvalidImport`.

    A value that a key vault has is `Unknown`.
    """
    file = load(text, "a parameter file")
    if "parameters" not in file:
        raise InvalidImport("$", "expected a parameter file of ARM, which has 'parameters'")
    values: dict[str, object] = {}
    for name, entry in read_object(file["parameters"], "$.parameters").items():
        place = at("$.parameters", name)
        known = read_object(entry, place)
        if "value" in known:
            values[name] = known["value"]
        elif "reference" in known:
            values[name] = Unknown(f"parameters('{name}')", f"the value of the parameter {name!r} is in a key vault")
        else:
            raise InvalidImport(place, "expected 'value' or 'reference'")
    return values


def assigned(template: Mapping[str, Any], values: Mapping[str, object], texts: Mapping[str, str]) -> dict[str, object]:
    """Check values for the parameters of a template. `texts` win over `values`, and the parameter's type reads them.

    Raises `InvalidImport`, which names the parameter.
    """
    declared = optional_object(template, "parameters", "$")
    names = {name.lower(): name for name in declared}
    read: dict[str, object] = {}
    for name, value in (*values.items(), *texts.items()):
        known = names.get(name.lower())
        if known is None:
            hint = did_you_mean(name, names.values(), f"the parameters are {', '.join(names.values()) or 'none'}")
            raise InvalidImport(f"parameter {name!r}", f"the template has no such parameter{hint}")
        parameter = read_object(declared[known], at("$.parameters", known))
        typed = _read(parameter, value) if name in texts and isinstance(value, str) else value
        _check(known, parameter, typed)
        read[known] = typed
    return read


def _read(parameter: Mapping[str, Any], text: str) -> object:
    """The value of a text, by the type of its parameter. A text that is none of this type is left as it is."""
    if _type(parameter) in _TEXTS or _type(parameter) not in _TYPES:
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _check(name: str, parameter: Mapping[str, Any], value: object) -> None:
    if isinstance(value, Unknown):
        return
    kind, words = _TYPES.get(_type(parameter), (object, ""))
    value_text = "another value" if _type(parameter).startswith("secure") else describe(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        raise InvalidImport(f"parameter {name!r}", f"expected {words}, got {value_text}")
    allowed = parameter.get("allowedValues")
    if isinstance(allowed, list) and value not in allowed:
        raise InvalidImport(
            f"parameter {name!r}", f"expected one of {', '.join(map(describe, allowed))}, got {value_text}"
        )


def _type(parameter: Mapping[str, Any]) -> str:
    return str(parameter.get("type")).lower()
