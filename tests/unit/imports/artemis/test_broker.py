from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from rqttl.imports import table
from rqttl.imports.artemis import read_broker
from rqttl.imports.report import Note
from tests.unit.imports.artemis.examples import FILES, core, deployment_of, in_force, only, settings, text_of


def notes(text: str, setting: str) -> list[Note]:
    return [note for note in read_broker(text).notes if note.setting == setting]


def note(text: str, setting: str) -> Note:
    [found] = notes(text, setting)
    return found


@pytest.mark.parametrize("name", FILES)
def test_each_translated_option_is_an_option(name: str) -> None:
    assert deployment_of(read_broker(text_of(name))).policies


@pytest.mark.parametrize("name", FILES)
def test_no_element_and_no_attribute_is_dropped_in_silence(name: str) -> None:
    text = text_of(name)
    noted = " ".join(f"{note.subject} {note.setting} {note.value}" for note in read_broker(text).notes).lower()
    containers = {
        "configuration",
        "core",
        "wildcard-addresses",
        "address-settings",
        "addresses",
        "address-setting",
        "queue",
        "anycast",
        "multicast",
        "address",
        "diverts",
        "acceptors",
        "security-settings",
        "permission",
        "forwarding-address",
    }

    names = [re.sub("{.*}", "", element.tag).lower() for element in ET.fromstring(text).iter()]  # noqa: S314  # our own file
    missing = {found for found in names if found not in containers and found not in noted}

    assert missing == set()
    for element in ET.fromstring(text).iter():  # noqa: S314  # our own file
        for attribute, value in element.attrib.items():
            if not attribute.startswith("{") and "permission" not in element.tag:
                assert value.lower() in noted, attribute


def test_the_fixture_has_each_documented_child_of_an_address_setting() -> None:
    text = text_of("every_element.xml")

    assert [name for name in table.rows("artemis setting") if f"<c:{name}>" not in text] == []


def test_each_child_of_an_address_setting_has_exactly_one_note() -> None:
    noted = [
        note.setting
        for note in read_broker(text_of("every_element.xml")).notes
        if note.subject == "address-setting 'orders.#'"
    ]

    assert [name for name in table.rows("artemis setting") if noted.count(name) != 1] == []


def test_the_same_file_twice_gives_the_same() -> None:
    assert read_broker(text_of("shipped.xml")) == read_broker(text_of("shipped.xml").encode())


@pytest.mark.spec("A-086")
def test_the_shipped_file_sends_dead_messages_to_dlq_and_expired_ones_to_expiry_queue() -> None:
    found = only(read_broker(text_of("shipped.xml")))

    assert found.queues == {"DLQ": {}, "ExpiryQueue": {}}
    options = in_force(text_of("shipped.xml"), "orders.eu")
    assert options["dead_letter_expired"] == "ExpiryQueue"
    assert options["dead_letter_delivery_limit"] == options["dead_letter_rejected"] == "DLQ"
    assert options["max_deliveries"] == 10
    assert "dead_letter_expired" not in in_force(text_of("shipped.xml"), "ExpiryQueue")


def test_the_name_of_the_broker_names_the_deployment() -> None:
    assert list(read_broker(text_of("shipped.xml")).deployments) == ["broker-1"]
    assert list(read_broker(core()).deployments) == ["artemis"]


def test_secrets_stay_out_of_the_notes() -> None:
    assert "a secret" not in str(read_broker(text_of("shipped.xml")).notes)
    assert note(text_of("shipped.xml"), "cluster-password").value == ""


def test_parts_of_other_sections_are_named_with_the_reason() -> None:
    found = {note.subject: note for note in read_broker(text_of("shipped.xml")).notes}

    assert found["divert 'copy'"].text == "rqttl does not copy or forward messages between queues"
    assert "Redis serves the clients" in found["acceptor 'artemis'"].text
    assert "users and rights" in found["security-setting '#'"].text
    assert found["divert 'copy'"].kind == "left out"


def test_an_included_file_is_said_to_be_missing() -> None:
    assert "reads one file" in note(text_of("shipped.xml"), "include").text


def test_a_second_section_is_left_out_as_in_artemis() -> None:
    text = core(settings(("a", "<expiry-delay>1</expiry-delay>")), settings(("b", "<expiry-delay>1</expiry-delay>")))

    assert "the first one counts" in note(text, "address-settings").text
    assert {policy["pattern"] for policy in only(read_broker(text)).policies.values()} == {"a", "#"}


@pytest.mark.spec("A-084")
def test_of_two_settings_with_one_match_the_first_is_kept() -> None:
    text = core(settings(("a", "<expiry-delay>1</expiry-delay>"), ("a", "<expiry-delay>2</expiry-delay>")))

    assert in_force(text, "a")["default_ttl"] == 1
    assert [n.text for n in read_broker(text).notes if "earlier" in n.text] == [
        "an earlier address-setting has the same match, and Artemis keeps that one"
    ]


def test_namespaces_may_have_a_prefix_or_be_absent() -> None:
    plain = "<configuration><core><name>x</name></core></configuration>"
    inner = '<c:core xmlns:c="urn:activemq:core"><c:name>x</c:name></c:core>'
    prefixed = f'<q:configuration xmlns:q="urn:activemq">{inner}</q:configuration>'
    bare = '<core xmlns="urn:activemq:core"><name>x</name></core>'

    assert read_broker(plain) == read_broker(prefixed) == read_broker(bare)
