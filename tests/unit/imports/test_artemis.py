"""The broker.xml of Artemis becomes queues and policies; each translation is one claim."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from rqttl.deployments import read_document
from rqttl.errors import InvalidImport
from rqttl.imports.artemis import read_broker
from rqttl.imports.notes import Imported, ImportedDeployment, Note, rows
from rqttl.options import QueueOptions
from rqttl.policies import PolicySet

FOLDER = Path(__file__).with_name("fixtures")
NONE = "none"


def text_of(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def core(*sections: str) -> str:
    inner = f'<core xmlns="urn:activemq:core">{"".join(sections)}</core>'
    return f'<configuration xmlns="urn:activemq">{inner}</configuration>'


def settings(*each: tuple[str, str]) -> str:
    """The section of address settings, from pairs of match and children."""
    elements = [f'<address-setting match="{match}">{children}</address-setting>' for match, children in each]
    return f"<address-settings>{''.join(elements)}</address-settings>"


def addresses(**queues: str) -> str:
    """The section of addresses, each with one anycast queue."""
    each = [
        f'<address name="{address}"><anycast><queue name="{queue}"/></anycast></address>'
        for address, queue in queues.items()
    ]
    return f"<addresses>{''.join(each)}</addresses>"


def only(imported: Imported) -> ImportedDeployment:
    [deployment] = imported.deployments.values()
    return deployment


def definitions(*sections: str) -> dict[str, Any]:
    """The definitions by pattern, without the limit of attempts that is Artemis's default."""
    policies: Mapping[str, Any] = only(read_broker(core(*sections))).policies
    found = {policy["pattern"]: dict(policy["definition"]) for policy in policies.values()}
    if found.get("#", {}).get("max-deliveries") == 10:
        del found["#"]["max-deliveries"]
    return {pattern: definition for pattern, definition in found.items() if definition}


def definition(children: str) -> dict[str, Any]:
    return dict(definitions(settings(("a", children))).get("a", {}))


def in_force(text: str, queue: str) -> Mapping[str, object]:
    """The options in force of a queue after the import, without those at their defaults."""
    imported = only(read_broker(text))
    found = read_document({"rqttl": 1, "queues": imported.queues, "policies": imported.policies})
    declared = found.queues.get(queue, QueueOptions(queue, {}))
    return PolicySet(1, tuple(found.policies.values())).resolve(declared).options.non_default


def note(text: str, setting: str) -> Note:
    [found] = [note for note in read_broker(text).notes if note.setting == setting]
    return found


