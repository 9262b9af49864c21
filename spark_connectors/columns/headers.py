"""Packed headers, many at once: where each part of them lies in one buffer, found with numpy instead of row by row.

`rqttl.codec.unpack_header` says what a header is; a property test holds this module to it. What is no header is never
guessed at: `Malformed` names the row, and the caller leaves out what is damaged (`codec.sound_header`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from rqttl import codec
from spark_connectors.redis.digits import ZEROS, Array, decimal, words
from spark_connectors.redis.pages import take

#: Before the buffer, so that the eight bytes before any place can be looked at.
_PAD = np.full(16, ord("0"), np.uint8)
_SEMICOLON, _SPACE = 59, 32
_FIELDS = 9
#: The reason of a record that is no death: the message was put back. Eight bytes, as a number.
_REDRIVEN = np.frombuffer(codec.REDRIVEN, "<u8")[0]
_ALL_ONES = np.uint64(0xFFFFFFFFFFFFFFFF)
#: Digits of a time in ms, until the year 2286; and the last five of eight bytes.
_TIME = 13
_LAST_FIVE = np.uint64(0xFFFFFFFFFF000000)


class Malformed(ValueError):
    """Row `row` is no packed header."""

    def __init__(self, row: int, why: str) -> None:
        super().__init__(why)
        self.row = row


class Texts:
    """Byte strings end to end, seen as one buffer: where each begins and ends in it."""

    def __init__(self, parts: pa.Array) -> None:
        offsets = np.frombuffer(parts.buffers()[1], np.int32, len(parts) + 1)
        found = np.frombuffer(parts.buffers()[2] or b"", np.uint8, int(offsets[-1]))
        self.bytes: Array = np.concatenate([_PAD, found])
        self._words = words(self.bytes)
        self.starts: Array = offsets[:-1].astype(np.int64) + len(_PAD)
        self.ends: Array = offsets[1:].astype(np.int64) + len(_PAD)

    def numbers(self, starts: Array, stops: Array) -> tuple[Array, Array]:
        """Decimal numbers of up to 16 digits at these places, none at all being 0; and where there are none."""
        width = stops - starts
        if (width == 1).all():
            digit = self.bytes[starts] - np.uint8(ord("0"))
            return digit.astype(np.int64), digit > 9
        if (width == _TIME).all():
            high, wrong = decimal(self._words[starts] ^ ZEROS)
            low, also_wrong = decimal((self._words[stops - 8] ^ ZEROS) & _LAST_FIVE)
            return high * 100_000 + low, wrong | also_wrong
        value, wrong = self._last_eight(stops, np.minimum(width, 8))
        if (width > 8).any():
            high, also_wrong = self._last_eight(stops - 8, np.clip(width - 8, 0, 8))
            value = value + high * 100_000_000
            wrong |= also_wrong
        return value, wrong | (width > 16) | (width < 0)

    def _last_eight(self, stops: Array, width: Array) -> tuple[Array, Array]:
        """The numbers of the last `width` digits, at most eight, before each place."""
        shift = ((8 - np.clip(width, 0, 8)) * 8).astype(np.uint64)
        # a shift by 64 is not defined: two shifts by at most 32
        kept = (_ALL_ONES << (shift >> np.uint64(1))) << (shift - (shift >> np.uint64(1)))
        return decimal((self._words[stops - 8] ^ ZEROS) & kept)

    def is_eight(self, starts: Array, stops: Array, word: Any) -> Array:
        """Where the eight bytes `word` stand, and nothing else."""
        found: Array = (stops - starts == 8) & (self._words[np.minimum(starts, len(self._words) - 1)] == word)
        return found

    def take(self, starts: Array, stops: Array) -> pa.Array:
        """The byte strings at these places, which rise and do not overlap."""
        return take(self.bytes, starts, stops)


class Headers:
    """The packed headers of some entries: for each row where its parts begin and end in `texts`.

    `deadline` is the message's own in ms, -1 without one.
    """

    def __init__(self, headers: pa.Array) -> None:
        self.texts = texts = Texts(headers)
        starts, ends = texts.starts, texts.ends
        semicolons = np.append(np.flatnonzero(texts.bytes == _SEMICOLON), [len(texts.bytes)] * 3)
        at = np.searchsorted(semicolons, starts)
        first, second, third = semicolons[at], semicolons[at + 1], semicolons[at + 2]
        full = first < ends
        if not full.all():
            # empty, or nothing but a deadline
            first = np.where(full, first, ends)
            second, third = np.where(full, second, ends), np.where(full, third, ends)
        self._refuse(third > ends - full, "it has less than three semicolons")
        own = first > starts
        self.deadline = np.full(len(starts), -1)
        if own.any():
            deadline, wrong = texts.numbers(starts, first)
            self._refuse(wrong, "its deadline is no number")
            self.deadline = np.where(own, deadline, -1)
        id_length, wrong = texts.numbers(np.minimum(first + 1, second), second)
        deaths_length, also_wrong = texts.numbers(np.minimum(second + 1, third), third)
        self._refuse(wrong | also_wrong, "a length in it is no number")
        self.id_starts = np.minimum(third + 1, ends)
        self.id_stops = self.deaths_starts = self.id_starts + id_length
        self.deaths_stops = self.deaths_starts + deaths_length
        self._refuse(self.deaths_stops > ends, "it is shorter than it says")

    def ids(self) -> tuple[pa.Array, Array]:
        """The senders' ids, and in which rows there is one."""
        return self.texts.take(self.id_starts, self.id_stops), self.id_stops > self.id_starts

    def extras(self) -> pa.Array:
        """What scripts do not read."""
        return self.texts.take(self.deaths_stops, self.texts.ends)

    def records(self) -> Records:
        """All deaths of all rows."""
        return Records(self)

    def _refuse(self, wrong: Array, why: str) -> None:
        if wrong.any():
            raise Malformed(int(np.argmax(wrong)), why)


