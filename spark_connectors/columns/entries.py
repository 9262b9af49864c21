"""Entries of logs as Arrow columns: only the chosen ones are built, and most of them without a loop in Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rqttl import codec
from rqttl.units import MAX_INSTANT
from spark_connectors.columns import schema, texts
from spark_connectors.columns.headers import Headers, Malformed, Records
from spark_connectors.redis.digits import ZEROS, Array, decimal, words
from spark_connectors.redis.pages import NO_PLACE, WIDTH, Joiner, Page, malformed, take

#: Entries of one queue.
Run: TypeAlias = tuple[str, Page]

_MOST_INT = 2**31 - 1
#: Digits of the milliseconds in a sequence, before a dash.
_MS = 13
_DASH = ord("-")
#: Of eight bytes the last six: what follows the dash.
_LAST_SIX = np.uint64(0xFFFFFFFFFFFF0000)
#: Extras that were unpacked are remembered: most senders repeat themselves.
_REMEMBERED = 4096


class Columns:
    """Makes record batches of the chosen columns. For one thread."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.schema = schema.arrow(names)
        self._names = names
        self._remembered: dict[bytes, texts.Extras] = {}
        self._joiner = Joiner()

    def batch(self, runs: Sequence[Run]) -> pa.RecordBatch:
        """The entries of these runs, in order, at least one. Of a damaged header the columns show what can be read.

        Raises `MalformedEntry` for what has not the place of a message.
        """
        rows = _Rows(runs, self._joiner.join([page for _, page in runs]), self._remembered)
        try:
            return self._build(rows)
        except Malformed:
            rows.mend_headers()
        try:
            return self._build(rows)
        except Malformed as error:
            raise malformed(*rows.where(error.row), str(error)) from None

    def _build(self, rows: _Rows) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([_BUILD[name](rows) for name in self._names], schema=self.schema)


class _Rows:
    """Some entries, and what several columns need of them, found once."""

    def __init__(self, runs: Sequence[Run], page: Page, remembered: dict[bytes, texts.Extras]) -> None:
        self._runs, self._page, self._remembered = runs, page, remembered
        self.count = len(self._page)
        self._fields: dict[str, pa.Array] = {}

    @cached_property
    def _arrivals(self) -> tuple[Array, Array]:
        """All sequences end to end, and the ms in which each message came into its queue."""
        places = self._page.sequences()
        seen = words(places)
        high, wrong = decimal(seen[::WIDTH] ^ ZEROS)
        low, also_wrong = decimal(seen[_MS - 8 :: WIDTH] ^ ZEROS)
        _, no_serial = decimal((seen[WIDTH - 8 :: WIDTH] ^ ZEROS) & _LAST_SIX)
        wrong |= also_wrong | no_serial | (places[_MS::WIDTH] != _DASH)
        if wrong.any():
            raise Malformed(int(np.argmax(wrong)), NO_PLACE)
        return places, high * 100_000 + low % 100_000

    @property
    def arrived_at(self) -> Array:
        """The ms in which each came into its queue."""
        return self._arrivals[1]

    def where(self, row: int) -> tuple[str, bytes]:
        """The queue and the sequence of a row."""
        ends = np.cumsum([len(page) for _, page in self._runs])
        return self._runs[int(np.searchsorted(ends, row, "right"))][0], self._page.place(row)

    def queue(self) -> pa.Array:
        names = pa.array([queue for queue, _ in self._runs])
        if len(names) == 1:
            return pa.repeat(names[0], self.count)
        return names.take(pa.array(np.repeat(np.arange(len(names)), [len(some) for _, some in self._runs])))

    def sequence(self) -> pa.Array:
        offsets = np.arange(0, WIDTH * self.count + 1, WIDTH, dtype=np.int32)
        return pa.Array.from_buffers(
            pa.string(), self.count, [None, pa.py_buffer(offsets), pa.py_buffer(self._arrivals[0])]
        )

    def id(self) -> pa.Array:
        ids, some = self.headers.ids()
        if some.all():
            return _text(ids)
        return pc.if_else(pa.array(some), _text(ids), self.sequence()) if some.any() else self.sequence()

    @cached_property
    def headers(self) -> Headers:
        return Headers(self._packed)

    @cached_property
    def _packed(self) -> pa.Array:
        return take(self._page.data, self._page.headers, self._page.header_stops)

    def mend_headers(self) -> None:
        """Leave out what is damaged in headers. That looks at each of them, so it is done only where one is."""
        mended = pa.array([codec.sound_header(one) for one in self._packed.to_pylist()], self._packed.type)
        for name in ("headers", "_records", "_newest", "_extras"):
            self.__dict__.pop(name, None)
        self._fields.clear()
        self._packed = mended

    @cached_property
    def _records(self) -> Records:
        return self.headers.records()

    @cached_property
    def _newest(self) -> Array | None:
        """Which record is the newest death of each row, -1 for none; `None` if each row has exactly one record."""
        rows = self._records.rows
        if len(rows) == self.count and (rows == np.arange(self.count)).all():
            return None
        newest = np.full(self.count, -1)
        newest[rows[::-1]] = np.arange(len(rows))[::-1]
        return newest

    def field(self, name: str) -> pa.Array:
        """A field of all death records."""
        if name not in self._fields:
            self._fields[name] = _FIELD[name](self._records)
        return self._fields[name]

    def newest(self, name: str) -> pa.Array:
        """A field of the newest death of each row, null where there is none."""
        newest = self._newest
        return self.field(name) if newest is None else self.field(name).take(pa.array(newest, mask=newest < 0))

    def enqueued_at(self) -> pa.Array:
        newest = self.newest("enqueued_at")
        return pc.coalesce(newest, _times(self.arrived_at)) if newest.null_count else newest

    def expires_at(self) -> pa.Array:
        newest = self.newest("expires_at")
        alive = None if self._newest is None else self._newest < 0
        return newest if alive is None else pc.if_else(pa.array(alive), _times(self.headers.deadline), newest)

    def death_count(self) -> pa.Array:
        if self._newest is None:
            return self.field("count")
        counts = np.zeros(self.count, np.int64)
        np.add.at(counts, self._records.rows, self._records.count())
        return _counts(counts)

    def deaths(self) -> pa.Array:
        records = pa.StructArray.from_arrays(
            [self.field(field.name) for field in schema.DEATH], fields=list(schema.DEATH)
        )
        sizes = np.bincount(self._records.rows, minlength=self.count)
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), records)

    @cached_property
    def _extras(self) -> tuple[list[texts.Extras], pa.Array]:
        """The different extras, and which of them each row has."""
        found = self.headers.extras().dictionary_encode()
        different = found.dictionary.to_pylist()
        return [self._unpack(extras) for extras in different], found.indices

    def _unpack(self, extras: bytes) -> texts.Extras:
        known = self._remembered.get(extras)
        if known is None:
            if len(self._remembered) >= _REMEMBERED:
                self._remembered.clear()
            known = self._remembered[extras] = texts.unpack_extras(extras)
        return known

    def content_type(self) -> pa.Array:
        different, codes = self._extras
        return pa.array([kind for kind, _ in different], pa.string()).take(codes)

    def header_map(self) -> pa.Array:
        different, codes = self._extras
        # null where there are none: a map without entries costs Spark more than all of its row's texts together
        maps = pa.array([headers or None for _, headers in different], schema.HEADERS)
        return maps.take(codes) if maps.null_count < len(maps) else pa.nulls(self.count, schema.HEADERS)

    def body_json(self) -> pa.Array:
        different, codes = self._extras
        kinds = [kind == codec.MSGPACK for kind, _ in different]
        bodies = zip(self.body().to_pylist(), codes.to_pylist(), strict=True)
        return pa.array([texts.of_body(body) if kinds[code] else None for body, code in bodies], pa.string())

    def body(self) -> pa.Array:
        return take(self._page.data, self._page.bodies, self._page.body_stops)


