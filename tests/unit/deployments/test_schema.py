from __future__ import annotations

import copy
import json
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given

from rqttl.deployments import Deployment, read_document
from rqttl.errors import InvalidDeployment
from rqttl.options import OPTIONS
from tests.unit.deployments import schema
from tests.unit.deployments.examples import FILES, FOLDER, deployments

VALIDATOR = jsonschema.Draft202012Validator(schema.schema())


def document(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))


def valid(content: object) -> bool:
    return not list(VALIDATOR.iter_errors(content))


def with_option(name: str, value: object) -> dict[str, Any]:
    return {"rqttl": 1, "queues": {"q": {name: value}}}


def test_the_shipped_schema_is_what_the_options_say() -> None:
    assert schema.PATH.read_text(encoding="utf-8") == schema.schema_text()


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(schema.PATH.read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", FILES)
def test_the_schema_takes_each_file_that_the_reader_takes(name: str) -> None:
    assert valid(document(name))


@given(deployments())
def test_the_schema_takes_each_written_deployment(deployment: Deployment) -> None:
    assert valid(deployment.as_document())


def test_the_schema_names_each_option_with_its_meaning() -> None:
    found = schema.schema()["$defs"]

    assert [
        option
        for option in OPTIONS
        if OPTIONS[option].meaning[1:].replace("`", "")
        not in found[f"option-{option.replace('_', '-')}"]["description"]
    ] == []
    assert {name.replace("-", "_") for name in found["queue"]["properties"]} == set(OPTIONS)


WRONG: dict[str, Any] = {
    "no format": {"queues": {}},
    "another format": {"rqttl": 2},
    "an unknown section": {"rqttl": 1, "queue": {}},
    "an unknown option": with_option("max-lenght", 1),
    "a number as a duration": with_option("message-ttl", 60),
    "a duration without a unit": with_option("message-ttl", "60"),
    "a duration of zero where it needs time": with_option("lease", 0),
    "a duration of zero as text where it needs time": with_option("lease", "0"),
    "a negative count": with_option("max-length", -1),
    "a count of zero where it needs one": with_option("max-deliveries", 0),
    "a fraction as a count": with_option("max-length", 1.5),
    "a text as a count": with_option("max-length", "1"),
    "a jitter above one": with_option("redelivery-jitter", 1.5),
    "a multiplier below one": with_option("redelivery-multiplier", 0.5),
    "an unknown choice": with_option("overflow", "drop"),
    "a text as a flag": with_option("never-expire", "yes"),
    "a number as a target": with_option("dead-letter", 1),
    "an empty target for all reasons": with_option("dead-letter", ""),
    "none as a limit of a queue": with_option("max-length", "none"),
    "a bad name": {"rqttl": 1, "queues": {"a b": {}}},
    "a long name": {"rqttl": 1, "queues": {"q" * 129: {}}},
    "no pattern": {"rqttl": 1, "policies": {"p": {"definition": {"lease": "1s"}}}},
    "no definition": {"rqttl": 1, "policies": {"p": {"pattern": "#"}}},
    "an empty definition": {"rqttl": 1, "policies": {"p": {"pattern": "#", "definition": {}}}},
    "an empty pattern": {"rqttl": 1, "policies": {"p": {"pattern": "", "definition": {"lease": "1s"}}}},
    "another kind": {"rqttl": 1, "policies": {"p": {"pattern": "#", "apply-to": "x", "definition": {"lease": "1s"}}}},
}


@pytest.mark.parametrize("what", WRONG)
def test_schema_and_reader_refuse_the_same(what: str) -> None:
    assert not valid(WRONG[what])
    with pytest.raises(InvalidDeployment):
        read_document(copy.deepcopy(WRONG[what]))


SMALL: tuple[Any, ...] = (0, 1, 2, -1, 0.5, 2**53, "0", "1s", "1.5h", "", "x", True, None, [], {})


@pytest.mark.parametrize("option", OPTIONS)
def test_schema_and_reader_agree_about_small_values_of_each_option(option: str) -> None:
    for value in SMALL:
        content = {"rqttl": 1, "policies": {"p": {"pattern": "#", "definition": {option: value}}}}
        try:
            read_document(content)
        except InvalidDeployment:
            assert not valid(content), value
        else:
            assert valid(content), value