CHILDREN: list[tuple[dict[str, str], dict[str, Any]]] = [
    ({"expiry-delay": "10000"}, {"default-ttl": "10s"}),
    ({"expiry-delay": "0"}, {"default-ttl": "0"}),
    ({"expiry-delay": "-1"}, {"default-ttl": NONE, "message-ttl": NONE}),
    ({"expiry-delay": "9223372036854775807"}, {"default-ttl": "3650d"}),
    ({"EXPIRY-Delay": " 1500 "}, {"default-ttl": "1500ms"}),
    ({"min-expiry-delay": "10"}, {"min-ttl": "10ms"}),
    ({"max-expiry-delay": "0"}, {"max-ttl": "0"}),
    ({"max-expiry-delay": "-1"}, {"max-ttl": NONE}),
    ({"max-expiry-delay": "-2"}, {"max-ttl": NONE}),
    ({"min-expiry-delay": "100", "max-expiry-delay": "10"}, {"min-ttl": "10ms", "max-ttl": "10ms"}),
    ({"no-expiry": "true"}, {"never-expire": True}),
    ({"no-expiry": "FALSE"}, {"never-expire": False}),
    ({"expiry-address": ""}, {"dead-letter-expired": NONE}),
    ({"expiry-address": "E"}, {"dead-letter-expired": "E"}),
    ({"dead-letter-address": "D"}, {"dead-letter-delivery-limit": "D", "dead-letter-rejected": "D"}),
    ({"dead-letter-address": ""}, {"dead-letter-delivery-limit": NONE, "dead-letter-rejected": NONE}),
    (
        {"dead-letter-address": "D", "auto-create-dead-letter-resources": "true"},
        {"dead-letter-delivery-limit": "DLQ.{queue}", "dead-letter-rejected": "DLQ.{queue}"},
    ),
    ({"max-delivery-attempts": "3"}, {"max-deliveries": 3}),
    ({"max-delivery-attempts": "-1"}, {"max-deliveries": NONE}),
    ({"max-delivery-attempts": "0"}, {"max-deliveries": NONE}),
    ({"redelivery-delay": "5000"}, {"redelivery-delay": "5s"}),
    ({"redelivery-delay": "0"}, {"redelivery-delay": NONE}),
    (
        {"redelivery-delay": "5000", "redelivery-delay-multiplier": "2"},
        {"redelivery-delay": "5s", "redelivery-multiplier": 2, "redelivery-max-delay": "50s"},
    ),
    (
        {"redelivery-delay": "5000", "max-redelivery-delay": "2000"},
        {"redelivery-delay": "2s", "redelivery-max-delay": "2s"},
    ),
    ({"redelivery-delay-multiplier": "1.0"}, {"redelivery-multiplier": 1}),
    ({"redelivery-delay-multiplier": "0.5"}, {"redelivery-multiplier": NONE}),
    ({"max-redelivery-delay": "0"}, {"redelivery-max-delay": NONE}),
    ({"redelivery-collision-avoidance-factor": "0.15"}, {"redelivery-jitter": 0.15}),
    ({"max-size-bytes": "-1"}, {"max-length-bytes": NONE}),
    ({"max-size-bytes": "10MB"}, {"max-length-bytes": NONE}),
    (
        {"address-full-policy": "FAIL", "max-size-bytes": "10MB"},
        {"max-length-bytes": 10 * 2**20, "overflow": "reject-publish"},
    ),
    ({"address-full-policy": "block", "max-size-messages": "5"}, {"max-length": 5, "overflow": "reject-publish"}),
    ({"address-full-policy": "DROP", "max-size-messages": "0"}, {"max-length": 0, "overflow": "reject-publish"}),
    ({"default-ring-size": "7"}, {"max-length": 7, "overflow": "drop-head"}),
    (
        {"default-ring-size": "7", "address-full-policy": "FAIL", "max-size-bytes": "1K"},
        {"max-length": 7, "max-length-bytes": NONE, "overflow": "drop-head"},
    ),
    ({"default-ring-size": "-1"}, {"max-length": NONE, "overflow": NONE}),
    ({"auto-delete-queues-delay": "60000"}, {}),
    ({"auto-create-expiry-resources": "true"}, {"dead-letter-expired": NONE}),
    ({"enable-metrics": "true"}, {}),
]


@pytest.mark.parametrize("children, expected", CHILDREN)
def test_children_become_options(children: dict[str, str], expected: dict[str, Any]) -> None:
    assert definition("".join(f"<{name}>{value}</{name}>" for name, value in children.items())) == expected


@pytest.mark.spec("A-046", "A-047")
@pytest.mark.parametrize(
    "extra, expected",
    [
        ("", "EXP.{queue}"),
        ("<expiry-queue-prefix>X-</expiry-queue-prefix>", "X-{queue}"),
        ("<expiry-queue-prefix/><expiry-queue-suffix>.EXP</expiry-queue-suffix>", "{queue}.EXP"),
        ("<expiry-queue-suffix>.E</expiry-queue-suffix>", "EXP.{queue}.E"),
    ],
)
def test_automatic_expiry_resources_become_a_template(extra: str, expected: str) -> None:
    creates = "<expiry-address>E</expiry-address><auto-create-expiry-resources>true</auto-create-expiry-resources>"

    assert definition(creates + extra) == {"dead-letter-expired": expected}


@pytest.mark.spec("A-048")
@pytest.mark.parametrize("address", ["", "<expiry-address/>"])
def test_automatic_resources_without_an_address_make_no_target(address: str) -> None:
    found = definition(address + "<auto-create-expiry-resources>true</auto-create-expiry-resources>")

    assert found.get("dead-letter-expired", NONE) == NONE


