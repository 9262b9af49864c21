"""ARM templates of Service Bus become queues; each translation is one claim."""

import json
from typing import Any

import pytest

from rqttl.imports.notes import Imported, Note
from rqttl.imports.servicebus import read_resources
from rqttl.imports.source import read_duration as parse_duration

DEFAULTS = {"lease": "1m", "max_deliveries": 10}
EXPRESSION = "[concat(parameters('ns'), '/q')]"
LETTERS = {"dead_letter_delivery_limit": "{queue}/dead", "dead_letter_rejected": "{queue}/dead"}


def resource(name: str, kind: str = "queues", **parts: Any) -> dict[str, Any]:
    return {"type": f"Microsoft.ServiceBus/namespaces/{kind}", "name": name, **parts}


def template(*resources: dict[str, Any], **parts: Any) -> str:
    return json.dumps({"resources": list(resources), **parts})


def notes(imported: Imported, subject: str, setting: str) -> list[Note]:
    return [note for note in imported.notes if note.subject.startswith(subject) and note.setting == setting]


@pytest.mark.parametrize(
    "properties,expected",
    [
        ({}, {}),
        ({"lockDuration": "PT30S"}, {"lease": "30s"}),
        ({"maxDeliveryCount": 1}, {"max_deliveries": 1}),
        ({"defaultMessageTimeToLive": "P14D"}, {"message_ttl": "2w"}),
        ({"defaultMessageTimeToLive": "1 day, 0:00:00"}, {"message_ttl": "1d"}),
        ({"defaultMessageTimeToLive": "P10675199DT2H48M5.4775807S"}, {}),
        ({"autoDeleteOnIdle": "PT5M"}, {"auto_delete_on_idle": "5m"}),
        ({"autoDeleteOnIdle": "P10675199DT2H48M5.4775807S"}, {}),
        ({"deadLetteringOnMessageExpiration": True}, {"dead_letter_expired": "{queue}/dead"}),
        ({"deadLetteringOnMessageExpiration": "true"}, {"dead_letter_expired": "{queue}/dead"}),
        ({"deadLetteringOnMessageExpiration": False}, {}),
        ({"requiresDuplicateDetection": True}, {"duplicate_window": "10m"}),
        ({"requiresDuplicateDetection": "True", "maxDeliveryCount": "10"}, {"duplicate_window": "10m"}),
        (
            {"requiresDuplicateDetection": True, "duplicateDetectionHistoryTimeWindow": "P1D"},
            {"duplicate_window": "1d"},
        ),
        ({"duplicateDetectionHistoryTimeWindow": "P1D"}, {}),
        ({"maxSizeInMegabytes": 1}, {"max_length_bytes": 2**20, "overflow": "reject-publish"}),
        ({"maxMessageSizeInKilobytes": 256}, {"max_message_bytes": 2**18}),
        ({"requiresSession": True, "status": "SendDisabled", "enablePartitioning": True}, {}),
        ({"forwardTo": "x"}, {"forward_to": "x"}),
        ({"status": "Active"}, {}),
        ({"status": "ReceiveDisabled"}, {"paused": True}),
        ({"status": "Disabled"}, {"paused": True}),
    ],
)
def test_a_property_becomes_an_option(properties: dict[str, object], expected: dict[str, object]) -> None:
    imported = read_resources(template(resource("bus/q", properties=properties)))

    assert imported.deployments["bus"].queues["q"] == {**DEFAULTS, **LETTERS, **expected}
    assert all(notes(imported, "queue 'bus/q'", name) for name in properties)


def test_forwarded_dead_letters_go_to_the_queue_itself_in_any_case() -> None:
    forward = {"forwardDeadLetteredMessagesTo": "ERRORS", "deadLetteringOnMessageExpiration": True}
    text = template(resource("bus/q", properties=forward), resource("bus/errors"))
    queue = read_resources(text).deployments["bus"].queues["q"]

    assert {queue[f"dead_letter_{reason}"] for reason in ("expired", "rejected", "delivery_limit")} == {"errors"}


def test_dead_letters_that_cannot_be_forwarded_go_to_the_own_dead_letter_queue() -> None:
    imported = read_resources(template(resource("bus/q", properties={"forwardDeadLetteredMessagesTo": "Q"})))

    assert imported.deployments["bus"].queues["q"] == {**DEFAULTS, **LETTERS}
    assert [note.kind for note in notes(imported, "queue 'bus/q'", "forwardDeadLetteredMessagesTo")] == ["left out"]


