import json
import sys

import pytest
from hypothesis import given

from rqttl.deployments import Deployment, read_deployment, write_yaml
from rqttl.errors import InvalidDeployment
from rqttl.filters import canonical_json
from rqttl.options import DECLARED_ONLY, OPTIONS
from tests.unit.deployments.examples import FILES, FOLDER, deployments

START = "rqttl: 1\n"


def read(name: str) -> Deployment:
    return read_deployment((FOLDER / name).read_bytes())


def refusal(text: str | bytes) -> str:
    with pytest.raises(InvalidDeployment) as refused:
        read_deployment(text)
    return str(refused.value)


def as_json(deployment: Deployment) -> str:
    return json.dumps(deployment.as_document())


def test_a_yaml_or_json_file_becomes_queues_and_policies() -> None:
    found = read("example.yaml")

    assert found == read("example.json")
    assert found.queues["orders"].non_default == {"message_ttl": 60_000, "max_length": 1000}
    assert found.queues["orders/dead"].non_default == {}
    assert found.policies["short-lived"].definition == {"message_ttl": 300_000}
    assert found.policies["short-lived"].pattern == "orders.#"
    assert found.operator_policies == {}


def test_each_option_is_read_with_hyphens_and_with_underscores() -> None:
    found = read("every_option.yaml")

    assert set(found.queues["billing.orders"].non_default) == OPTIONS.keys() - DECLARED_ONLY
    assert set(found.queues["merged"].non_default) == OPTIONS.keys() - {"never_expire"}
    assert set(found.policies["all-of-them"].definition) == OPTIONS.keys() - DECLARED_ONLY
    assert found.queues["snake_case"].non_default == {"message_ttl": 1000, "max_length": 0}
    assert found.policies["none-of-them"].definition == dict.fromkeys(
        ("message_ttl", "max_length", "dead_letter_expired", "overflow")
    )
    assert found.operator_policies["ceiling"].operator


def test_a_queue_with_bindings_is_a_topic() -> None:
    found = read("topics.yaml").queues

    assert found["news"].non_default == {"message_ttl": 3_600_000}
    assert canonical_json(found["news"].bindings) == canonical_json(
        {
            "news/all": [],
            "news/eu": [{"subject": "orders.eu.#"}],
            "news/large": [{"size": "large", "total": 7, "region": {"not": ["eu", "us"]}, "on": True}],
            "news/either": [{"size": 1.5e300}, {"subject": "a.*"}],
            "rest": [{"unmatched": True}],
        }
    )
    assert (found["rest"].bindings, found["news/all"].bindings) == ({}, None)


def test_a_merge_key_of_yaml_brings_options_and_own_ones_beat_them() -> None:
    merged = read("every_option.yaml").queues["merged"]

    assert merged.dead_letter == "other"
    assert merged.never_expire is False
    assert merged.lease == 300_000


def test_a_name_that_yaml_takes_for_another_type_stays_text() -> None:
    found = read_deployment(START + "queues: {no: {}, 1: {}, null: {}, 2026-01-01: {}}")

    assert set(found.queues) == {"no", "1", "null", "2026-01-01"}


def test_an_empty_section_is_no_section() -> None:
    assert read_deployment(START + "queues:\npolicies:\n") == read_deployment('{"rqttl": 1}') == Deployment()


def test_a_byte_order_mark_is_no_part_of_the_file() -> None:
    assert read_deployment(b'\xef\xbb\xbf{"rqttl": 1}') == read_deployment("\ufeffrqttl: 1") == Deployment()


@pytest.mark.parametrize("name", FILES)
def test_a_written_file_is_read_as_the_same_deployment(name: str) -> None:
    found = read(name)

    assert read_deployment(write_yaml(found)) == read_deployment(as_json(found)) == found


@pytest.mark.spec("OPP-11")
@given(deployments())
def test_any_deployment_survives_writing_and_reading(deployment: Deployment) -> None:
    assert read_deployment(write_yaml(deployment)) == read_deployment(as_json(deployment)) == deployment