def test_settings_that_make_one_option_come_together_from_several_matches() -> None:
    found = definitions(
        settings(
            ("#", "<expiry-address>E</expiry-address><max-size-messages>5</max-size-messages>"),
            ("orders.#", "<auto-create-expiry-resources>true</auto-create-expiry-resources>"),
            ("orders.eu", "<address-full-policy>FAIL</address-full-policy>"),
        )
    )

    assert found["orders.#"] == {"dead-letter-expired": "EXP.{queue}"}
    assert found["orders.eu"] == {"max-length": 5, "overflow": "reject-publish"}


@pytest.mark.spec("A-081")
def test_an_explicit_default_stops_inheritance() -> None:
    text = core(
        settings(
            ("#", "<expiry-address>E</expiry-address><expiry-delay>1000</expiry-delay>"),
            ("a", "<expiry-address/><expiry-delay>-1</expiry-delay>"),
        )
    )

    assert {"default_ttl", "dead_letter_expired"} <= set(in_force(text, "b"))
    assert set(in_force(text, "a")) == {"max_deliveries"}


@pytest.mark.spec("A-079", "A-080")
def test_matching_settings_merge_one_by_one_the_most_specific_first() -> None:
    text = core(
        settings(
            ("foo.0.#", "<expiry-delay>1</expiry-delay><max-delivery-attempts>4</max-delivery-attempts>"),
            ("foo.*", "<expiry-delay>2</expiry-delay>"),
        )
    )

    assert in_force(text, "foo.0") == {"default_ttl": 2, "max_deliveries": 4}


def test_the_default_limit_of_attempts_of_artemis_is_kept() -> None:
    assert in_force(core(), "q") == {"max_deliveries": 10}
    assert in_force(core(settings(("a", "<enable-metrics>true</enable-metrics>"))), "a") == {"max_deliveries": 10}
    unlimited = settings(("#", "<max-delivery-attempts>-1</max-delivery-attempts>"))
    assert in_force(core(unlimited), "q") == {}


@pytest.mark.spec("A-019")
def test_a_delay_on_an_expiry_address_ages_out_the_letters_in_it() -> None:
    text = core(
        settings(
            ("#", "<expiry-address>expiryQueue</expiry-address>"),
            ("expiryQueue", "<expiry-address/><expiry-delay>600000</expiry-delay>"),
        )
    )

    assert in_force(text, "expiryQueue")["message_ttl"] == 600_000
    assert "dead_letter_expired" not in in_force(text, "expiryQueue")


def test_the_target_is_the_queue_of_the_expiry_address() -> None:
    expiry = settings(("a", "<expiry-address>E</expiry-address>"))

    assert definitions(expiry, addresses(E="expired"))["a"] == {"dead-letter-expired": "expired"}
    assert definition("<expiry-address>E::expired</expiry-address>") == {"dead-letter-expired": "expired"}


def test_a_queue_gets_the_settings_of_its_address_if_its_name_is_another() -> None:
    text = core(
        settings(
            ("#", "<expiry-address>E</expiry-address>"),
            (
                "orders",
                (
                    "<expiry-delay>1000</expiry-delay><expiry-address>E</expiry-address>"
                    "<auto-create-expiry-resources>true</auto-create-expiry-resources>"
                ),
            ),
            ("q1", "<max-expiry-delay>5</max-expiry-delay>"),
        ),
        addresses(orders="q1"),
    )

    options = in_force(text, "q1")

    assert options == {"default_ttl": 1000, "dead_letter_expired": "EXP.orders", "max_deliveries": 10}


def test_a_ring_size_of_a_queue_beats_that_of_its_address() -> None:
    ring = '<addresses><address name="a"><anycast><queue name="a" ring-size="9"/></anycast></address></addresses>'

    options = in_force(core(settings(("#", "<default-ring-size>3</default-ring-size>")), ring), "a")

    assert options["max_length"] == 9
    assert "overflow" not in options  # the default drops the oldest message


def multicast(address: str, *queues: str) -> str:
    return f'<address name="{address}"><multicast>{"".join(queues)}</multicast></address>'


def divert(address: str, target: str, more: str = "<exclusive>true</exclusive>") -> str:
    return (
        f"<divert name='d'><address>{address}</address><forwarding-address>{target}</forwarding-address>{more}</divert>"
    )


