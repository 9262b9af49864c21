"""Definitions of RabbitMQ become queues and policies; each translation is one claim."""

import json
import re
from typing import Any

import pytest

from rqttl import OptionArguments, Policy
from rqttl.imports.notes import Imported, Note
from rqttl.imports.rabbitmq import read_definitions
from rqttl.imports.rabbitmq.policies import translated
from rqttl.options import QueueOptions
from rqttl.policies import PolicySet


def file(**parts: Any) -> str:
    return json.dumps({"rabbit_version": "4.0.5", "vhosts": [{"name": "/"}], **parts})


def queue(name: str, **arguments: object) -> dict[str, object]:
    named = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    return {"vhost": "/", "name": name, "durable": True, "auto_delete": False, "arguments": named}


def policy(name: str, pattern: str, definition: object, **parts: object) -> dict[str, object]:
    return {"vhost": "/", "name": name, "pattern": pattern, "definition": definition, **parts}


def exchange(name: str, kind: str, **parts: object) -> dict[str, object]:
    return {"vhost": "/", "name": name, "type": kind, **parts}


def binding(source: str, destination: str, key: str = "", kind: str = "queue") -> dict[str, object]:
    ends = {"source": source, "destination": destination, "destination_type": kind}
    return {"vhost": "/", **ends, "routing_key": key}


def matching(**arguments: object) -> dict[str, object]:
    """The binding of a headers exchange. `x_match` stands for `x-match`."""
    return {**binding("x", "q"), "arguments": {name.replace("x_", "x-"): value for name, value in arguments.items()}}


def queues(text: str) -> dict[str, dict[str, object]]:
    return {name: dict(options) for name, options in read_definitions(text).deployments["/"].queues.items()}


def notes(imported: Imported, subject: str, setting: str) -> list[Note]:
    return [note for note in imported.notes if note.subject.endswith(subject) and note.setting == setting]


def in_force(imported: Imported, name: str) -> OptionArguments:
    """The options in force of a queue, by all policies of the deployment."""
    deployment = imported.deployments["/"]
    policies = [Policy.read(policy, **arguments(body)) for policy, body in deployment.policies.items()]
    declared = QueueOptions.read(name, dict(deployment.queues[name]))
    return PolicySet(1, tuple(policies)).resolve(declared).options.as_arguments()


def arguments(body: Any) -> dict[str, Any]:
    return {key.replace("-", "_"): value for key, value in body.items()}


@pytest.mark.parametrize(
    "argument,value,options",
    [
        ("message_ttl", 60_000, {"message_ttl": "1m"}),
        ("message_ttl", 0, {"message_ttl": "0ms"}),
        ("expires", 1_800_000, {"expires": "30m"}),
        ("max_length", 10, {"max_length": 10}),
        ("max_length_bytes", 0, {"max_length_bytes": 0}),
        ("overflow", "reject-publish-dlx", {"overflow": "reject-publish-dlx"}),
        ("consumer_timeout", 90_000, {"lease": "90s"}),
        ("expires", 0, {}),
        ("message_ttl", 315_360_000_001, {}),
        ("overflow", "drop-tail", {}),
        ("max_priority", 10, {}),
        ("single_active_consumer", True, {}),
        ("delivery_limit", 3, {}),
    ],
)
def test_an_argument_of_a_classic_queue_becomes_an_option_or_a_note(
    argument: str, value: object, options: dict[str, object]
) -> None:
    text = file(queues=[queue("orders", **{argument: value})])

    assert queues(text)["orders"] == options
    assert notes(read_definitions(text), "queue 'orders'", f"x-{argument.replace('_', '-')}")


@pytest.mark.parametrize(
    "version,arguments,options",
    [
        ("4.0.5", {"delivery_limit": 0}, {"max_deliveries": 1}),
        ("4.0.5", {"delivery_limit": 20}, {"max_deliveries": 21}),
        ("4.0.5", {"delivery_limit": -1}, {}),
        ("4.0.5", {}, {"max_deliveries": 21}),
        ("4.1.0-rc.1", {"delivery_limit": "20"}, {"max_deliveries": 21}),
        ("3.13.7", {}, {}),
        ("unknown", {}, {}),
    ],
)
def test_a_delivery_limit_is_one_less_than_the_failed_deliveries_and_rabbitmq_4_has_a_default(
    version: str, arguments: dict[str, object], options: dict[str, object]
) -> None:
    text = file(rabbit_version=version, queues=[queue("q", queue_type="quorum", **arguments)])

    assert queues(text)["q"] == options


