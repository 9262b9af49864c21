"""Decimal numbers in a buffer, many at once: the processor handles eight digits as one number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]

#: Eight ASCII zeros as a number. XOR with it turns eight ASCII digits into eight bytes of 0 to 9, and back.
ASCII_ZEROS = np.uint64(0x3030303030303030)
_HIGH_BITS = np.uint64(0x8080808080808080)
#: A mask for the last six of eight bytes.
_LAST_SIX = np.uint64(0xFFFFFFFFFFFF0000)
_ABOVE_NINE = np.uint64(0x7676767676767676)


def as_uint64_windows(data: Array) -> Array:
    """View a buffer as numbers: number `i` is made of the eight bytes from `i` on. The numbers overlap; no copy."""
    windows: Array = np.ndarray((max(0, len(data) - 7),), "<u8", data, strides=(1,))
    return windows


def parse_eight_digits(digits: Array) -> tuple[Array, Array]:
    """Parse numbers of eight digits, each given as eight bytes of 0 to 9. The second result marks invalid ones."""
    invalid = non_digit_bits(digits) != 0
    pairs = (digits * np.uint64(2561)) >> np.uint64(8)
    fours = ((pairs & np.uint64(0x00FF00FF00FF00FF)) * np.uint64(6553601)) >> np.uint64(16)
    value = ((fours & np.uint64(0x0000FFFF0000FFFF)) * np.uint64(42949672960001)) >> np.uint64(32)
    return value.astype(np.int64), invalid


def non_digit_bits(digits: Array) -> Array:
    """Set the highest bit of the first byte that is not 0 to 9. Bits of later bytes may be set, too."""
    bits: Array = ((digits + _ABOVE_NINE) | digits) & _HIGH_BITS
    return bits


def parse_sequences(words_from: Callable[[int], Array]) -> tuple[Array, Array, Array]:
    """Parse sequences, `<13 digits>-<6 digits>`. `words_from(i)` has the eight bytes of each from byte `i` on.

    Returns their ms, their serials, and a mask of invalid ones. The caller looks at the dash if it may be missing.
    """
    high, invalid = parse_eight_digits(words_from(0) ^ ASCII_ZEROS)
    low, invalid_low = parse_eight_digits(words_from(5) ^ ASCII_ZEROS)
    serials, invalid_serial = parse_eight_digits((words_from(12) ^ ASCII_ZEROS) & _LAST_SIX)
    return high * 100_000 + low % 100_000, serials, invalid | invalid_low | invalid_serial


def leading_number(digits: Array) -> tuple[Array, Array]:
    """Parse the numbers at the start of eight bytes; return values and widths. Width 8: more digits may follow."""
    stop = non_digit_bits(digits)
    # the lowest bit of `stop`, which is exact as a float
    bits = np.frexp((stop & (~stop + np.uint64(1))).astype(np.float64))[1]
    width = np.where(stop == 0, 8, (bits - 1) >> 3)
    shift = ((8 - width) * 4).astype(np.uint64)
    # a shift by 64 is not defined: two shifts by at most 32
    return parse_eight_digits((digits << shift) << shift)[0], width