def test_a_multicast_address_becomes_a_topic_with_the_filters_of_its_queues() -> None:
    queues = [
        '<queue name="all"/>',
        """<queue name="red"><filter string="color = 'red' OR _AMQ_ORIG_QUEUE = 'a'"/></queue>""",
    ]
    queues += ["""<queue name="news/blue"><filter string="color IN ('blue')"/></queue>"""]
    dead = settings(("news", "<dead-letter-address>other</dead-letter-address>"))
    imported = read_broker(core(f"<addresses>{multicast('news', *queues)}{multicast('other')}</addresses>", dead))

    found = only(imported).queues
    assert found["news"] == {"bindings": {"all": [], "news/blue": [{"color": "blue"}]}}
    assert (found["other"], found["red"]) == ({"bindings": {}}, {})
    reasons = {note.subject: note.text for note in imported.notes if note.setting == "filter"}
    assert "is no header" in reasons["address 'news': queue 'red'"]
    assert (
        in_force(core(f"<addresses>{multicast('other')}</addresses>", dead), "news")["dead_letter_rejected"] == "other"
    )


@pytest.mark.parametrize(
    "address, queue, lost",
    [
        ("a", '<queue name="a"/>', []),
        ("a", '<queue name="a"><filter string="b = 1"/></queue>', ["filter"]),
        ("b c", '<queue name="q"/>', ["multicast", "filter"]),
    ],
)
def test_an_address_that_cannot_be_a_topic_is_named(address: str, queue: str, lost: list[str]) -> None:
    imported = read_broker(core(f"<addresses>{multicast(address, queue)}</addresses>"))

    assert list(only(imported).queues.values()) == [{}]
    assert [note.setting for note in imported.notes if note.costs] == lost


ADDRESSES = f"""<addresses>{multicast("news", '<queue name="n"/>')}
    <address name="orders"><anycast><queue name="o1"/><queue name="o2"/></anycast></address></addresses>"""


@pytest.mark.parametrize("target, queue", [("news", "news"), ("later", "later"), ("other::o3", "o3")])
def test_an_exclusive_divert_becomes_a_forward_of_each_queue(target: str, queue: str) -> None:
    imported = read_broker(core(ADDRESSES, f"<diverts>{divert('orders', target)}</diverts>"))

    forward = {"forward_to": queue}
    assert only(imported).queues == {"o1": forward, "o2": forward, "n": {}, "news": {"bindings": {"n": []}}}
    assert [note for note in imported.notes if note.costs] == []


@pytest.mark.parametrize(
    "diverts",
    [
        divert("orders", "news", ""),
        divert("gone", "orders"),
        divert("news", "orders"),
        divert("orders", "x y"),
        divert("orders", "news", "<exclusive>true</exclusive><filter string='a=1'/>"),
        divert("orders", "news", "<exclusive>true</exclusive><transformer-class-name>T</transformer-class-name>"),
    ],
)
def test_another_divert_is_left_out_and_named(diverts: str) -> None:
    imported = read_broker(core(ADDRESSES, f"<diverts>{diverts}</diverts>"))

    assert only(imported).queues == {"o1": {}, "o2": {}, "n": {}, "news": {"bindings": {"n": []}}}
    assert {note.kind for note in imported.notes if note.costs} == {"left out"}


def test_of_two_exclusive_diverts_the_first_one_counts() -> None:
    imported = read_broker(core(ADDRESSES, f"<diverts>{divert('orders', 'a')}{divert('orders', 'b')}</diverts>"))

    assert only(imported).queues["o1"] == {"forward_to": "a"}
    assert [note.subject for note in imported.notes if note.costs] == ["divert 'd'"]


@pytest.mark.spec("A-074")
@pytest.mark.parametrize("match", ["a*.c", "x y"])
def test_a_match_without_a_counterpart_is_left_out_and_named(match: str) -> None:
    imported = read_broker(core(settings((match, "<expiry-delay>1</expiry-delay>"))))

    assert [policy["pattern"] for policy in only(imported).policies.values()] == ["#"]
    assert [note.kind for note in imported.notes if note.subject == f"address-setting {match!r}"] == ["left out"]


def test_each_policy_has_a_name_of_its_own() -> None:
    delay = "<expiry-delay>1</expiry-delay>"
    found = only(read_broker(core(settings(("a.#", delay), ("a.any-words", delay), ("_x", delay), ("#", delay)))))

    assert set(found.policies) == {"a.any-words", "a.any-words-2", "match-_x", "any-words"}