class Records:
    """The death records of some headers, in order: those of a row one after the other, the newest first.

    `rows` says which row each belongs to; times are in ms, `expires_at` is -1 where there was no deadline.
    """

    def __init__(self, headers: Headers) -> None:
        self._texts = headers.texts
        self._spaces = np.append(
            np.flatnonzero(headers.texts.bytes == _SPACE), [len(headers.texts.bytes)] * (_FIELDS + 1)
        )
        rows = np.flatnonzero(headers.deaths_stops > headers.deaths_starts)
        starts, ends = headers.deaths_starts[rows], headers.deaths_stops[rows]
        found: list[tuple[Array, Array, Array, Array]] = []
        while len(rows):
            spaces, stops = self._next(rows, starts, ends)
            found.append((rows, starts, spaces, stops))
            more = stops < ends
            rows, starts, ends = rows[more], stops[more], ends[more]
        if not found:
            found.append((rows, starts, np.empty((_FIELDS, 0), np.int64), starts))
        self.rows, self._starts, self._spaces_of, self._stops = found[0]
        if len(found) > 1:
            self.rows, self._starts, self._stops = (np.concatenate([one[i] for one in found]) for i in (0, 1, 3))
            self._spaces_of = np.concatenate([one[2] for one in found], axis=1)
            order = np.argsort(self._starts, kind="stable")
            self.rows, self._starts, self._stops = self.rows[order], self._starts[order], self._stops[order]
            self._spaces_of = self._spaces_of[:, order]
        self._leave_out(self._texts.is_eight(self._spaces_of[0] + 1, self._spaces_of[1], _REDRIVEN))

    def _leave_out(self, some: Array) -> None:
        if some.any():
            self.rows, self._starts, self._stops = self.rows[~some], self._starts[~some], self._stops[~some]
            self._spaces_of = self._spaces_of[:, ~some]

    def _next(self, rows: Array, starts: Array, ends: Array) -> tuple[Array, Array]:
        """The nine spaces of the record at each place, and where its description ends."""
        at = np.searchsorted(self._spaces, starts)
        spaces = self._spaces[at + np.arange(_FIELDS)[:, None]]
        self._refuse(rows, spaces[-1] >= ends, "a death record in it is incomplete")
        length, wrong = self._texts.numbers(spaces[7] + 1, spaces[8])
        self._refuse(rows, wrong, "the length of a description in it is no number")
        stops = spaces[8] + 1 + length
        self._refuse(rows, stops > ends, "a death record in it is longer than it says")
        return spaces, stops

    def queue(self) -> pa.Array:
        """Where they died."""
        return self._texts.take(self._starts, self._spaces_of[0])

    def reason(self) -> pa.Array:
        """Why they died."""
        return self._texts.take(self._spaces_of[0] + 1, self._spaces_of[1])

    def count(self) -> Array:
        """How often they died there for this reason."""
        return self._number(2)

    def first_at(self) -> Array:
        """The first such death."""
        return self._number(3)

    def last_at(self) -> Array:
        """The newest such death."""
        return self._number(4)

    def enqueued_at(self) -> Array:
        """When they had come into the queue."""
        return self._number(5)

    def expires_at(self) -> Array:
        """The deadline that was in force, or -1."""
        starts, stops = self._spaces_of[5] + 1, self._spaces_of[6]
        none = (stops == starts + 1) & (self._texts.bytes[starts] == ord("-"))
        return np.where(none, -1, self._number(6, starts + none))

    def delivery_count(self) -> Array:
        """Failed deliveries."""
        return self._number(7)

    def description(self) -> tuple[pa.Array, Array]:
        """What was said, and where something was."""
        starts = self._spaces_of[8] + 1
        return self._texts.take(starts, self._stops), self._stops > starts

    def _number(self, field: int, starts: Array | None = None) -> Array:
        spaces = self._spaces_of
        stops = spaces[field]
        value, wrong = self._texts.numbers(spaces[field - 1] + 1 if starts is None else starts, stops)
        self._refuse(self.rows, wrong, "a number in a death record is none")
        return value

    def _refuse(self, rows: Array, wrong: Array, why: str) -> None:
        if wrong.any():
            raise Malformed(int(rows[np.argmax(wrong)]), why)
