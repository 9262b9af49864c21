"""The seeded bugs of the model test: each of them still changes a script."""

from __future__ import annotations

import pytest

from tests.model.mutants import MUTANTS, ROOT, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_a_seeded_bug_still_applies_to_its_script(mutant: Mutant) -> None:
    assert mutant.applies(ROOT)


def test_each_seeded_bug_has_a_name_of_its_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
