"""Queue options have the names of their flags in all output; in JSON durations end in `_ms`."""

from __future__ import annotations

import pytest

from rqttl import InvalidInput
from rqttl.cli.common.option_flags import json_name, naming_flag, to_json, with_flags
from rqttl.options import OPTIONS, QueueOptions
from tests.cli.conftest import Run
from tests.cli.test_errors import failed

pytestmark = pytest.mark.once


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_in_a_message_of_the_library_has_the_name_of_its_flag(name: str) -> None:
    flag = f"--{name.replace('_', '-')}"
    with pytest.raises(InvalidInput) as error:
        OPTIONS[name].read(name, object())

    assert naming_flag(str(error.value)).startswith(f"{flag}: expected ")


@pytest.mark.parametrize("name", [name for name in OPTIONS if "_" in name])
def test_an_option_within_a_message_has_the_name_of_its_flag(name: str) -> None:
    flag = f"--{name.replace('_', '-')}"

    assert with_flags(f"3 bytes are more than {name}, 2 ({name})") == f"3 bytes are more than {flag}, 2 ({flag})"


@pytest.mark.parametrize(
    "message",
    [
        "queue 'max_length' does not exist",
        "rqttl:{max_length}:meta is no hash",
        "reason 'delivery_limit'",
        "a.max_length and max_length.b and my_max_length",
        "expires after use, with a lease",
    ],
)
def test_words_that_only_look_like_options_stay(message: str) -> None:
    assert with_flags(message) == naming_flag(message) == message


@pytest.mark.parametrize(
    "written, expected",
    [
        ("id: expected text", "--id: expected text"),
        ("headers: 70000 bytes", "--header: 70000 bytes"),
        ("lease: expected 1", "--lease: expected 1"),
        ("url: expected redis://", "url: expected redis://"),  # it may have come from $RQTTL_URL
        ("min_ttl: 2ms is more than max_ttl, 1ms", "--min-ttl: 2ms is more than --max-ttl, 1ms"),
    ],
)
def test_an_argument_that_begins_a_message_has_the_name_of_its_flag(written: str, expected: str) -> None:
    assert naming_flag(written) == expected


def test_the_names_of_durations_end_in_ms_in_json() -> None:
    facts = to_json(QueueOptions.read("orders", {"message_ttl": "1m", "max_length": 5}))

    assert (facts["message_ttl_ms"], facts["lease_ms"], facts["max_length"]) == (60_000, 30_000, 5)
    assert len(facts) == len(OPTIONS)
    assert {name for name in facts if name.endswith("_ms")} == {
        f"{one.name}_ms" for one in OPTIONS.values() if one.kind == "duration"
    }
    assert json_name("max_length") == "max_length"


def test_no_message_of_queue_declare_has_a_name_with_an_underscore(run: Run) -> None:
    """A value that is wrong for each option."""
    for option in OPTIONS.values():
        wrong = {
            "duration": "99999w",
            "count": "-1",
            "size": "-1",
            "target": "a b",
            "choice": "x",
            "number": "x",
            "flag": None,
        }[option.kind]
        if wrong is not None:
            flag = f"--{option.name.replace('_', '-')}"
            line = failed(run("queue", "declare", "orders", flag, wrong), 2)
            assert option.name == flag[2:] or option.name not in line
            assert flag in line
