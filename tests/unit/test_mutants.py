"""The mutants of the model test fit the source. `python -m tests.model.mutants` runs them."""

from __future__ import annotations

import pytest

from tests.model.mutants import MODEL, MUTANTS, ROOT, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_a_mutant_changes_exactly_one_place_of_the_source(mutant: Mutant) -> None:
    assert len(mutant.places(ROOT)) == 1
    assert mutant.new != mutant.old


@pytest.mark.parametrize("mutant", [mutant for mutant in MUTANTS if mutant.test != MODEL], ids=lambda one: one.name)
def test_the_test_that_finds_a_mutant_exists(mutant: Mutant) -> None:
    path, name = mutant.test.split("::")
    assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8")


def test_mutants_have_names_of_their_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) > 100