@pytest.mark.spec("A-079")
def test_a_match_with_a_star_is_noted_because_artemis_combines_what_act_together() -> None:
    def noted(match: str) -> bool:
        imported = read_broker(core(settings((match, "<max-size-messages>5</max-size-messages>"))))
        return any("neither includes the other" in note.text for note in imported.notes)

    assert [noted("a.*.c"), noted("a.b.#")] == [True, False]


@pytest.mark.parametrize("name", ["every_element.xml", "shipped.xml"])
def test_no_element_and_no_attribute_is_dropped_in_silence(name: str) -> None:
    text = text_of(name)
    noted = " ".join(f"{note.subject} {note.setting} {note.value}" for note in read_broker(text).notes).lower()
    elements = list(ET.fromstring(text).iter())  # noqa: S314  # our own file
    names = {re.sub("{.*}", "", element.tag).lower() for element in elements if not len(element)}

    assert {found for found in names - {"permission", "forwarding-address"} if found not in noted} == set()
    for element in elements:
        for attribute, value in element.attrib.items():
            if not attribute.startswith("{") and "permission" not in element.tag:
                assert value.lower() in noted, attribute


def test_each_documented_child_of_an_address_setting_has_exactly_one_note() -> None:
    values = {"whole": "1", "decimal": "2.5", "flag": "true", "size": "1K", "full-policy": "FAIL", "plain": "x"}
    table = rows("artemis setting")
    children = "".join(f"<{name}>{values.get(row.reader, 'y')}</{name}>" for name, row in table.items())

    notes = read_broker(core(settings(("orders.#", children)))).notes

    noted = [note.setting for note in notes if note.subject == "address-setting 'orders.#'"]
    assert sorted(noted) == sorted([*table, "match"])


@pytest.mark.spec("A-086")
def test_the_shipped_file_sends_dead_messages_to_dlq_and_expired_ones_to_expiry_queue() -> None:
    text = text_of("shipped.xml")
    imported = read_broker(text)

    assert imported == read_broker(text.encode())
    assert list(imported.deployments) == ["broker-1"]
    assert only(imported).queues == {"DLQ": {}, "ExpiryQueue": {}}
    options = in_force(text, "orders.eu")
    assert options["dead_letter_expired"] == "ExpiryQueue"
    assert options["dead_letter_delivery_limit"] == options["dead_letter_rejected"] == "DLQ"
    assert options["max_deliveries"] == 10
    assert "dead_letter_expired" not in in_force(text, "ExpiryQueue")
    notes = {note.subject: note for note in imported.notes}
    assert notes["divert 'copy'"].kind == "left out"
    assert "Redis serves the clients" in notes["acceptor 'artemis'"].text
    assert "users and rights" in notes["security-setting '#'"].text
    assert "reads one file" in note(text, "include").text
    assert note(text, "cluster-password").value == ""
    assert "a secret" not in str(imported.notes)


@pytest.mark.spec("A-084")
def test_of_two_settings_with_one_match_and_of_two_sections_the_first_counts() -> None:
    first = settings(("a", "<expiry-delay>1</expiry-delay>"), ("a", "<expiry-delay>2</expiry-delay>"))
    text = core(first, settings(("b", "<expiry-delay>1</expiry-delay>")))

    assert in_force(text, "a")["default_ttl"] == 1
    assert "the first one counts" in note(text, "address-settings").text
    assert [note.text for note in read_broker(text).notes if "earlier" in note.text] == [
        "an earlier address-setting has the same match, and Artemis keeps that one"
    ]


def test_namespaces_may_have_a_prefix_or_be_absent() -> None:
    plain = "<configuration><core><name>x</name></core></configuration>"
    inner = '<c:core xmlns:c="urn:activemq:core"><c:name>x</c:name></c:core>'
    prefixed = f'<q:configuration xmlns:q="urn:activemq">{inner}</q:configuration>'
    bare = '<core xmlns="urn:activemq:core"><name>x</name></core>'

    assert read_broker(plain) == read_broker(prefixed) == read_broker(bare)