def test_the_dead_letter_queue_has_a_free_and_valid_name() -> None:
    resources = [resource(f"bus/{name}") for name in ("q", "q/dead", "q" * 260)]
    queues = read_resources(template(*resources)).deployments["bus"].queues

    assert queues["q"]["dead_letter_rejected"] == "{queue}/dead-letters"
    assert queues["q/dead"]["dead_letter_rejected"] == "{queue}/dead"
    assert max(map(len, queues)) == 123


@pytest.mark.parametrize("kind,name", [("queues/authorizationRules", "bus/q/r"), ("networkRuleSets", "bus/default")])
def test_a_resource_that_is_neither_a_queue_nor_a_topic_is_left_out(kind: str, name: str) -> None:
    imported = read_resources(template(resource(name, kind)))

    assert imported.deployments["bus"].queues == {}
    assert [note.kind for note in imported.notes if repr(name) in note.subject] == ["left out"]


def subscribed(*rules: dict[str, Any], topic: dict[str, Any] | None = None, **properties: Any) -> Imported:
    """The import of a topic with one subscription, its properties and its rules."""
    named = [
        resource(f"bus/a/news/eu/r{i}", "topics/subscriptions/rules", properties=rule) for i, rule in enumerate(rules)
    ]
    subscription = resource("bus/A/News/eu", "topics/subscriptions", properties=properties)
    return read_resources(template(*named, subscription, resource("bus/a/news", "topics", properties=topic or {})))


def sql(text: object) -> dict[str, Any]:
    return {"filterType": "SqlFilter", "sqlFilter": {"sqlExpression": text, "compatibilityLevel": 20}}


def correlation(**conditions: object) -> dict[str, Any]:
    return {"filterType": "CorrelationFilter", "correlationFilter": conditions}


RULES: list[tuple[list[dict[str, Any]], list[dict[str, Any]]]] = [
    ([], []),
    ([sql("1=1")], []),
    ([correlation(label="orders.created")], [{"subject": ["orders.created"]}]),
    ([correlation(label="a*b..", messageId=None)], [{"subject": ["a*b.."]}]),
    ([correlation(to="7", properties={"size": "l"}, requiresPreprocessing=False)], [{"size": "l", "to": "7"}]),
    ([sql("sys.Label = 'x' AND user.a IN ('l', 'm')"), sql("b=1")], [{"a": ["l", "m"], "subject": ["x"]}, {"b": 1}]),
    ([{**sql("a <> 1"), "action": {"sqlExpression": "SET b = 2"}}], [{"a": {"not": 1}}]),
    ([{**sql("a = 1"), "action": {}}], [{"a": 1}]),
]


@pytest.mark.parametrize("given, expected", RULES)
def test_the_rules_of_a_subscription_become_one_filter(given: list[dict[str, Any]], expected: object) -> None:
    imported = subscribed(*given)
    queues = imported.deployments["bus"].queues

    assert queues["a/news"] == {"bindings": {"a/news/eu": expected}}
    assert queues["a/news/eu"] == {**DEFAULTS, **LETTERS}
    acts = any(one.get("action") for one in given)
    assert [note.setting for note in imported.notes if note.costs] == ["action"] * acts
    differs = [note.kind for note in imported.notes if "without the header, too" in note.text]
    assert differs == ["left out"] * ("'not'" in str(expected))


@pytest.mark.parametrize(
    "rule, reason",
    [
        (sql("price > 7"), "and not 'price > 7'"),
        (sql("1=0"), "and not '1=0'"),
        (sql("sys.EnqueuedTimeUtc = 'x'"), "has no sys.EnqueuedTimeUtc"),
        (sql(7), "expected a text, got 7"),
        ({"filterType": "SqlFilter"}, "expected an object, got null"),
        (correlation(label="orders.*"), "expected a pattern alone"),
        (correlation(label="x", properties={"subject": "y"}), "a rule of rqttl has one condition on a header"),
        (correlation(properties={"unmatched": True}), "means something else in a filter"),
        (correlation(properties={"a": {}}), "true or false, got dict"),
        (correlation(properties={"a": EXPRESSION}), "the import computes no expressions"),
        (correlation(other="x"), "a message of rqttl has no other"),
    ],
)
def test_a_rule_that_no_filter_can_say_is_left_out_with_its_text_and_binds_nothing(
    rule: dict[str, Any], reason: str
) -> None:
    imported = subscribed(rule)

    assert imported.deployments["bus"].queues["a/news"] == {"bindings": {}}
    (note,) = (note for note in imported.notes if note.costs)
    assert (note.kind, note.subject) == ("left out", "rule 'bus/a/news/eu/r0'")
    assert reason in note.text
    assert len(rule) == 1 or json.dumps(rule[note.setting], sort_keys=True) == note.value


