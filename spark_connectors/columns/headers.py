"""Packed headers, many at once: numpy locates the parts of all headers in one buffer, without a loop over rows.

`codec.unpack_header` defines the format; a property test compares this module with it. An invalid header raises
`Malformed` with its row; the caller then removes the damaged parts (`codec.sound_header`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from rqttl.protocol import codec
from spark_connectors.redis.digits import ASCII_ZEROS, Array, as_uint64_windows, parse_eight_digits
from spark_connectors.redis.pages import take_bytes

#: Bytes before the buffer, so that each position has eight bytes before it.
_PAD = np.full(16, ord("0"), np.uint8)
_SEMICOLON, _SPACE = 59, 32
_FIELDS = 9
#: The places of plain numbers in a record: the number of deaths in the same queue for the same reason, the times of the
#: first and of the newest of them, the time of arrival in the queue, and the number of failed deliveries.
NUMBERS = {"count": 2, "first_at": 3, "last_at": 4, "enqueued_at": 5, "delivery_count": 7}
#: The reason of a record of a redrive, which is no death: eight bytes, as a number.
_REDRIVEN = np.frombuffer(codec.REDRIVEN, "<u8")[0]
_ALL_ONES = np.uint64(0xFFFFFFFFFFFFFFFF)
#: Digits of a time in ms, until the year 2286. A mask for the last five of eight bytes.
_TIME_DIGITS = 13
_LAST_FIVE = np.uint64(0xFFFFFFFFFF000000)


class Malformed(ValueError):
    """The header of row `row` is invalid."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row


class ByteStrings:
    """Byte strings in one buffer, with the start and the stop of each."""

    def __init__(self, parts: pa.Array) -> None:
        offsets = np.frombuffer(parts.buffers()[1], np.int32, len(parts) + 1)
        data = np.frombuffer(parts.buffers()[2] or b"", np.uint8, int(offsets[-1]))
        self.bytes: Array = np.concatenate([_PAD, data])
        self._windows = as_uint64_windows(self.bytes)
        self.starts: Array = offsets[:-1].astype(np.int64) + len(_PAD)
        self.stops: Array = offsets[1:].astype(np.int64) + len(_PAD)

    def numbers(self, starts: Array, stops: Array) -> tuple[Array, Array]:
        """Parse numbers of up to 16 digits; no digit at all is 0. The second result marks invalid ones."""
        width = stops - starts
        if (width == 1).all():
            digit = self.bytes[starts] - np.uint8(ord("0"))
            return digit.astype(np.int64), digit > 9
        if (width == _TIME_DIGITS).all():
            high, invalid = parse_eight_digits(self._windows[starts] ^ ASCII_ZEROS)
            low, invalid_low = parse_eight_digits((self._windows[stops - 8] ^ ASCII_ZEROS) & _LAST_FIVE)
            return high * 100_000 + low, invalid | invalid_low
        value, invalid = self._last_eight(stops, np.minimum(width, 8))
        if (width > 8).any():
            high, invalid_high = self._last_eight(stops - 8, np.clip(width - 8, 0, 8))
            value = value + high * 100_000_000
            invalid |= invalid_high
        return value, invalid | (width > 16) | (width < 0)

    def _last_eight(self, stops: Array, width: Array) -> tuple[Array, Array]:
        """Parse the last `width` digits, at most eight, before each position."""
        shift = ((8 - np.clip(width, 0, 8)) * 8).astype(np.uint64)
        # a shift by 64 is not defined: two shifts by at most 32
        mask = (_ALL_ONES << (shift >> np.uint64(1))) << (shift - (shift >> np.uint64(1)))
        return parse_eight_digits((self._windows[stops - 8] ^ ASCII_ZEROS) & mask)

    def equal_eight_bytes(self, starts: Array, stops: Array, expected: Any) -> Array:
        """Mark the strings that are equal to these eight bytes, given as a number."""
        windows = self._windows[np.minimum(starts, len(self._windows) - 1)]
        equal: Array = (stops - starts == 8) & (windows == expected)
        return equal

    def take(self, starts: Array, stops: Array) -> pa.Array:
        """Make an Arrow array of parts of the buffer. Their positions rise and do not overlap."""
        return take_bytes(self.bytes, starts, stops)


