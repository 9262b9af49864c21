"""Scripts against the tables of Python: the parts of a queue, and the options that scripts read."""

from __future__ import annotations

import re

import pytest

from rqttl.options import OPTIONS, SCRIPT_OPTIONS
from rqttl.protocol import keys, scripts
from tests.unit.test_scripts import FRAGMENTS, NAMES, source


def test_a_star_in_a_header_stands_for_all_parts_of_a_queue_in_the_order_of_the_table() -> None:
    for name in ("delete", "sweep"):
        assert scripts.load(name).keys == tuple(keys.PARTS)
    assert scripts.load("clear").keys == tuple(part.name for part in keys.PARTS.values() if not part.outlives)


def test_a_deleted_queue_keeps_only_the_parts_that_outlive_it() -> None:
    [unlinked] = re.findall(r"^function record\.unlink\(q\)\n  redis\.call\('UNLINK', ([^()]*)\)\nend$",
                            source("lib", "record"), re.MULTILINE)  # fmt: skip

    assert re.split(r",\s+", unlinked) == [f"q.{part.name}" for part in keys.PARTS.values() if not part.outlives]


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