def test_a_long_topic_leaves_room_for_its_subscriptions() -> None:
    long = resource(f"bus/{'t' * 260}/{'a' * 50}", "topics/subscriptions")
    [topic, subscription] = (
        read_resources(template(resource(f"bus/{'t' * 260}", "topics"), long)).deployments["bus"].queues
    )

    assert (len(topic), subscription) == (72, f"{topic}/{'a' * 50}")


def test_a_subscription_that_service_bus_lists_without_its_rules_gets_nothing(fixtures: dict[str, str]) -> None:
    listed = [one for one in json.loads(fixtures["servicebus_az.json"]) if not one["type"].endswith("rules")]
    imported = read_resources(json.dumps(listed))

    assert imported.deployments["shop"].queues["a/t"] == {"bindings": {}}
    assert [note.setting for note in imported.notes if note.costs] == ["rules"]


def test_a_topic_gives_its_lifetime_to_subscriptions_without_one() -> None:
    """Row 10 of the edge cases."""
    idle = {"autoDeleteOnIdle": "PT10M", "requiresDuplicateDetection": True, "maxSizeInMegabytes": 1}
    idle["status"] = "Disabled"
    found = [
        subscribed(topic=idle, **own).deployments["bus"].queues
        for own in ({}, {"autoDeleteOnIdle": "P10675199DT2H48M5.4775807S"}, {"autoDeleteOnIdle": "PT5M"})
    ]

    assert [queues["a/news/eu"]["auto_delete_on_idle"] for queues in found] == ["10m", "10m", "5m"]
    topic = {"auto_delete_on_idle": "10m", "duplicate_window": "10m", "bindings": {"a/news/eu": []}}
    assert found[0]["a/news"] == topic


def test_forwards_go_to_queues_and_topics_in_any_case() -> None:
    text = template(
        resource("bus/In", properties={"forwardTo": "NEWS", "forwardDeadLetteredMessagesTo": "news"}),
        resource("bus/news", "topics"),
        resource("bus/news/far", "topics/subscriptions", properties={"forwardTo": "elsewhere"}),
        resource("bus/lonely/s", "topics/subscriptions"),
        resource("bus/news/gone/r", "topics/subscriptions/rules", properties=sql("1=1")),
        resource("bus/news/dead"),
        resource("bus/news/dead", "topics/subscriptions"),
    )
    imported = read_resources(text)
    queues = imported.deployments["bus"].queues

    assert (queues["In"]["forward_to"], queues["In"]["dead_letter_rejected"]) == ("news", "news")
    assert (queues["news/far"]["forward_to"], queues["news"]["bindings"]) == ("elsewhere", {"news/far": []})
    assert {note.subject for note in imported.notes if note.costs and not note.setting} == {
        "subscription 'bus/lonely/s'",
        "rule 'bus/news/gone/r'",
        "subscription 'bus/news/dead'",
    }


@pytest.mark.parametrize(
    "parts,setting",
    [
        ({"name": EXPRESSION}, "name"),
        ({"copy": {"count": 2}}, "copy"),
        ({"condition": False}, "condition"),
        ({"properties": {"requiresSession": EXPRESSION}}, "requiresSession"),
    ],
)
def test_what_only_a_deployment_knows_is_left_out_with_a_note(parts: dict[str, Any], setting: str) -> None:
    imported = read_resources(template({**resource("bus/q"), **parts}))

    assert bool(imported.deployments) == (setting == "requiresSession")
    [note] = [note for note in imported.notes if note.setting == setting]
    assert note.kind == "left out"
    assert setting == "condition" or "import the JSON of `az servicebus queue list`" in note.text