def test_a_quorum_queue_is_not_said_to_keep_its_promises() -> None:
    body = {"vhost": "/", "name": "q", "type": "quorum", "arguments": {"x-queue-type": "quorum"}}
    imported = read_definitions(file(queues=[body]))

    for setting in ("type", "x-queue-type"):
        [note] = notes(imported, "queue 'q'", setting)
        assert "when the primary Redis has it, not a majority of servers" in note.text


def test_a_policy_with_a_delivery_limit_takes_the_place_of_the_default() -> None:
    limit = policy("limit", "^q", {"delivery-limit": 50})
    imported = read_definitions(file(queues=[queue("q", queue_type="quorum")], policies=[limit]))

    assert imported.deployments["/"].queues["q"] == {}
    assert imported.deployments["/"].policies["limit"]["definition"] == {"max-deliveries": 51}


ROUTES = [
    # exchange, routing key, bindings, target
    ("", "dead", [], "dead"),
    ("", "nobody", [], None),
    ("fan", None, [binding("fan", "dead", "any")], "dead"),
    ("fan", None, [binding("fan", "dead"), binding("fan", "more")], "fan"),
    ("fan", "k", [binding("fan", "dead"), binding("fan", "more")], "fan"),
    ("topic", None, [binding("topic", "dead", "#"), binding("topic", "more", "#")], "topic"),
    ("topic", "a", [binding("topic", "dead", "#"), binding("topic", "more", "#")], None),
    ("topic", None, [binding("topic", "dead", "#"), binding("topic", "more", "orders")], None),
    ("direct", "k", [binding("direct", "dead", "k"), binding("direct", "more", "l")], "dead"),
    ("direct", None, [binding("direct", "dead", "orders")], "dead"),
    ("direct", None, [binding("direct", "dead", "made"), binding("direct2", "orders", "made")], "dead"),
    ("direct", None, [binding("direct", "dead", "other")], None),
    ("topic", "a.b.c", [binding("topic", "dead", "a.*.c")], "dead"),
    ("topic", "a.c", [binding("topic", "dead", "a.*.c")], None),
    ("topic", "a.c", [binding("topic", "dead", "a.#.c")], "dead"),
    ("topic", "a.b.b.c", [binding("topic", "dead", "#.c")], "dead"),
    ("topic", "a", [binding("topic", "dead", "a.#")], "dead"),
    ("topic", None, [binding("topic", "dead", "#")], "dead"),
    ("topic", "a", [binding("topic", "fan", "a", "exchange"), binding("fan", "dead")], None),
    ("headers", "k", [binding("headers", "dead", "k")], "headers"),
    ("none", None, [binding("none", "dead"), binding("none", "more")], None),
    ("plugin", None, [binding("plugin", "dead")], None),
    ("missing", "k", [], None),
    ("amq.fanout", None, [binding("amq.fanout", "dead")], "dead"),
]


@pytest.mark.parametrize("name,key,bindings,target", ROUTES)
def test_a_dead_letter_exchange_becomes_the_one_queue_that_it_reaches_or_its_topic(
    name: str, key: str | None, bindings: list[dict[str, object]], target: str | None
) -> None:
    arguments = {"dead_letter_exchange": name} | ({} if key is None else {"dead_letter_routing_key": key})
    kinds = {"fan": "fanout", "direct2": "direct", "none": "fanout", "plugin": "x-random"}
    kinds |= {kind: kind for kind in ("direct", "topic", "headers")}
    exchanges = [exchange(name, kind) for name, kind in kinds.items()]
    text = file(
        queues=[queue("orders", **arguments), queue("dead"), queue("more")], exchanges=exchanges, bindings=bindings
    )

    assert queues(text)["orders"] == ({} if target is None else {"dead_letter": target})
    [note] = notes(read_definitions(text), "queue 'orders'", "x-dead-letter-exchange")
    assert note.kind == ("left out" if target is None else "translated")