def test_equal_deployments_give_equal_texts_with_hyphens_and_units() -> None:
    forwards = read_deployment(START + "queues: {a: {max-length: 1, lease: 1m}, b: {}}")
    backwards = read_deployment(START + "queues: {b: {}, a: {lease: 60000ms, max_length: 1}}")

    assert write_yaml(forwards) == write_yaml(backwards)
    assert "a: {lease: 1m, max-length: 1}" in write_yaml(forwards)
    assert "apply-to: queues" in write_yaml(read("example.yaml"))


BAD_YAML = {
    "queues: {q: {max-length: 1}}": "the file: expected 'rqttl: 1'",
    "rqttl: 2": "rqttl: expected 'rqttl: 1', the version of the format that this rqttl reads, got 2",
    "": "the file: expected a mapping, got None",
    "- rqttl": "expected a mapping, got list",
    START + "operator_polices: {}": "no such key; did you mean operator-policies?",
    START + "zzz: {}": "zzz: no such key; the keys are rqttl, namespace, queues",
    START + "queues: {}\nqueues: {}": "line 3, column 1: expected YAML: the key 'queues' stands here twice",
    START + "queues: {q: {max-length: 1, max-length: 2}}": "line 2, column 29: expected YAML: the key 'max-length'",
    START + "queues: {q: {max-length: 1, max_length: 2}}": "given twice, with a hyphen and with an underscore",
    START + "queues: [a]": "queues: expected a mapping, got list",
    START + "queues: {a b: {}}": "queues.a b: queue name: expected 1 to 128 of",
    START + "queues:\n  q:\n    max-lenght: 1": "queues.q.max-lenght: max-lenght: no such queue o",
    START + "queues: {q: {max-length: ten}}": "queues.q.max-length: max_length: expected a whole",
    START + "queues: {q: {message-ttl: 60}}": "message_ttl: expected a duration with a unit, got",
    START + "queues: {q: {message-ttl: 2026-01-01}}": "'2026-01-01' is another number or a time",
    START + "queues: {q: {dead-letter: q}}": "queues.q: dead_letter: queue 'q' cannot be its own",
    START + "queues: {q: {min-ttl: 2s, max-ttl: 1s}}": "min_ttl: 2s is more than max_ttl",
    START + "queues: {q: {dead-letter: none}}": "'none' stands in policies only; leave the option out",
    START
    + "queues: {q: {bindings: {}, forward-to: a}}": "queues.q: forward_to: 'q' is a topic: bind 'a' to it instead",
    START + "queues: {q: {bindings: [a]}}": "queues.q.bindings: expected a mapping, got list",
    START + "queues: {q: {bindings: {a b: }}}": "queues.q.bindings.a b: queue name: expected 1 to 128 of",
    START + "queues: {q: {bindings: {q: }}}": "queues.q.bindings.q: expected another queue than the topic",
    START + "queues: {q: {bindings: {a: {b: {}}}}}": "queues.q.bindings.a: filter: header 'b': expected one of the op",
    START + "queues: {q: {bindings: {a: a.b*}}}": "queues.q.bindings.a: filter: header 'subject': expected each '*'",
    START + "queues: {q: {bindings: {a: 2026-01-01}}}": "is another number or a time",
    START
    + f"queues: {{q: {{bindings: {dict.fromkeys(map(str, range(1001)), '')}}}}}": "at most 1,000 bound queues, got",
    START + "policies: {p: {pattern: '#', definition: {bindings: {}}}}": "bindings: no such queue option",
    START + "queues: {q: 5}": "queues.q: expected a mapping, got int 5",
    START + "policies: {p: {}}": "policies.p: expected the key 'pattern'",
    START + "policies: {p: {pattern: '#'}}": "policies.p: expected the key 'definition'",
    START + "policies: {p: {pattern: '#', definition: {}}}": "expected at least one option, got none",
    START + "policies: {p: {pattern: '#.a', definition: {lease: 1s}}}": "expected '#' as the last word only, got '#.a'",
    START + "policies: {p: {pattern: '#', definition: {lease: 0}}}": "policies.p.definition.lease",
    START + "policies: {p: {pattern: '#', priority: high, definition: {lease: 1s}}}": "priority: expected a whole nu",
    START + "policies: {p: {pattern: '#', syntax: glob, definition: {lease: 1s}}}": "syntax: expected one of wildcar",
    START + "policies: {p: {pattern: '#', apply-to: topics, definition: {lease: 1s}}}": "apply_to: expected 'queues'",
    START + "operator-policies: {p: {pattern: '(', syntax: regex, definition: {lease: 1s}}}": "operator policy 'p':",
    START + "policies: {a b: {pattern: '#', definition: {lease: 1s}}}": "policies.a b: name of t",
    START + "queues: {q: {max-length: 1": "expected YAML: while parsing a flow mapping",
    START + "queues:\n\t- a": "line 3, column 1: expected YAML:",
    START + "---\nrqttl: 1": "expected YAML: expected a single document",
    START + "queues: &a {q: *a}": "found unconstructable recursive node",
    START + "queues: *nothing": "line 2, column 9: expected YAML: found undefined alias",
    START + "queues: !!python/object:os.system {}": "could not determine a constructor for the tag",
    START + "queues: {q: {dead-letter: !!python/name:os.system ''}}": "could not determine a constructor for the tag",
    START + "queues: {q: {never-expire: !!bool maybe}}": "the file: expected YAML: 'maybe'",
    START + "queues: {? [a] : {}}": "line 2, column 12: expected YAML: the key is not text",
    START + "queues: {q: {<<: 5}}": "expected a mapping or list of mappings for merging",
    START + "queues: {q: {max-length: " + "9" * 5000 + "}}": "the file: expected YAML: Exceeds the limit",
    START + "queues: " + "[" * 100_000: "expected fewer levels of mappings and lists",
    START + "queues: \x00": "expected YAML:",
}