PLACE = "/configuration/core/address-settings/address-setting"
REFUSED: dict[str | bytes, str] = {
    '<!DOCTYPE c [<!ENTITY x SYSTEM "file:///etc/passwd">]><core>&x;</core>': "without a document type definition",
    "": "line 1, column 1: expected well-formed XML: no element found",
    "<core>\n<name>": "line 2, column 7: expected well-formed XML: no element found",
    b"<core>\xff</core>": "expected well-formed XML: not well-formed (invalid token)",
    b'<?xml version="1.0" encoding="no-such"?><core/>': "expected ",
    "<core>\ud800</core>": "broker.xml: expected XML in a known encoding",
    "<html/>": "/html: expected the root element 'configuration' or 'core' of the namespace 'urn:activemq', got 'html'",
    "<configuration/>": "/configuration: expected one element 'core', got 0",
    "<a>" * 3000 + "</a>" * 3000: "expected fewer levels of elements",
    core(settings(("", ""))): f"{PLACE}: expected the attribute 'match' with a value, got none",
    core("<addresses><address/></addresses>"): "/addresses/address: expected the attribute 'name'",
    core("<wildcard-addresses><delimiter>/</delimiter></wildcard-addresses>"): "expected the usual wildcards",
    core("<literal-match-markers>()</literal-match-markers>"): "expected no literal matches",
    5: "expected the text of an XML file, got int 5",  # type: ignore[dict-item]  # the wrong type is the test
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_bad_file_is_refused_with_its_place_and_its_rule(text: str | bytes) -> None:
    with pytest.raises(InvalidImport) as refused:
        read_broker(text)

    assert REFUSED[text] in str(refused.value)


UNREADABLE = [
    ("expiry-delay", "soon", "a whole number, got 'soon'"),
    ("expiry-delay", "9" * 30, "a whole number, got '999999999999999999999999999999'"),
    ("expiry-delay", "${delay}", "a whole number, got '${delay}'; write the value of the property"),
    ("no-expiry", "yes", "true or false, got 'yes'"),
    ("no-expiry", "1", "true or false, got '1'"),
    ("redelivery-delay-multiplier", "NaN", "a number, got 'NaN'"),
    ("max-size-bytes", "10 apples", "a number of bytes such as 1048576 or 10MB, got '10 apples'"),
    ("address-full-policy", "SPILL", "one of PAGE, DROP, BLOCK, FAIL, got 'SPILL'"),
    ("ring-size", "x", "a whole number, got 'x'"),
]


@pytest.mark.parametrize("setting, value, rule", UNREADABLE)
def test_a_value_that_cannot_be_read_is_a_note_at_its_setting(setting: str, value: str, rule: str) -> None:
    ring = (
        f'<addresses><address name="a"><anycast><queue name="q" ring-size="{value}"/></anycast></address></addresses>'
    )
    child = settings(("a", ""), ("b", f"<{setting}>{value}</{setting}>"))
    noted = [note for note in read_broker(core(ring if setting == "ring-size" else child)).notes if note.costs]

    text = f"it cannot be read: expected {rule}"
    assert [(note.kind, note.setting, note.text) for note in noted] == [("left out", setting, text)]


def test_queues_of_an_element_jms_are_taken_and_get_the_settings_of_their_addresses(fixtures: dict[str, str]) -> None:
    (deployment,) = read_broker(fixtures["artemis_1x_jms.xml"]).deployments.values()

    assert sorted(deployment.queues) == ["DLQ", "ExpiryQueue", "orders"]
    (policy,) = deployment.policies.values()
    assert policy["pattern"] == "#"
    assert policy["definition"] == {
        "dead-letter-delivery-limit": "DLQ",
        "dead-letter-expired": "ExpiryQueue",
        "dead-letter-rejected": "DLQ",
        "max-deliveries": 10,
        "max-length-bytes": 10 * 2**20,
        "overflow": "reject-publish",
        "redelivery-delay": "none",
    }


def test_a_topic_of_an_element_jms_is_taken() -> None:
    text = "<configuration><jms><topic name='news'/><factory name='f'/></jms><core/></configuration>"
    imported = read_broker(text)

    assert only(imported).queues == {"news": {"bindings": {}}}
    assert [note.subject for note in imported.notes if note.costs] == ["jms: factory 'f'"]