class Headers:
    """The packed headers of some entries: for each row, the positions of its parts in `strings`.

    `deadline` is the message's own deadline in ms, or -1.
    """

    def __init__(self, headers: pa.Array) -> None:
        self.strings = strings = ByteStrings(headers)
        starts, ends = strings.starts, strings.stops
        semicolons = np.append(np.flatnonzero(strings.bytes == _SEMICOLON), [len(strings.bytes)] * 3)
        at = np.searchsorted(semicolons, starts)
        first, second, third = semicolons[at], semicolons[at + 1], semicolons[at + 2]
        full = first < ends
        if not full.all():
            # some headers are empty, or hold only a deadline
            first = np.where(full, first, ends)
            second, third = np.where(full, second, ends), np.where(full, third, ends)
        self._check(third > ends - full, "it has less than three semicolons")
        has_deadline = first > starts
        self.deadline = np.full(len(starts), -1)
        if has_deadline.any():
            deadline, invalid = strings.numbers(starts, first)
            self._check(invalid, "its deadline is not a number")
            self.deadline = np.where(has_deadline, deadline, -1)
        id_length, invalid = strings.numbers(np.minimum(first + 1, second), second)
        deaths_length, invalid_deaths = strings.numbers(np.minimum(second + 1, third), third)
        self._check(invalid | invalid_deaths, "a length in it is not a number")
        self.id_starts = np.minimum(third + 1, ends)
        self.id_stops = self.deaths_starts = self.id_starts + id_length
        self.deaths_stops = self.deaths_starts + deaths_length
        self._check(self.deaths_stops > ends, "it is shorter than its lengths say")

    def message_ids(self) -> tuple[pa.Array, Array]:
        """Return the ids of the senders. The second result marks the rows with an id."""
        return self.strings.take(self.id_starts, self.id_stops), self.id_stops > self.id_starts

    def extras(self) -> pa.Array:
        """Return the packed content types and headers."""
        return self.strings.take(self.deaths_stops, self.strings.stops)

    def _check(self, invalid: Array, reason: str) -> None:
        if invalid.any():
            raise Malformed(int(np.argmax(invalid)), reason)


class DeathRecords:
    """The death records of some headers, in the order of rows; within a row the newest record comes first.

    `rows` has the row of each record. Times are in ms. `expires_at` is -1 for a message without a deadline.
    """

    def __init__(self, headers: Headers) -> None:
        self._strings = headers.strings
        self._spaces = np.append(
            np.flatnonzero(headers.strings.bytes == _SPACE), [len(headers.strings.bytes)] * (_FIELDS + 1)
        )
        rows = np.flatnonzero(headers.deaths_stops > headers.deaths_starts)
        starts, ends = headers.deaths_starts[rows], headers.deaths_stops[rows]
        rounds: list[tuple[Array, Array, Array, Array]] = []
        while len(rows):
            spaces, stops = self._next(rows, starts, ends)
            rounds.append((rows, starts, spaces, stops))
            more = stops < ends
            rows, starts, ends = rows[more], stops[more], ends[more]
        if not rounds:
            rounds.append((rows, starts, np.empty((_FIELDS, 0), np.int64), starts))
        self.rows, self._starts, self._spaces_of, self._stops = rounds[0]
        if len(rounds) > 1:
            self.rows, self._starts, self._stops = (np.concatenate([part[i] for part in rounds]) for i in (0, 1, 3))
            self._spaces_of = np.concatenate([part[2] for part in rounds], axis=1)
            order = np.argsort(self._starts, kind="stable")
            self.rows, self._starts, self._stops = self.rows[order], self._starts[order], self._stops[order]
            self._spaces_of = self._spaces_of[:, order]
        self._drop(self._strings.equal_eight_bytes(self._spaces_of[0] + 1, self._spaces_of[1], _REDRIVEN))

    def _drop(self, dropped: Array) -> None:
        if dropped.any():
            kept = ~dropped
            self.rows, self._starts, self._stops = self.rows[kept], self._starts[kept], self._stops[kept]
            self._spaces_of = self._spaces_of[:, kept]

    def _next(self, rows: Array, starts: Array, ends: Array) -> tuple[Array, Array]:
        """Return the nine spaces of the next record of each row, and the stop of its description."""
        at = np.searchsorted(self._spaces, starts)
        spaces = self._spaces[at + np.arange(_FIELDS)[:, None]]
        self._check(rows, spaces[-1] >= ends, "a death record in it is incomplete")
        length, invalid = self._strings.numbers(spaces[7] + 1, spaces[8])
        self._check(rows, invalid, "the length of a description in it is not a number")
        stops = spaces[8] + 1 + length
        self._check(rows, stops > ends, "a death record in it ends beyond the header")
        return spaces, stops

    def queue(self) -> pa.Array:
        """Return the queues of the deaths."""
        return self._strings.take(self._starts, self._spaces_of[0])

    def reason(self) -> pa.Array:
        """Return the reasons of the deaths."""
        return self._strings.take(self._spaces_of[0] + 1, self._spaces_of[1])

    def expires_at(self) -> Array:
        """Return the deadlines at the deaths, or -1."""
        starts, stops = self._spaces_of[5] + 1, self._spaces_of[6]
        none = (stops == starts + 1) & (self._strings.bytes[starts] == ord("-"))
        return np.where(none, -1, self._numbers_at(6, starts + none))

    def description(self) -> tuple[pa.Array, Array]:
        """Return the descriptions. The second result marks the records with a description."""
        starts = self._spaces_of[8] + 1
        return self._strings.take(starts, self._stops), self._stops > starts

    def numbers(self, name: str) -> Array:
        """Return one of the `NUMBERS` of the records."""
        place = NUMBERS[name]
        return self._numbers_at(place, self._spaces_of[place - 1] + 1)

    def _numbers_at(self, place: int, starts: Array) -> Array:
        value, invalid = self._strings.numbers(starts, self._spaces_of[place])
        self._check(self.rows, invalid, "a number in a death record is invalid")
        return value

    def _check(self, rows: Array, invalid: Array, reason: str) -> None:
        if invalid.any():
            raise Malformed(int(rows[np.argmax(invalid)]), reason)
