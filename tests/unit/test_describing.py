"""The description of a failure: class and text of any error, also of a hostile one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rqttl.checks import MAX_DESCRIPTION_BYTES
from rqttl.protocol import codec


class Odd(Exception):
    """An error whose text is what `answer` returns."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer

    def __str__(self) -> str:
        text: str = self.answer()
        return text


class Text(str):
    """Text that fails in each of its methods."""

    __slots__ = ()

    def _fail(self, *_: object, **__: object) -> Any:
        raise SystemExit(9)

    __format__ = __getitem__ = __len__ = __bool__ = __str__ = encode = _fail


def fail() -> str:
    raise SystemExit(9)


def test_an_error_is_its_class_and_its_text() -> None:
    assert codec.describe(ValueError("no such item: 7")) == "ValueError: no such item: 7"
    assert codec.describe(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert codec.describe(SystemExit(3)) == "SystemExit: 3"
    assert codec.describe(ValueError("two\nlines")) == "ValueError: two\nlines"


def test_a_class_that_is_not_built_in_is_named_with_its_module() -> None:
    assert codec.describe(json.JSONDecodeError("bad", "x", 0)).startswith("json.decoder.JSONDecodeError: bad")
    assert codec.describe(Odd(lambda: "why")) == f"{__name__}.Odd: why"
    assert codec.describe(type("Error", (Exception,), {"__module__": "__main__"})("why")) == "Error: why"


@pytest.mark.parametrize("answer", [fail, lambda: 5, lambda: None, lambda: Odd(fail), lambda: str(Odd(fail))])
def test_an_error_whose_text_fails_is_described_all_the_same(answer: Any) -> None:
    assert codec.describe(Odd(answer)) == f"{__name__}.Odd: (its text cannot be read)"


def test_text_of_a_class_of_its_own_is_taken_as_text() -> None:
    assert codec.describe(Odd(lambda: Text("why"))) == f"{__name__}.Odd: why"


@pytest.mark.parametrize("text", ["x" * 10_000, "é" * 10_000, "😀" * 10_000, "a" + "😀" * 10_000, "\udcff" * 10_000])
def test_a_long_text_is_cut_at_a_character(text: str) -> None:
    described = codec.describe(ValueError(text))

    assert MAX_DESCRIPTION_BYTES - 4 < len(described.encode()) <= MAX_DESCRIPTION_BYTES
    assert codec.pack_description(described) == described.encode()
    assert f"ValueError: {text.encode('utf-8', 'backslashreplace').decode()}".startswith(described)


def test_text_that_utf8_cannot_hold_is_escaped() -> None:
    assert codec.describe(OSError("caf\udce9.txt")) == "OSError: caf\\udce9.txt"
