"""Record batches made of the entries of logs: only the requested columns, most of them without a loop in Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rqttl.protocol import codec
from rqttl.units import MAX_INSTANT
from spark_connectors.columns import schema, texts
from spark_connectors.columns.headers import DeathRecords, Headers, Malformed
from spark_connectors.redis.digits import Array, as_uint64_windows, parse_sequences
from spark_connectors.redis.pages import NOT_A_SEQUENCE, SEQUENCE_BYTES, Page, PageBuffer, malformed_entry, take_bytes

#: A page of entries, with its queue.
QueuePage: TypeAlias = tuple[str, Page]

_MAX_INT = 2**31 - 1
#: The place of the dash in a sequence.
_DASH = 13
#: The size of the cache of unpacked extras: most senders repeat theirs.
_MAX_CACHED = 4096


class BatchBuilder:
    """Builds record batches of the requested columns. For one thread."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.schema = schema.arrow_schema(names)
        self._names = names
        self._extras_cache: dict[bytes, texts.Extras] = {}
        self._header = texts.header_bytes if schema.RAW_HEADERS in names else texts.header_text
        self._page_buffer = PageBuffer()

    def build(self, pages: Sequence[QueuePage]) -> pa.RecordBatch:
        """Build a batch of the entries of one page or more, in order. A damaged header shows its readable parts.

        Raises `MalformedEntry` for an entry without a sequence.
        """
        rows = _Rows(pages, self._page_buffer.join([page for _, page in pages]), self._extras_cache, self._header)
        try:
            return self._build(rows)
        except Malformed:
            rows.drop_damage()
        try:
            return self._build(rows)
        except Malformed as error:
            raise malformed_entry(*rows.locate(error.row), str(error)) from None

    def _build(self, rows: _Rows) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([_BUILDERS[name](rows) for name in self._names], schema=self.schema)


class _Rows:
    """The entries of a batch, with cached values that several columns need."""

    def __init__(
        self,
        pages: Sequence[QueuePage],
        joined: Page,
        extras_cache: dict[bytes, texts.Extras],
        header: Callable[[object], str | bytes | None],
    ) -> None:
        self._pages, self._page, self._extras_cache, self._header = pages, joined, extras_cache, header
        self.count = len(self._page)
        self._fields: dict[str, pa.Array] = {}

    @cached_property
    def _arrivals(self) -> tuple[Array, Array]:
        """The bytes of all sequences, end to end, and the time of each arrival in ms."""
        sequences = self._page.sequences()
        windows = as_uint64_windows(sequences)
        ms, _, invalid = parse_sequences(lambda byte: windows[byte::SEQUENCE_BYTES])
        invalid |= sequences[_DASH::SEQUENCE_BYTES] != ord("-")
        if invalid.any():
            raise Malformed(int(np.argmax(invalid)), NOT_A_SEQUENCE)
        return sequences, ms

    @property
    def arrived_at(self) -> Array:
        """The time of each arrival in its queue, in ms."""
        return self._arrivals[1]

    def locate(self, row: int) -> tuple[str, bytes]:
        """Return the queue and the sequence of a row."""
        ends = np.cumsum([len(page) for _, page in self._pages])
        return self._pages[int(np.searchsorted(ends, row, "right"))][0], self._page.sequence(row)

    def queue(self) -> pa.Array:
        names = pa.array([queue for queue, _ in self._pages])
        if len(names) == 1:
            return pa.repeat(names[0], self.count)
        return names.take(pa.array(np.repeat(np.arange(len(names)), [len(page) for _, page in self._pages])))

    def sequence(self) -> pa.Array:
        offsets = np.arange(0, SEQUENCE_BYTES * self.count + 1, SEQUENCE_BYTES, dtype=np.int32)
        return pa.Array.from_buffers(
            pa.string(), self.count, [None, pa.py_buffer(offsets), pa.py_buffer(self._arrivals[0])]
        )

    def message_id(self) -> pa.Array:
        ids, present = self.headers.message_ids()
        if present.all():
            return _as_text(ids)
        return pc.if_else(pa.array(present), _as_text(ids), self.sequence()) if present.any() else self.sequence()

    @cached_property
    def headers(self) -> Headers:
        return Headers(self._packed_headers)

    @cached_property
    def _packed_headers(self) -> pa.Array:
        return take_bytes(self._page.data, self._page.header_starts, self._page.header_stops)

    def drop_damage(self) -> None:
        """Remove the damaged parts of headers. This loops over all rows, so only a batch with damage needs it."""
        sound = [codec.sound_header(packed) for packed in self._packed_headers.to_pylist()]
        for name in ("headers", "_records", "_newest", "_extras"):
            self.__dict__.pop(name, None)
        self._fields.clear()
        self._packed_headers = pa.array(sound, self._packed_headers.type)

    @cached_property
    def _records(self) -> DeathRecords:
        return DeathRecords(self.headers)

    @cached_property
    def _newest(self) -> Array | None:
        """The index of the newest record of each row, or -1; `None` if each row has exactly one record."""
        rows = self._records.rows
        if len(rows) == self.count and (rows == np.arange(self.count)).all():
            return None
        newest = np.full(self.count, -1)
        newest[rows[::-1]] = np.arange(len(rows))[::-1]
        return newest

    def field(self, name: str) -> pa.Array:
        """Return a field of all death records."""
        if name not in self._fields:
            self._fields[name] = _FIELD_BUILDERS[name](self._records)
        return self._fields[name]

    def newest(self, name: str) -> pa.Array:
        """Return a field of the newest death of each row, or null."""
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
        np.add.at(counts, self._records.rows, self._records.numbers("count"))
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
        """The distinct extras, and the index of the extras of each row."""
        encoded = self.headers.extras().dictionary_encode()
        distinct = encoded.dictionary.to_pylist()
        return [self._unpack(extras) for extras in distinct], encoded.indices

    def _unpack(self, extras: bytes) -> texts.Extras:
        unpacked = self._extras_cache.get(extras)
        if unpacked is None:
            if len(self._extras_cache) >= _MAX_CACHED:
                self._extras_cache.clear()
            unpacked = self._extras_cache[extras] = texts.unpack_extras(extras, self._header)
        return unpacked

    def content_type(self) -> pa.Array:
        distinct, codes = self._extras
        return pa.array([kind for kind, _ in distinct], pa.string()).take(codes)

    def header_map(self, key: str) -> pa.Array:
        distinct, codes = self._extras
        # null for no headers: an empty map costs Spark more than all texts of its row together
        kind = schema.arrow_schema((key,)).types[0]
        maps = pa.array([headers or None for _, headers in distinct], kind)
        return maps.take(codes) if maps.null_count < len(maps) else pa.nulls(self.count, kind)

    def packed_headers(self) -> pa.Array:
        return pa.array(map(texts.packed_headers, self.headers.extras().to_pylist()), pa.binary())

    def body_json(self) -> pa.Array:
        distinct, codes = self._extras
        bodies = zip(self.body().to_pylist(), codes.to_pylist(), strict=True)
        return pa.array([texts.body_json(body, distinct[code][0]) for body, code in bodies], pa.string())

    def body(self) -> pa.Array:
        return take_bytes(self._page.data, self._page.body_starts, self._page.body_stops)