@pytest.mark.spec("POL-20")
@pytest.mark.parametrize("text", BAD_YAML)
def test_a_bad_yaml_file_is_refused_with_its_place_and_its_rule(text: str) -> None:
    assert BAD_YAML[text] in refusal(text)


BAD_JSON = {
    '{"rqttl": 1, "queues": {"q": {"max-length": 1, "max-length": 2}}}': "'max-length': the key stands twice",
    '{"rqttl": 1, "queues": {"q": {"max-length": true}}}': "queues.q.max-length: max_length: expected a whole number",
    '{"rqttl": 1, "queues": {"q": {"max-length": NaN}}}': "queues.q.max-length: max_length: expected a whole number",
    '{"rqttl": 1,\n "queues": {"q": ]}': "line 2, column 18: expected JSON: Expecting value",
    '{"rqttl": 1, "queues": {"q": {"lease": ' + "1" * 5000 + "}}}": "the file: expected JSON: Exceeds the limit",
    '{"a":' * 100_000: "expected fewer levels of mappings and lists",
}


@pytest.mark.parametrize("text", BAD_JSON)
def test_a_bad_json_file_is_refused_with_its_place_and_its_rule(text: str) -> None:
    assert BAD_JSON[text] in refusal(text)


def test_what_is_no_text_is_refused() -> None:
    assert refusal(b"rqttl: 1\nqueues: {\xff: {}}") == "line 2: expected text in UTF-8: invalid start byte"
    assert refusal(5) == "the file: expected text, got int 5"  # type: ignore[arg-type]  # the wrong type is the test


def test_a_billion_laughs_cost_nothing() -> None:
    levels = ["a0: &a0 {max-length: 1}"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]

    assert refusal("\n".join(levels)).startswith("a0: no such key")


def test_without_pyyaml_a_line_names_the_extra_and_json_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)

    assert read("example.json").queues
    expected = r"^the file: YAML needs the package PyYAML: `pip install '.\[yaml\]'` .*; JSON needs none$"
    with pytest.raises(InvalidDeployment, match=expected):
        read("example.yaml")
    with pytest.raises(InvalidDeployment, match=expected):
        write_yaml(Deployment())