def _text(data: pa.Array) -> pa.Array:
    """Bytes as text; what is not UTF-8 was written by other means, and must not keep anybody from reading the rest."""
    try:
        return data.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array(
            [None if one is None else one.decode(errors="replace") for one in data.to_pylist()], pa.string()
        )


def _times(ms: Array) -> pa.Array:
    """Times in ms, of which a negative one is none."""
    none = ms < 0
    micros = pa.array(np.minimum(ms, MAX_INSTANT) * 1000, mask=none if none.any() else None)
    return micros.cast(schema.TIME)


def _counts(values: Array) -> pa.Array:
    return pa.array(np.minimum(values, _MOST_INT).astype(np.int32))


def _description(records: Records) -> pa.Array:
    data, some = records.description()
    return _text(data) if some.all() else _text(data.take(pa.array(np.arange(len(data)), mask=~some)))


_FIELD: Mapping[str, Callable[[Records], pa.Array]] = {
    "queue": lambda records: _text(records.queue()),
    "reason": lambda records: _text(records.reason()),
    "count": lambda records: _counts(records.count()),
    "first_at": lambda records: _times(records.first_at()),
    "last_at": lambda records: _times(records.last_at()),
    "enqueued_at": lambda records: _times(records.enqueued_at()),
    "expires_at": lambda records: _times(records.expires_at()),
    "delivery_count": lambda records: _counts(records.delivery_count()),
    "description": _description,
}

_BUILD: Mapping[str, Callable[[_Rows], pa.Array]] = {
    "queue": _Rows.queue,
    "id": _Rows.id,
    "sequence": _Rows.sequence,
    "died_at": lambda rows: _times(rows.arrived_at),
    "source": lambda rows: rows.newest("queue"),
    "reason": lambda rows: rows.newest("reason"),
    "description": lambda rows: rows.newest("description"),
    "enqueued_at": _Rows.enqueued_at,
    "expires_at": _Rows.expires_at,
    "delivery_count": lambda rows: rows.newest("delivery_count"),
    "death_count": _Rows.death_count,
    "content_type": _Rows.content_type,
    "headers": _Rows.header_map,
    "body": _Rows.body,
    "deaths": _Rows.deaths,
    "body_json": _Rows.body_json,
}