@pytest.mark.parametrize("more, target", [("more", "dlx"), ("dead", "dead")])
def test_a_policy_sends_dead_letters_to_the_topic_if_several_queues_may_want_them(more: str, target: str) -> None:
    parts = {"bindings": [binding("dlx", "dead", "#"), binding("dlx", more, "orders.#")]}
    policies = [policy("p", ".*", {"dead-letter-exchange": "dlx"})]
    text = file(queues=[queue("dead"), queue("more")], exchanges=[exchange("dlx", "topic")], policies=policies, **parts)

    assert read_definitions(text).deployments["/"].policies["p"]["definition"] == {"dead-letter": target}


@pytest.mark.parametrize(
    "arguments,options",
    [
        ({"dead_letter_exchange": "", "dead_letter_routing_key": "q"}, {"dead_letter_rejected": "q"}),
        ({"dead_letter_exchange": "", "dead_letter_routing_key": "my dead"}, {"dead_letter": "my-dead"}),
        ({"dead_letter_routing_key": "dead"}, {"dead_letter": "dead"}),  # the policy has the exchange
    ],
)
def test_a_target_may_be_the_queue_itself_or_have_another_name_or_come_from_a_policy(
    arguments: dict[str, object], options: dict[str, object]
) -> None:
    policies = [policy("dlx", "^q$", {"dead-letter-exchange": ""})]
    text = file(queues=[queue("q", **arguments), queue("dead"), queue("my dead")], policies=policies)

    assert queues(text)["q"] == options


def test_two_names_that_become_one_are_refused_with_a_note() -> None:
    imported = read_definitions(file(queues=[queue("a b"), queue("a?b"), queue("c d"), queue("c-d")]))

    assert list(imported.deployments["/"].queues) == ["c-d"]
    refused = [note for name in ("a b", "a?b", "c d") for note in notes(imported, f"queue {name!r}", "")]
    assert [note.kind for note in refused] == ["left out"] * 3


@pytest.mark.spec("POL-07", "POL-09")
def test_a_queue_gets_the_options_of_one_policy_as_in_rabbitmq() -> None:
    first = policy("first", "^q", {"message-ttl": 1000}, priority=2)
    second = policy("second", "q", {"message-ttl": 9000, "max-length": 5}, priority=1)
    imported = read_definitions(file(queues=[queue("q"), queue("sq")], policies=[second, first]))

    assert in_force(imported, "q") == {"message_ttl": "1s"}
    assert in_force(imported, "sq") == {"message_ttl": "9s", "max_length": 5}
    [note] = notes(imported, "policy 'first'", "definition")
    assert note.text == ("none for max_length: RabbitMQ applies one policy to a queue, and rqttl would merge them")
    assert [notes(imported, f"queue {name!r}", "policy") for name in ("q", "sq")] == [[], []]


@pytest.mark.parametrize("pattern", ["^orders-", "^ordersx*", "^order$", r"^a\.b", "^a|^b"])
def test_policies_without_a_common_name_stay_as_they_are(pattern: str) -> None:
    """The last pattern may find any name, so the option of the other policy is kept out."""
    policies = [policy("first", "^mails", {"message-ttl": 1000}, priority=2), policy("p", pattern, {"max-length": 5})]
    imported = read_definitions(file(policies=policies))

    expected = ["max-length", "message-ttl"] if "|" in pattern else ["message-ttl"]
    assert sorted(arguments(imported.deployments["/"].policies["first"])["definition"]) == expected


@pytest.mark.spec("POL-07")
@pytest.mark.parametrize("definition", [{"ha-mode": "all"}, {"queue-mode": "lazy"}, {"federation-upstream": "far"}])
@pytest.mark.parametrize("names", [["q"], []])
def test_a_policy_without_counterpart_still_keeps_those_of_lower_priority_out(
    definition: dict[str, object], names: list[str]
) -> None:
    first = policy("first", ".*", definition, priority=1)
    ttl = policy("ttl", "^q", {"message-ttl": 1000, "max-length": 5})
    imported = read_definitions(file(queues=[queue(name) for name in names], policies=[first, ttl]))

    assert imported.deployments["/"].policies["first"]["definition"] == {"max-length": None, "message-ttl": None}
    assert [in_force(imported, name) for name in names] == [{} for _ in names]
    assert [notes(imported, f"queue {name!r}", "policy") for name in names] == [[] for _ in names]


