"""The list of contract tests that cannot pass on the fake broker: it names tests that there are, and no more.

That those which are listed fail there is shown by the run itself: they are strictly expected to.
"""

from __future__ import annotations

import ast
import re

from tests.contract.fake_cannot import FAKE_CANNOT, FAKE_WAITS
from tests.repository import ROOT

FOLDER = ROOT / "tests" / "contract"


def contract_tests() -> set[str]:
    return {
        f"{path.name}::{node.name}"
        for path in FOLDER.glob("test_*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_the_list_names_tests_that_exist_with_a_reason() -> None:
    assert FAKE_CANNOT.keys() | FAKE_WAITS.keys() <= contract_tests()
    assert FAKE_CANNOT.keys() & FAKE_WAITS.keys() == set()
    assert all(len(why) > 20 for why in (*FAKE_CANNOT.values(), *FAKE_WAITS.values()))


def test_nearly_all_contract_tests_run_on_the_fake() -> None:
    assert len(FAKE_CANNOT) + len(FAKE_WAITS) < len(contract_tests()) / 20


def test_the_run_on_the_fake_is_part_of_all_tests() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")

    assert re.search(r"^test:.* test-fake\b", makefile, re.MULTILINE)
    assert re.search(r"^\tRQTTL_TEST_REDIS=fake .* tests/contract$", makefile, re.MULTILINE)
