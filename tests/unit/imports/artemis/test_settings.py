from __future__ import annotations

from typing import Any

import pytest

from rqttl.imports.artemis import read_broker
from tests.unit.imports.artemis.examples import addresses, core, definition, definitions, in_force, only, settings

NONE = "none"


def element(name: str, value: object) -> str:
    return f"<{name}>{value}</{name}>"


CHILDREN: list[tuple[str, dict[str, Any]]] = [
    ("<expiry-delay>10000</expiry-delay>", {"default-ttl": "10s"}),
    ("<expiry-delay>0</expiry-delay>", {"default-ttl": "0"}),
    ("<expiry-delay>-1</expiry-delay>", {"default-ttl": NONE, "message-ttl": NONE}),
    ("<expiry-delay>9223372036854775807</expiry-delay>", {"default-ttl": "3650d"}),
    ("<EXPIRY-Delay> 1500 </EXPIRY-Delay>", {"default-ttl": "1500ms"}),
    ("<min-expiry-delay>10</min-expiry-delay>", {"min-ttl": "10ms"}),
    ("<max-expiry-delay>0</max-expiry-delay>", {"max-ttl": "0"}),
    ("<max-expiry-delay>-1</max-expiry-delay>", {"max-ttl": NONE}),
    ("<max-expiry-delay>-2</max-expiry-delay>", {"max-ttl": NONE}),
    (
        "<min-expiry-delay>100</min-expiry-delay><max-expiry-delay>10</max-expiry-delay>",
        {"min-ttl": "10ms", "max-ttl": "10ms"},
    ),
    ("<no-expiry>true</no-expiry>", {"never-expire": True}),
    ("<no-expiry>FALSE</no-expiry>", {"never-expire": False}),
    ("<expiry-address/>", {"dead-letter-expired": NONE}),
    ("<expiry-address>E</expiry-address>", {"dead-letter-expired": "E"}),
    ("<dead-letter-address>D</dead-letter-address>", {"dead-letter-delivery-limit": "D", "dead-letter-rejected": "D"}),
    ("<dead-letter-address></dead-letter-address>", {"dead-letter-delivery-limit": NONE, "dead-letter-rejected": NONE}),
    ("<max-delivery-attempts>3</max-delivery-attempts>", {"max-deliveries": 3}),
    ("<max-delivery-attempts>-1</max-delivery-attempts>", {"max-deliveries": NONE}),
    ("<max-delivery-attempts>0</max-delivery-attempts>", {"max-deliveries": NONE}),
    ("<redelivery-delay>5000</redelivery-delay>", {"redelivery-delay": "5s"}),
    ("<redelivery-delay>0</redelivery-delay>", {"redelivery-delay": NONE}),
    (
        "<redelivery-delay>5000</redelivery-delay><redelivery-delay-multiplier>2</redelivery-delay-multiplier>",
        {"redelivery-delay": "5s", "redelivery-multiplier": 2, "redelivery-max-delay": "50s"},
    ),
    (
        "<redelivery-delay>5000</redelivery-delay><max-redelivery-delay>2000</max-redelivery-delay>",
        {"redelivery-delay": "2s", "redelivery-max-delay": "2s"},
    ),
    ("<redelivery-delay-multiplier>1.0</redelivery-delay-multiplier>", {"redelivery-multiplier": 1}),
    ("<redelivery-delay-multiplier>0.5</redelivery-delay-multiplier>", {"redelivery-multiplier": NONE}),
    ("<max-redelivery-delay>0</max-redelivery-delay>", {"redelivery-max-delay": NONE}),
    (
        "<redelivery-collision-avoidance-factor>0.15</redelivery-collision-avoidance-factor>",
        {"redelivery-jitter": 0.15},
    ),
    ("<max-size-bytes>-1</max-size-bytes>", {"max-length-bytes": NONE}),
    ("<max-size-bytes>10MB</max-size-bytes>", {"max-length-bytes": NONE}),
    (
        "<address-full-policy>FAIL</address-full-policy><max-size-bytes>10MB</max-size-bytes>",
        {"max-length-bytes": 10 * 2**20, "overflow": "reject-publish"},
    ),
    (
        "<address-full-policy>block</address-full-policy><max-size-messages>5</max-size-messages>",
        {"max-length": 5, "overflow": "reject-publish"},
    ),
    (
        "<address-full-policy>DROP</address-full-policy><max-size-messages>0</max-size-messages>",
        {"max-length": 0, "overflow": "reject-publish"},
    ),
    ("<default-ring-size>7</default-ring-size>", {"max-length": 7, "overflow": "drop-head"}),
    (
        (
            "<default-ring-size>7</default-ring-size><address-full-policy>FAIL</address-full-policy>"
            "<max-size-bytes>1K</max-size-bytes>"
        ),
        {"max-length": 7, "max-length-bytes": NONE, "overflow": "drop-head"},
    ),
    ("<default-ring-size>-1</default-ring-size>", {"max-length": NONE, "overflow": NONE}),
    ("<auto-delete-queues-delay>60000</auto-delete-queues-delay>", {}),
    ("<auto-create-expiry-resources>true</auto-create-expiry-resources>", {"dead-letter-expired": NONE}),
    ("<enable-metrics>true</enable-metrics>", {}),
]


@pytest.mark.parametrize("children, expected", CHILDREN)
def test_children_become_options(children: str, expected: dict[str, Any]) -> None:
    assert definition(children) == expected


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


def test_automatic_dead_letter_resources_become_a_template_with_their_own_prefix() -> None:
    creates = "<dead-letter-address>D</dead-letter-address>"
    creates += "<auto-create-dead-letter-resources>true</auto-create-dead-letter-resources>"

    assert set(definition(creates).values()) == {"DLQ.{queue}"}


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


def test_multicast_queues_are_left_out_and_named() -> None:
    section = '<addresses><address name="a"><multicast><queue name="m"/></multicast></address></addresses>'
    imported = read_broker(core(section))

    assert only(imported).queues == {}
    [note] = [note for note in imported.notes if note.subject == "address 'a': queue 'm'"]
    assert (note.kind, "no topics" in note.text) == ("left out", True)


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