def test_the_list_of_az_has_its_namespace_in_the_ids(fixtures: dict[str, str]) -> None:
    imported = read_resources(fixtures["servicebus_az.json"])

    queues = imported.deployments["shop"].queues
    assert queues["tasks"] == {
        "lease": "30s",
        "max_deliveries": 7,
        "max_length_bytes": 2**30,
        "overflow": "reject-publish",
        "max_message_bytes": 2**18,
        **LETTERS,
    }
    assert queues["a/b"]["message_ttl"] == "12h"
    assert queues["a/b"]["dead_letter_expired"] == "{queue}/dead"
    assert queues["a/t"] == {"bindings": {"a/t/s": [{"subject": ["x"]}]}}
    one = json.loads(fixtures["servicebus_az.json"])[0]
    assert read_resources(json.dumps(one)).deployments["shop"].queues == {"tasks": queues["tasks"]}


@pytest.mark.parametrize(
    "text,milliseconds",
    [
        ("PT0S", 0),
        ("P1DT2H3M4.5S", 93_784_500),
        ("PT0.0001S", 1),
        ("P10675199DT2H48M5.4775807S", 922_337_203_685_478),
        ("00:05:00", 300_000),
        ("14.00:00:00.5", 1_209_600_500),
    ],
)
def test_a_duration_is_exact_and_rounded_up(text: str, milliseconds: int) -> None:
    assert parse_duration(text, "$") == milliseconds


@pytest.mark.parametrize("text", ["P1Y", "P1M", "P", "PT", "-PT5S", "5m", "PT1.5H"])
def test_a_duration_that_cannot_be_read_is_a_note_and_the_queue_is_taken(text: str) -> None:
    imported = read_resources(template(resource("bus/q", properties={"lockDuration": text})))

    (note,) = notes(imported, "queue 'bus/q'", "lockDuration")
    assert (note.kind, note.value, note.costs) == ("left out", text, True)
    assert note.text.startswith("it cannot be read: expected an ISO 8601 duration in days")
    assert "lease" not in imported.deployments["bus"].queues["q"]


@pytest.mark.parametrize(
    "name, namespace, queue, expected",
    [
        ("servicebus_nested.json", "serviceBusNamespaceName", "autoposted", {"lease": "5m", "message_ttl": "2w"}),
        ("servicebus_text_values.json", "shop", "orders", {"lease": "5m"}),
        ("servicebus_az_list.json", "shop", "orders", {"message_ttl": "2w", "max_message_bytes": 2**18}),
    ],
)
def test_a_file_as_other_programs_write_it_is_taken(
    fixtures: dict[str, str], name: str, namespace: str, queue: str, expected: dict[str, object]
) -> None:
    imported = read_resources(fixtures[name])

    common = {**DEFAULTS, **LETTERS, "max_length_bytes": 2**30, "overflow": "reject-publish"}
    assert {key: one.queues for key, one in imported.deployments.items()} == {
        namespace: {queue: {**common, **expected}}
    }
    assert [note for note in imported.notes if note.costs] == []
    rules = [note.subject for note in imported.notes if note.subject.startswith("authorizationrule")]
    assert rules == ["authorizationrule 'serviceBusNamespaceName/autoposted/Scheduler'"] * ("nested" in name)


UNREADABLE = {"maxDeliveryCount": "many", "requiresDuplicateDetection": "1", "status": 7}


@pytest.mark.parametrize("key, value", [*UNREADABLE.items(), ("forwardDeadLetteredMessagesTo", [])])
def test_a_value_that_cannot_be_read_is_a_note_at_its_setting(key: str, value: object) -> None:
    imported = read_resources(template(resource("bus/q", properties={key: value, "lockDuration": "PT30S"})))

    assert [(note.setting, note.text.partition(":")[0]) for note in imported.notes if note.costs] == [
        (key, "it cannot be read")
    ]
    assert imported.deployments["bus"].queues["q"]["lease"] == "30s"


def test_who_leaves_a_resource_out_names_all_within_it() -> None:
    inner = resource("q", "queues", properties={}, resources=[{"type": "AuthorizationRules", "name": "r"}])
    nested = {
        "type": "Microsoft.Resources/deployments",
        "name": "d",
        "properties": {"template": {"resources": [inner]}},
    }
    for outer in ({"copy": {}, "name": "bus"}, {"condition": False, "name": "bus"}, {"name": "[concat('a', 'b')]"}):
        space = {"type": "Microsoft.ServiceBus/namespaces", "resources": [{**inner, "type": "queues"}], **outer}
        lost = [note.subject for note in read_resources(template(space)).notes if note.text.startswith("it is not imp")]
        assert lost == ["queue 'q'", "authorizationrule 'r'"]

    inner["name"] = "bus/q"
    assert list(read_resources(template(nested)).deployments["bus"].queues) == ["q"]