def _as_text(data: pa.Array) -> pa.Array:
    """Decode UTF-8. Invalid bytes come from other programs; replacement characters keep the rest readable."""
    try:
        return data.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array(
            [None if text is None else text.decode(errors="replace") for text in data.to_pylist()], pa.string()
        )


def _times(ms: Array) -> pa.Array:
    """Convert times in ms. A negative time becomes null."""
    null = ms < 0
    micros = pa.array(np.minimum(ms, MAX_INSTANT) * 1000, mask=null if null.any() else None)
    return micros.cast(schema.TIMESTAMP)


def _counts(values: Array) -> pa.Array:
    return pa.array(np.minimum(values, _MAX_INT).astype(np.int32))


def _description(records: DeathRecords) -> pa.Array:
    data, present = records.description()
    return _as_text(data) if present.all() else _as_text(data.take(pa.array(np.arange(len(data)), mask=~present)))


_FIELD_BUILDERS: Mapping[str, Callable[[DeathRecords], pa.Array]] = {
    "queue": lambda records: _as_text(records.queue()),
    "reason": lambda records: _as_text(records.reason()),
    "count": lambda records: _counts(records.numbers("count")),
    "first_at": lambda records: _times(records.numbers("first_at")),
    "last_at": lambda records: _times(records.numbers("last_at")),
    "enqueued_at": lambda records: _times(records.numbers("enqueued_at")),
    "expires_at": lambda records: _times(records.expires_at()),
    "delivery_count": lambda records: _counts(records.numbers("delivery_count")),
    "description": _description,
}

_BUILDERS: Mapping[str, Callable[[_Rows], pa.Array]] = {
    "queue": _Rows.queue,
    "message_id": _Rows.message_id,
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
    "headers": lambda rows: rows.header_map("headers"),
    schema.RAW_HEADERS: lambda rows: rows.header_map(schema.RAW_HEADERS),
    schema.PACKED_HEADERS: _Rows.packed_headers,
    "body": _Rows.body,
    "deaths": _Rows.deaths,
    "body_json": _Rows.body_json,
}
