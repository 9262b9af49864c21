"""The mutants of the model test fit the scripts. `python -m tests.model.mutants` runs them."""

from __future__ import annotations

import pytest

from tests.model.mutants import MUTANTS, ROOT, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_a_mutant_changes_exactly_one_place_of_all_scripts(mutant: Mutant) -> None:
    assert len(mutant.places(ROOT / "lua")) == 1
    assert mutant.new != mutant.old


def test_mutants_have_names_of_their_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) > 80
