"""Decimal numbers in a buffer, many at once: eight digits are one number to the processor."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]

#: What makes eight digits eight bytes of 0 to 9 each, and back.
ZEROS = np.uint64(0x3030303030303030)
_HIGH_BITS = np.uint64(0x8080808080808080)
_ABOVE_NINE = np.uint64(0x7676767676767676)


def words(data: Array) -> Array:
    """The eight bytes from each place on, as a number: overlapping, so that nothing is copied."""
    seen: Array = np.ndarray((max(0, len(data) - 7),), "<u8", data, strides=(1,))
    return seen


def decimal(digits: Array) -> tuple[Array, Array]:
    """Eight digits, as eight bytes of 0 to 9 each, as numbers; and where one of them is no digit."""
    wrong = no_digits(digits) != 0
    pairs = (digits * np.uint64(2561)) >> np.uint64(8)
    fours = ((pairs & np.uint64(0x00FF00FF00FF00FF)) * np.uint64(6553601)) >> np.uint64(16)
    value = ((fours & np.uint64(0x0000FFFF0000FFFF)) * np.uint64(42949672960001)) >> np.uint64(32)
    return value.astype(np.int64), wrong


def no_digits(digits: Array) -> Array:
    """Which of eight bytes are not 0 to 9: their highest bits, and perhaps those of bytes after the first of them."""
    found: Array = ((digits + _ABOVE_NINE) | digits) & _HIGH_BITS
    return found


def leading(digits: Array) -> tuple[Array, Array]:
    """The numbers that eight bytes begin with, and how many digits they have; eight where more may follow."""
    stop = no_digits(digits)
    # the lowest of its bits, which is exact as a float
    bits = np.frexp((stop & (~stop + np.uint64(1))).astype(np.float64))[1]
    width = np.where(stop == 0, 8, (bits - 1) >> 3)
    shift = ((8 - width) * 4).astype(np.uint64)
    # a shift by 64 is not defined: two shifts by at most 32
    return decimal((digits << shift) << shift)[0], width
