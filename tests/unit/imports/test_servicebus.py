"""ARM templates of Service Bus become queues; each translation is one claim."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rqttl.errors import InvalidImport
from rqttl.imports.report import Imported, Note
from rqttl.imports.servicebus import read_parameter_file, read_template
from rqttl.imports.servicebus.durations import parse_duration

DEFAULTS = {"lease": "1m", "max_deliveries": 10}
LETTERS = {"dead_letter_delivery_limit": "{queue}/dead", "dead_letter_rejected": "{queue}/dead"}


def resource(name: str, kind: str = "queues", **parts: Any) -> dict[str, Any]:
    return {"type": f"Microsoft.ServiceBus/namespaces/{kind}", "name": name, **parts}


def template(*resources: dict[str, Any], **parts: Any) -> str:
    return json.dumps({"resources": list(resources), **parts})


def options(**properties: object) -> dict[str, object]:
    return dict(read_template(template(resource("bus/q", properties=properties))).deployments["bus"].queues["q"])


def notes(imported: Imported, subject: str, setting: str) -> list[Note]:
    return [note for note in imported.notes if note.subject.startswith(subject) and note.setting == setting]


def test_a_queue_without_properties_has_the_defaults_of_service_bus() -> None:
    assert options() == {**DEFAULTS, **LETTERS}


@pytest.mark.parametrize(
    "properties,expected",
    [
        ({"lockDuration": "PT30S"}, {"lease": "30s"}),
        ({"maxDeliveryCount": 1}, {"max_deliveries": 1}),
        ({"defaultMessageTimeToLive": "P14D"}, {"message_ttl": "2w"}),
        ({"defaultMessageTimeToLive": "P10675199DT2H48M5.4775807S"}, {}),
        ({"autoDeleteOnIdle": "PT5M"}, {"auto_delete_on_idle": "5m"}),
        ({"autoDeleteOnIdle": "P10675199DT2H48M5.4775807S"}, {}),
        ({"deadLetteringOnMessageExpiration": True}, {"dead_letter_expired": "{queue}/dead"}),
        ({"deadLetteringOnMessageExpiration": False}, {}),
        ({"requiresDuplicateDetection": True}, {"duplicate_window": "10m"}),
        (
            {"requiresDuplicateDetection": True, "duplicateDetectionHistoryTimeWindow": "P1D"},
            {"duplicate_window": "1d"},
        ),
        ({"duplicateDetectionHistoryTimeWindow": "P1D"}, {}),
        ({"maxSizeInMegabytes": 1}, {"max_length_bytes": 2**20, "overflow": "reject-publish"}),
        ({"maxMessageSizeInKilobytes": 256}, {"max_message_bytes": 2**18}),
        ({"requiresSession": True, "status": "Disabled", "enablePartitioning": True, "forwardTo": "x"}, {}),
    ],
)
def test_a_property_becomes_an_option(properties: dict[str, object], expected: dict[str, object]) -> None:
    imported = read_template(template(resource("bus/q", properties=properties)))

    assert imported.deployments["bus"].queues["q"] == {**DEFAULTS, **LETTERS, **expected}
    assert all(notes(imported, "queue 'bus/q'", name) for name in properties)


def test_forwarded_dead_letters_go_to_the_queue_itself_in_any_case() -> None:
    forward = {"forwardDeadLetteredMessagesTo": "ERRORS", "deadLetteringOnMessageExpiration": True}
    text = template(resource("bus/q", properties=forward), resource("bus/errors"))
    queue = read_template(text).deployments["bus"].queues["q"]

    assert {queue[f"dead_letter_{reason}"] for reason in ("expired", "rejected", "delivery_limit")} == {"errors"}


@pytest.mark.parametrize("target", ["events", "Q"])
def test_dead_letters_that_cannot_be_forwarded_go_to_the_own_dead_letter_queue(target: str) -> None:
    text = template(
        resource("bus/q", properties={"forwardDeadLetteredMessagesTo": target}), resource("bus/events", "topics")
    )
    imported = read_template(text)

    assert imported.deployments["bus"].queues["q"] == {**DEFAULTS, **LETTERS}
    assert [note.kind for note in notes(imported, "queue 'bus/q'", "forwardDeadLetteredMessagesTo")] == ["left out"]


def test_the_dead_letter_queue_never_is_another_queue_of_the_template() -> None:
    queues = read_template(template(resource("bus/q"), resource("bus/q/dead"))).deployments["bus"].queues

    assert queues["q"]["dead_letter_rejected"] == "{queue}/dead-letters"
    assert queues["q/dead"]["dead_letter_rejected"] == "{queue}/dead"


def test_a_long_name_leaves_room_for_its_dead_letter_queue() -> None:
    [name] = read_template(template(resource(f"bus/{'q' * 260}"))).deployments["bus"].queues

    assert len(name) == 123


@pytest.mark.parametrize(
    "kind,name",
    [
        ("topics", "bus/t"),
        ("topics/Subscriptions", "bus/t/s"),
        ("topics/subscriptions/rules", "bus/t/s/r"),
        ("queues/authorizationRules", "bus/q/r"),
        ("networkRuleSets", "bus/default"),
    ],
)
def test_no_queue_is_made_of_a_topic_a_subscription_or_a_rule(kind: str, name: str) -> None:
    imported = read_template(template(resource(name, kind, properties={"filterType": "SqlFilter"})))

    assert imported.deployments["bus"].queues == {}
    assert [note.kind for note in imported.notes if repr(name) in note.subject] == ["left out"]


NAMES = [
    ("[concat(parameters('ns'), '/', variables('q'))]", "prod", "orders"),
    ("[format('{0}/{1}{{x}}', parameters('NS'), 'it''s')]", "prod", "it-s-x-"),
    ("[concat(parameters('ns'), '/', parameters('list')[1].name)]", "prod", "second"),
    ("[concat(parameters('unknown'), '/q')]", "[parameters('unknown')]", "q"),
    ("[concat(uniqueString('a/b'), '/q')]", "[uniqueString('a/b')]", "q"),
]


@pytest.mark.parametrize("name,namespace,queue", NAMES)
def test_names_of_simple_functions_are_computed(name: str, namespace: str, queue: str) -> None:
    listed = {"type": "array", "defaultValue": [{}, {"name": "second"}]}
    parameters = {"ns": {"type": "string", "defaultValue": "prod"}, "list": listed, "unknown": {"type": "string"}}
    imported = read_template(template(resource(name), parameters=parameters, variables={"q": "orders"}))

    assert [*imported.deployments] == [namespace]
    assert [*imported.deployments[namespace].queues] == [queue]


UNKNOWN = [
    ("[concat('bus/', toLower('Q'))]", "toLower"),
    ("[concat('bus/', parameters('no'))]", "no such parameter"),
    ("[format('{0}/{3}', 'bus', 'q')]", "fewer values"),
    ("[concat('bus/', variables('v').nothing)]", "no such member"),
    ("[x(]", "cannot be read"),
    ("[[not an expression]", None),
]


@pytest.mark.parametrize("name,reason", UNKNOWN)
def test_a_queue_whose_name_is_unknown_is_left_out_with_the_reason(name: str, reason: str | None) -> None:
    if reason is None:
        with pytest.raises(InvalidImport, match="a name of 2 parts"):
            read_template(template(resource(name)))
        return
    imported = read_template(template(resource(name), variables={"v": {}}))
    [note] = [note for note in imported.notes if note.setting == "name"]

    assert [queue for deployment in imported.deployments.values() for queue in deployment.queues] == []
    assert note.kind == "left out"
    assert reason.lower() in note.text.lower()


def test_given_parameters_come_before_default_values() -> None:
    text = template(resource("[concat('bus/', parameters('q'))]"), parameters={"q": {"type": "string"}})

    assert [*read_template(text, {"Q": "given"}).deployments["bus"].queues] == ["given"]


def test_a_template_in_a_template_is_read(fixtures: dict[str, str]) -> None:
    imported = read_template(fixtures["servicebus_bicep.json"], {"serviceBusNamespaceName": "bus"})

    assert [*imported.deployments["bus"].queues] == ["tasks", "tasks-2"]
    assert imported.deployments["bus"].queues["tasks-2"]["max_deliveries"] == 7


@pytest.mark.parametrize("extra", [{"copy": {"name": "l", "count": 2}}, {"condition": False}])
def test_loops_and_false_conditions_give_no_queue_but_a_note(extra: dict[str, Any]) -> None:
    imported = read_template(template(resource("bus/q", **extra)))

    assert imported.deployments == {}
    assert [note.setting for note in imported.notes] == [*extra]


@pytest.mark.parametrize(
    "text,milliseconds",
    [
        ("PT30S", 30_000),
        ("P1D", 86_400_000),
        ("P14D", 1_209_600_000),
        ("P2W", 1_209_600_000),
        ("PT0S", 0),
        ("P1DT2H3M4.5S", 93_784_500),
        ("PT0.0001S", 1),
        ("PT1,5S", 1_500),
        ("PT1.5H", 5_400_000),
        ("P10675199DT2H48M5.4775807S", 922_337_203_685_478),
        ("00:05:00", 300_000),
        ("14.00:00:00.5", 1_209_600_500),
        ("PT999999999999.999999999999S", 1_000_000_000_000_000),
    ],
)
def test_a_duration_is_exact_and_rounded_up(text: str, milliseconds: int) -> None:
    assert parse_duration(text, "$") == milliseconds


@pytest.mark.parametrize(
    "text,reason",
    [
        ("P1Y", "years have no fixed length"),
        ("P1M", "months have no fixed length"),
        ("P1Y2M", "years"),
        ("P", "ISO 8601"),
        ("PT", "ISO 8601"),
        ("P1DT", "ISO 8601"),
        ("-PT5S", "ISO 8601"),
        ("5m", "ISO 8601"),
        ("PT1.5H1S", "only the last part"),
        ("PT", "got 'PT'"),
        ("pt5s", "ISO 8601"),
        ("", "ISO 8601"),
        ("PT\u0661S", "ISO 8601"),
        ("PT5S\n", "ISO 8601"),
    ],
)
def test_a_bad_duration_is_refused_with_its_place_and_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidImport, match=reason) as refused:
        read_template(template(resource("bus/q", properties={"lockDuration": text})))

    assert refused.value.place == "$.resources[0].properties.lockDuration"


def test_no_secret_is_in_a_note(fixtures: dict[str, str]) -> None:
    assert "secret-4" in fixtures["servicebus_template.json"]
    assert "secret-4" not in str(read_template(fixtures["servicebus_template.json"]))


TYPED = {
    "ns": {"type": "string"},
    "deliveries": {"type": "int"},
    "duplicates": {"type": "bool"},
    "tier": {"type": "string", "defaultValue": "basic", "allowedValues": ["basic", "premium"]},
    "secret": {"type": "secureString", "defaultValue": ""},
    "more": {"type": "array", "defaultValue": []},
}


def typed_template() -> str:
    properties = {
        "maxDeliveryCount": "[parameters('deliveries')]",
        "requiresDuplicateDetection": "[parameters('duplicates')]",
    }
    return template(resource("[concat(parameters('ns'), '/orders')]", properties=properties), parameters=TYPED)


def test_texts_become_values_by_the_types_of_the_parameters_and_win() -> None:
    imported = read_template(typed_template(), {"ns": "file", "DELIVERIES": 4}, {"NS": "line", "duplicates": "true"})

    options = imported.deployments["line"].queues["orders"]
    assert options["max_deliveries"] == 4
    assert options["duplicate_window"]


def test_a_missing_value_is_noted_with_the_name_of_the_parameter() -> None:
    notes = read_template(typed_template(), {"ns": "bus"}).notes

    assert any("the parameter 'deliveries' has no default value: give it one with --parameter" in n.text for n in notes)


@pytest.mark.parametrize(
    "texts,message",
    [
        ({"nss": "x"}, "parameter 'nss': the template has no such parameter; did you mean ns?"),
        ({"deliveries": "many"}, "parameter 'deliveries': expected a whole number, got 'many'"),
        ({"deliveries": "true"}, "parameter 'deliveries': expected a whole number, got true"),
        ({"duplicates": "1"}, "parameter 'duplicates': expected true or false, got 1"),
        ({"more": "{}"}, "parameter 'more': expected a JSON list, got an object"),
        ({"tier": "gold"}, "parameter 'tier': expected one of 'basic', 'premium', got 'gold'"),
    ],
)
def test_a_bad_value_for_a_parameter_is_refused(texts: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidImport) as refused:
        read_template(typed_template(), {}, texts)

    assert str(refused.value) == message


def test_no_error_shows_the_value_of_a_secret() -> None:
    with pytest.raises(InvalidImport, match="got another value"):
        read_template(typed_template(), {"secret": 12345})


def test_a_parameter_file_gives_values_and_names_those_of_a_key_vault() -> None:
    vault = {"reference": {"keyVault": {"id": "x"}, "secretName": "n"}}
    text = json.dumps(
        {"$schema": "x", "contentVersion": "1.0.0.0", "parameters": {"ns": {"value": "bus"}, "duplicates": vault}}
    )
    imported = read_template(typed_template(), read_parameter_file(text))

    assert list(imported.deployments) == ["bus"]
    assert any("the value of the parameter 'duplicates' is in a key vault" in note.text for note in imported.notes)


@pytest.mark.parametrize(
    "text,message",
    [
        ("{}", "$: expected a parameter file of ARM, which has 'parameters'"),
        ('{"parameters": []}', "$.parameters: expected an object, got a list"),
        ('{"parameters": {"a": 5}}', "$.parameters.a: expected an object, got 5"),
        ('{"parameters": {"a": {"default": 5}}}', "$.parameters.a: expected 'value' or 'reference'"),
    ],
)
def test_a_bad_parameter_file_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(InvalidImport) as refused:
        read_parameter_file(text)

    assert str(refused.value) == message
