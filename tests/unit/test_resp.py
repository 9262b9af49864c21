"""Commands packed in Python are those that hiredis packs."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import hiredis
from hypothesis import given
from hypothesis import strategies as st

from rqttl.protocol import contract

WORDS = st.binary() | st.text() | st.integers() | st.floats()


@given(st.lists(WORDS, min_size=1).map(tuple))
def test_python_packs_what_hiredis_packs(words: tuple[Any, ...]) -> None:
    assert contract.pack_in_python(words) == hiredis.pack_command(words)


def test_hiredis_packs_where_it_is_and_python_where_it_is_not() -> None:
    ask = (
        "import sys; sys.modules['hiredis'] = None; "
        "from rqttl.protocol import contract; print(contract.pack_command.__name__)"
    )

    assert contract.pack_command.__name__ == "pack_with_hiredis"
    assert subprocess.check_output([sys.executable, "-c", ask], text=True).split() == ["pack_in_python"]