def test_a_policy_without_counterpart_that_keeps_no_other_out_is_left_out() -> None:
    policies = [policy("first", "^a", {"ha-mode": "all"}, priority=1), policy("ttl", "^q", {"message-ttl": 1000})]
    imported = read_definitions(file(policies=policies))

    assert list(imported.deployments["/"].policies) == ["ttl"]
    assert [note.kind for note in notes(imported, "policy 'first'", "")] == ["left out"]


CLASSIC = {**policy("first", "^q", {"message-ttl": 1000}, priority=2), "apply-to": "classic_queues"}


@pytest.mark.spec("POL-10")
@pytest.mark.parametrize(
    "first",
    [
        CLASSIC,
        policy("first", "", {"ha-mode": "all"}, priority=1),
        policy("first", "^q2", {"max-priority": 3, "max-length": 5}, priority=1),
    ],
)
def test_a_policy_that_rabbitmq_skips_for_a_type_of_queue_acts_here_and_is_noted(first: dict[str, object]) -> None:
    policies = [first, policy("second", "^q", {"message-ttl": 5})]
    quorum = queue("q2", queue_type="quorum", delivery_limit=-1)
    imported = read_definitions(file(queues=[queue("q1"), quorum], policies=policies))

    assert notes(imported, "queue 'q1'", "policy") == []
    [note] = notes(imported, "queue 'q2'", "policy")
    assert note.text == "RabbitMQ applies 'second'; here 'first' acts"


@pytest.mark.spec("OPP-01")
def test_operator_policies_are_read_from_parameters_also_as_lists_of_pairs() -> None:
    value = {"pattern": "^q", "priority": 3, "apply-to": "queues", "definition": [["max-length", 5]]}
    parameter = {"vhost": "/", "component": "operator_policy", "name": "capped", "value": value}
    imported = read_definitions(file(parameters=[parameter]))

    capped = {**value, "syntax": "regex", "definition": {"max-length": 5}}
    assert imported.deployments["/"].operator_policies == {"capped": capped}


@pytest.mark.parametrize("name", ["", "a", "amq.gen-1", "amq", "amqx", "amxq.", "xamq.", "amq.", "zzz"])
@pytest.mark.parametrize("pattern", [r"^(?!amq\.).*", r"^(?!amq\.)", "^(?!amq.).+$", "^(?!a).*", r"^(?!am\.)"])
def test_a_pattern_for_names_without_a_beginning_matches_the_same_names(pattern: str, name: str) -> None:
    expected = re.search(pattern, name) is not None or (name == "" and pattern.endswith("+$"))

    assert translated(pattern)[0].matches(name) == expected


def test_a_pattern_without_a_counterpart_leaves_the_policy_out() -> None:
    imported = read_definitions(file(policies=[policy("back", r"(a)\1", {"max-length": 5})]))

    assert imported.deployments["/"].policies == {}
    [note] = notes(imported, "policy 'back'", "pattern")
    assert note.kind == "left out"
    assert "invalid escape sequence" in note.text


@pytest.mark.parametrize(
    "body,reason",
    [
        ({"type": "stream"}, "no streams"),
        ({"type": "rabbit_mqtt_qos0_queue"}, "'mqtt_qos0'"),
        ({"exclusive": True}, "exclusive"),
    ],
)
def test_a_queue_without_a_counterpart_is_left_out_with_its_reason(body: dict[str, object], reason: str) -> None:
    imported = read_definitions(file(queues=[{"vhost": "/", "name": "q", **body}]))

    assert imported.deployments["/"].queues == {}
    assert [reason in note.text for note in notes(imported, "queue 'q'", "")] == [True]


