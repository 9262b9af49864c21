from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from rqttl.errors import InvalidImport
from rqttl.imports.artemis import read_broker
from tests.unit.imports.artemis.examples import addresses, core, settings

LAUGHS = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
SETTING = "/configuration/core/address-settings/address-setting"


def child(name: str, value: str) -> str:
    return core(settings(("a", f"<{name}>{value}</{name}>")))


REFUSED: dict[str | bytes, str] = {
    f'<!DOCTYPE c [<!ENTITY l0 "lol">{LAUGHS}]><core>&l9;</core>': "without a document type definition",
    '<!DOCTYPE c [<!ENTITY x SYSTEM "file:///etc/passwd">]><core>&x;</core>': "without a document type definition",
    '<!DOCTYPE c SYSTEM "http://127.0.0.1/x.dtd"><core/>': "without a document type definition",
    "": "line 1, column 1: expected well-formed XML: no element found",
    "not xml": "line 1, column 1: expected well-formed XML: syntax error",
    '{"queues": []}': "line 1, column 1: expected well-formed XML: not well-formed (invalid token)",
    "<core><name></core>": "line 1, column 15: expected well-formed XML: mismatched tag",
    "<core>\n<name>": "line 2, column 7: expected well-formed XML: no element found",
    "<core>&undefined;</core>": "expected well-formed XML: undefined entity",
    b"<core>\xff</core>": "expected well-formed XML: not well-formed (invalid token)",
    b'<?xml version="1.0" encoding="no-such"?><core/>': "expected ",
    "<core>\ud800</core>": "broker.xml: expected XML in a known encoding",
    "<core>\x00</core>": "expected well-formed XML",
    "<html/>": "/html: expected the root element 'configuration' or 'core' of the namespace 'urn:activemq', got 'html'",
    '<core xmlns="urn:hornetq"/>': "/core: expected the root element",
    '<configuration xmlns="urn:jboss"/>': "/configuration: expected the root element",
    "<configuration/>": "/configuration: expected one element 'core', got 0",
    "<configuration><core/><core/></configuration>": "/configuration: expected one element 'core', got 2",
    "<a>" * 60 + "</a>" * 60: "/a: expected at most 50 levels of elements",
    child("expiry-delay", "soon"): f"{SETTING}/expiry-delay: expected a whole number, got 'soon'",
    child("expiry-delay", ""): f"{SETTING}/expiry-delay: expected a whole number, got ''",
    child("expiry-delay", "1.5"): "expected a whole number, got '1.5'",
    child("expiry-delay", "9" * 30): "expected a whole number",
    child("expiry-delay", "${delay}"): "expected a whole number, got '${delay}'; write the value of the property",
    child("no-expiry", "yes"): f"{SETTING}/no-expiry: expected true or false, got 'yes'",
    child("redelivery-delay-multiplier", "two"): "expected a number, got 'two'",
    child("redelivery-delay-multiplier", "NaN"): "expected a number, got 'NaN'",
    child("max-size-bytes", "10 apples"): "expected a number of bytes such as 1048576 or 10MB, got '10 apples'",
    child("address-full-policy", "SPILL"): "expected one of PAGE, DROP, BLOCK, FAIL, got 'SPILL'",
    core(settings(("#.a", ""))): f"{SETTING}: expected '#' as the last word only, got '#.a'",
    core(settings(("", ""))): f"{SETTING}: expected the attribute 'match' with a value, got none",
    core("<address-settings><address-setting/></address-settings>"): "expected the attribute 'match'",
    core("<addresses><address/></addresses>"): "/addresses/address: expected the attribute 'name'",
    core('<addresses><address name="a"><anycast><queue/></anycast></address></addresses>'): "/queue: expected the",
    core(
        '<addresses><address name="a"><anycast><queue name="q" ring-size="x"/></anycast></address></addresses>'
    ): "/queue/@ring-size: expected a whole number, got 'x'",
    core("<wildcard-addresses><delimiter>/</delimiter></wildcard-addresses>"): "expected the usual wildcards",
    core("<literal-match-markers>()</literal-match-markers>"): "expected no literal matches",
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_bad_file_is_refused_with_its_place_and_its_rule(text: str | bytes) -> None:
    with pytest.raises(InvalidImport) as refused:
        read_broker(text)

    assert REFUSED[text] in str(refused.value)


def test_the_second_of_two_elements_is_named_with_its_number() -> None:
    text = core(settings(("a", ""), ("b", "<no-expiry>1</no-expiry>")))

    with pytest.raises(InvalidImport, match=r"address-setting\[2\]/no-expiry: "):
        read_broker(text)


def test_a_value_that_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidImport, match="expected the text of an XML file, got int 5"):
        read_broker(5)  # type: ignore[arg-type]  # the wrong type is the test


def test_a_large_file_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rqttl.imports.artemis.xml.MAX_SIZE", 5)

    with pytest.raises(InvalidImport, match="expected at most 5 characters, got 7"):
        read_broker("<core/>")


SHAPES: dict[str, Callable[[int], str]] = {
    "matches": lambda n: settings(*((f"a.x{i}.#", "<redelivery-delay>1</redelivery-delay>") for i in range(n))),
    "matches with the same name": lambda n: settings(
        *((f"{'a' * 130}{i}", "<no-expiry>true</no-expiry>") for i in range(n))
    ),
    "queues": lambda n: "".join(
        (
            addresses(**{f"a.x{i}": f"a.q{i}" for i in range(n)}),
            settings(*((f"a.x{i}", "<max-delivery-attempts>3</max-delivery-attempts>") for i in range(n))),
        )
    ),
    "children of a setting": lambda n: settings(("a", "<expiry-delay>1</expiry-delay>" * n)),
    "children of the core": lambda n: "<name>a</name>" * n,
}


def calls_for(text: str) -> int:
    calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        read_broker(text)
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("shape", SHAPES)
def test_a_file_four_times_as_long_takes_four_times_as_many_calls(shape: str) -> None:
    read_broker(core(SHAPES[shape](1)))

    few = calls_for(core(SHAPES[shape](100)))
    assert calls_for(core(SHAPES[shape](400))) < 5 * few
