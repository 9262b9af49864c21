"""Scripts against the tables of Python: the parts of a queue, and the options that scripts read."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import get_args

import pytest

from rqttl.options import OPTIONS, SCRIPT_OPTIONS
from rqttl.protocol import keys, scripts
from rqttl.types import QueueStats, State
from tests.repository import lua_files
from tests.unit.test_scripts import FRAGMENTS, NAMES, source


def test_a_star_in_a_header_stands_for_all_parts_of_a_queue_in_the_order_of_the_table() -> None:
    for name in ("delete", "sweep"):
        assert scripts.load(name).keys == tuple(keys.PARTS)


def test_a_deleted_queue_keeps_only_the_parts_that_outlive_it() -> None:
    for name in ("delete", "sweep"):
        unlinked = re.findall(r"q\.(\w+)", linked(name, "record.unlink"))
        assert unlinked == [part.name for part in keys.PARTS.values() if not part.outlives]


def linked(name: str, function: str) -> str:
    """A function of a fragment, as the text of a command has it."""
    local = function.replace(".", "_")
    functions: list[str] = re.findall(rf"(?ms)^function {local}\(.*?^end$", scripts.load(name).text)
    return functions[0]


def test_the_count_of_ready_messages_leaves_out_all_other_states() -> None:
    count = linked("enqueue", "ready.count")

    assert re.findall(r"'ZCARD', q\.(\w+)", count) == list(keys.STATES)
    assert re.findall(r"'(?:X|H)LEN', q\.(\w+)", count) == ["log", "detached"]


def test_states_are_the_words_of_the_public_types() -> None:
    names = [state.name for state in keys.STATES.values()]
    stats = {field.name: field.type for field in fields(QueueStats)}

    assert get_args(State) == ("ready", *names)
    assert {stats.get(name) for name in names} == {"int"}
    assert {stats.get(state.end) for state in keys.STATES.values() if state.end} == {"datetime | None"}


def test_states_are_sorted_sets_and_a_sweep_promotes_by_plain_times() -> None:
    assert {keys.PARTS[part].type for part in keys.STATES} == {"zset"}
    assert {keys.STATES[part].per_ms for part in keys.LISTS["promoted"]} == {1}


def test_no_script_lists_states_by_hand() -> None:
    """A script that names the sets of two states in one statement counts them, or looks through them."""
    by_hand = []
    for path in lua_files(""):
        code = re.sub(r"--.*", "", path.read_text(encoding="utf-8"))
        by_hand += [(path.name, line) for line in code.splitlines() if sum(part in line for part in keys.STATES) > 1]

    assert by_hand == []


def test_the_states_in_a_header_stand_for_the_parts_of_all_states() -> None:
    for name in ("stats", "peek", "purge", "preview"):
        assert "states" in source("commands", name).partition("@keys")[2].partition("\n")[0].split()
        assert set(keys.STATES) <= set(scripts.load(name).keys)
    assert set(keys.STATES) <= set(scripts.load("redrive").source)


def test_scripts_bind_the_keys_of_a_target_in_the_order_of_the_table() -> None:
    bound = re.findall(r"(\w+) = keys\[at \+ (\d+)\]", source("lib", "dead_letter"))

    assert [(name, int(at)) for name, at in bound] == [(name, i) for i, name in enumerate(keys.TARGET_PARTS, 1)]
    assert re.findall(r"\bat = at \+ (\d+)$", source("lib", "dead_letter"), re.MULTILINE) == [
        str(len(keys.TARGET_PARTS))
    ]


def fields_read(module: str, function: str) -> set[str]:
    """The fields of `meta` that a function of a fragment reads."""
    [text] = re.findall(rf"^function {module}\.{function}\(.*?^end$", source("lib", module), re.MULTILINE | re.DOTALL)
    [fields] = re.findall(r"'HMGET', [qt]\.meta,\s+([^)]*)\)", text)
    return set(re.findall(r"'(\w+)'", fields))


@pytest.mark.parametrize(
    "use, place",
    [("always", ("options", "read")), ("lifetime", ("queue_lifetime", "read")), ("failure", ("pause", "rule"))],
)
def test_scripts_read_exactly_the_options_that_the_table_says(use: str, place: tuple[str, str]) -> None:
    assert fields_read(*place) & OPTIONS.keys() == {name for name, calls in SCRIPT_OPTIONS.items() if calls == use}


def test_no_script_reads_an_option_that_only_clients_know() -> None:
    texts = [source("commands", name) for name in NAMES] + [source("lib", name) for name in FRAGMENTS]
    quoted = {word for text in texts for word in re.findall(r"'(\w+)'", text)}

    assert quoted & OPTIONS.keys() - SCRIPT_OPTIONS.keys() == set()