BINDINGS: list[tuple[str, list[dict[str, object]], object]] = [
    ("fanout", [binding("x", "q", "ignored")], []),
    ("direct", [binding("x", "q", "a.b")], [{"subject": ["a.b"]}]),
    ("direct", [binding("x", "q", "a..b*"), binding("x", "q", "c")], [{"subject": ["a..b*"]}, {"subject": ["c"]}]),
    ("direct", [binding("x", "q")], [{"subject": {"exists": False}}]),
    ("topic", [binding("x", "q", "orders.*.#")], [{"subject": "orders.*.#"}]),
    ("topic", [binding("x", "q", "orders.*"), binding("x", "q", "#")], []),
    ("topic", [binding("x", "q", "a.b*")], [{"subject": ["a.b*"]}]),
    ("headers", [matching(a=1, b="t", x_c=1)], [{"a": 1, "b": "t"}]),
    ("headers", [matching(a=None, x_match="any", b=True)], [{"a": {"exists": True}}, {"b": True}]),
    ("headers", [matching(x_match="all-with-x", x_c=1)], [{"x-c": 1}]),
    ("headers", [matching(subject="a")], [{"subject": ["a"]}]),
    ("headers", [matching()], []),
]


@pytest.mark.parametrize("kind, bindings, expected", BINDINGS)
def test_an_exchange_becomes_a_topic_with_bound_queues(
    kind: str, bindings: list[dict[str, object]], expected: list[dict[str, object]]
) -> None:
    imported = read_definitions(file(queues=[queue("q")], exchanges=[exchange("x", kind)], bindings=bindings))

    assert imported.deployments["/"].queues == {"q": {}, "x": {"bindings": {"q": expected}}}
    assert [note for note in imported.notes if note.costs] == []


@pytest.mark.parametrize(
    "kind, of, reason",
    [
        ("direct", binding("x", "q", "a.*"), "expected a pattern alone"),
        ("topic", binding("x", "q", "a*.#"), "each '*' and '#' as a word"),
        ("headers", matching(x_match="any"), "any of at least one header"),
        ("headers", matching(x_match="some", a=1), "got 'some'"),
        ("headers", matching(unmatched=True), "means something else"),
        ("headers", matching(a=[1]), "true or false, got list"),
        ("fanout", binding("x", "y", kind="exchange"), "would get messages twice"),
        ("fanout", binding("x", "gone"), "its queue is not imported"),
        ("fanout", binding("gone", "q"), "its exchange is not imported"),
    ],
)
def test_a_binding_that_no_filter_can_say_is_left_out_with_its_reason(
    kind: str, of: dict[str, object], reason: str
) -> None:
    imported = read_definitions(file(queues=[queue("q")], exchanges=[exchange("x", kind)], bindings=[of]))

    assert imported.deployments["/"].queues == {"q": {}, "x": {"bindings": {}}}
    (note,) = (note for note in imported.notes if note.costs)
    assert note.subject == f"vhost '/': binding of {of['source']!r} to {of['destination']!r} by {of['routing_key']!r}"
    assert (note.kind, reason in note.text) == ("left out", True)


def test_an_alternate_exchange_gets_what_no_other_queue_wants() -> None:
    own = {"arguments": {"alternate-exchange": "rest"}}
    exchanges = [exchange("x", "topic", **own), exchange("rest", "fanout"), exchange("by-policy", "direct")]
    exchanges += [exchange("one", "direct", arguments={"alternate-exchange": "gone", "other": 1})]
    to_x = policy("alternates", "^(x|by-policy)$", {"alternate-exchange": "x"}, **{"apply-to": "exchanges"})
    policies = [to_x, policy("of-queues", ".*", {"max-length": 1}, **{"apply-to": "queues", "priority": 9})]
    text = file(queues=[queue("q")], exchanges=exchanges, bindings=[binding("rest", "q")], policies=policies)
    found = queues(text)

    assert (found["x"], found["rest"]) == ({"bindings": {"rest": [{"unmatched": True}]}}, {"bindings": {"q": []}})
    assert found["by-policy"] == {"bindings": {"x": [{"unmatched": True}]}}
    [note] = notes(read_definitions(text), "exchange 'one'", "alternate-exchange")
    assert note.text == "it is not a topic of the import"


def test_an_exchange_without_a_counterpart_is_left_out_with_its_reason() -> None:
    exchanges = [exchange("later", "x-delayed-message"), exchange("q", "fanout"), exchange("own", "x-random")]
    imported = read_definitions(
        file(queues=[queue("q")], exchanges=exchanges, bindings=[binding("amq.topic", "q", "#")])
    )

    assert imported.deployments["/"].queues == {"q": {}, "amq.topic": {"bindings": {"q": []}}}
    reasons = [notes(imported, f"exchange {name!r}", "")[0].text for name in ("later", "q", "own")]
    words = ("`delay`", "has the name 'q'", "fanout, direct, topic and headers")
    assert [word for word, reason in zip(words, reasons, strict=True) if word not in reason] == []


def test_vhosts_are_deployments_with_namespaces_of_their_own() -> None:
    names = ["/", "a b", "a-b", "a?b", "é"]
    imported = read_definitions(json.dumps({"vhosts": [{"name": name} for name in names]}))
    namespaces = [imported.deployments[name].namespace for name in names]

    assert namespaces[0].startswith("rqttl-")
    assert namespaces[2] == "a-b"
    assert len(set(namespaces)) == len(names)


def test_no_secret_is_in_a_note(fixtures: dict[str, str]) -> None:
    assert "secret" in fixtures["rabbitmq_cluster.json"]
    assert "secret" not in str(read_definitions(fixtures["rabbitmq_cluster.json"]))


def typed(where: str, value: str | None) -> Imported:
    """The import of a queue whose type stands in one of the places where RabbitMQ writes it."""
    default, ttl = {"default_queue_type": value}, {"x-message-ttl": 60_000}
    places: dict[str, Any] = {
        "vhost": {"vhosts": [{"name": "/", **default}]},
        "metadata": {"vhosts": [{"name": "/", "metadata": default}]},
        "root": default,
        "root metadata": {"metadata": default},
    }
    own: dict[str, Any] = {"type": {"type": value}, "x-queue-type": {"arguments": {**ttl, "x-queue-type": value}}}
    queue = {"name": "q", "vhost": "/", "arguments": ttl, **own.get(where, {})}
    return read_definitions(json.dumps({"rabbit_version": "4.0.5", "queues": [queue], **places.get(where, {})}))


DEFAULTS = ["vhost", "metadata", "root", "root metadata"]


@pytest.mark.parametrize("unset", ["undefined", "", None])
@pytest.mark.parametrize("where", [*DEFAULTS, "type", "x-queue-type"])
def test_no_type_means_classic_wherever_it_is_written(where: str, unset: str | None) -> None:
    assert typed(where, unset).deployments["/"].queues == {"q": {"message_ttl": "1m"}}


@pytest.mark.parametrize("where", DEFAULTS)
def test_a_default_type_counts_wherever_it_is_written(where: str) -> None:
    imported = typed(where, "quorum")

    assert imported.deployments["/"].queues == {"q": {"max_deliveries": 21, "message_ttl": "1m"}}
    (note,) = [note for note in imported.notes if note.setting.endswith("default_queue_type")]
    assert (note.kind, note.value) == ("translated", "quorum")


def test_files_with_default_types_are_taken(fixtures: dict[str, str]) -> None:
    first, second = (read_definitions(fixtures[f"rabbit_dqt_{name}.json"]) for name in ("metadata", "undefined"))

    assert {name: one.queues for name, one in first.deployments.items()} == {
        "shop": {"orders": {"max_deliveries": 21}},
        "plain": {"logs": {}},
    }
    assert second.deployments["/"].queues == {"mail": {"message_ttl": "1m"}, "news": {}}
    assert [note for note in (*first.notes, *second.notes) if note.costs] == []


def test_a_value_that_cannot_be_read_is_a_note_at_its_setting() -> None:
    queue = {"name": "q", "arguments": {"x-message-ttl": "1", "x-max-length": 5}}
    policy = {"name": "p", "pattern": "a", "definition": {"max-length": 1.5, "max-length-bytes": 6}}

    imported = read_definitions(json.dumps({"queues": [queue], "policies": [policy]}))

    assert imported.deployments["/"].queues["q"] == {"max_length": 5}
    assert imported.deployments["/"].policies["p"]["definition"] == {"max-length-bytes": 6}
    assert [note.setting for note in imported.notes if note.costs] == ["max-length", "x-message-ttl"]
