"""The rows of a batch in the form of script arguments, and the rows that are refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import msgpack
import pyarrow as pa
import pyarrow.compute as pc

from rqttl import units
from rqttl.checks import check_queue_name
from rqttl.errors import InvalidInput, RqttlError
from rqttl.protocol import codec
from rqttl.protocol.codec import ttl_may_be_over
from spark_connectors.write.plan import Plan

#: Packed bytes, or the error of their packing.
Packed: TypeAlias = bytes | RqttlError
#: The size of each cache of packed values: most rows repeat theirs.
_MAX_CACHED = 4096


class RowBatch:
    """A record batch, and its refused rows: row number -> (reason, cause)."""

    def __init__(self, batch: pa.RecordBatch, plan: Plan) -> None:
        self.record_batch = batch
        self.count: int = batch.num_rows
        self.refused: dict[int, tuple[str, str]] = {}
        names = [name.lower() for name in batch.schema.names]
        self._columns = {name: batch.column(names.index(name)) for name in plan.columns}
        self._plan = plan

    def column(self, name: str) -> pa.Array | None:
        """Return a column, or `None` if the operation does not use it."""
        return self._columns.get(name)

    def values(self, name: str) -> list[Any] | None:
        """Return a column as a list, or `None` if the operation does not use it."""
        column = self.column(name)
        return None if column is None else column.to_pylist()

    def refuse(self, row: int, reason: str, cause: str) -> None:
        """Refuse a row. The first refusal of a row counts."""
        self.refused.setdefault(row, (reason, cause))

    def accept(self, row: int, packed: Packed) -> bytes:
        """Return the packed value of a row. For an error, refuse the row."""
        if isinstance(packed, bytes):
            return packed
        self.refuse(row, packed.code, str(packed))
        return b""

    def refuse_nulls(self, name: str) -> None:
        """Refuse rows without a value in a column."""
        column = self.column(name)
        if column is not None and column.null_count:
            for row, valid in enumerate(column.is_valid().to_pylist()):
                if not valid:
                    self.refuse(row, f"no_{name}", f"{name} is null")

    def queue_of(self, row: int) -> str | None:
        """Return the queue of a row, or `None` if the row has no valid name of a queue."""
        if self._plan.queue is not None:
            return self._plan.queue
        name: str | None = self._columns["queue"][row].as_py()
        return None if name is None or _name_error(name) else name

    def by_queue(self) -> dict[str, Sequence[int]]:
        """Return the rows of each queue, in order, without refused rows."""
        if self._plan.queue is not None:
            rows: Sequence[int] = range(self.count)
            if self.refused:
                rows = [row for row in rows if row not in self.refused]
            return {self._plan.queue: rows} if rows else {}
        self.refuse_nulls("queue")
        coded = self._columns["queue"].dictionary_encode()
        names: list[str] = coded.dictionary.to_pylist()
        errors = {code: error for code, name in enumerate(names) if (error := _name_error(name))}
        rows_of: list[list[int]] = [[] for _ in names]
        for row, code in enumerate(coded.indices.to_pylist()):
            if code in errors:
                self.refuse(row, "invalid_name", errors[code])
            elif row not in self.refused:
                rows_of[code].append(row)
        return {name: rows for name, rows in zip(names, rows_of, strict=True) if rows}


def _name_error(name: str) -> str:
    try:
        check_queue_name(name)
    except InvalidInput as error:
        return str(error)
    return ""


@dataclass(slots=True)
class Messages:
    """The messages of a batch: their envelopes (TTL, id and headers), their bodies, and the sizes of the bodies.

    `dues` has the due time of each scheduled message, empty for the others; `None` if no message is scheduled.
    `has_ids` is true if all envelopes, except those of refused rows, hold an id; `ids_only` if they hold nothing else.
    `may_be_over` is true if the TTL of a message may have ended when the message arrives.
    """

    envelopes: list[bytes]
    bodies: list[bytes]
    sizes: list[int]
    dues: list[bytes] | None
    has_ids: bool
    ids_only: bool
    may_be_over: bool


@dataclass
class MessageEncoder:
    """Encodes rows as messages, with caches for repeated values. For one task."""

    _extras: dict[object, Packed] = field(default_factory=dict)
    _lengths: dict[object, Packed] = field(default_factory=dict)

    def messages(self, batch: RowBatch, *, ids_needed: bool) -> Messages:
        """Encode the messages of a batch. A refused row may have an empty envelope."""
        batch.refuse_nulls("body")
        if ids_needed:
            batch.refuse_nulls("message_id")
        bodies = _binary(batch.column("body"))
        sizes = pc.binary_length(bodies).fill_null(0).to_pylist()
        ids, extras = _message_ids(batch), self._extras_of(batch)
        ttls = self._times_of(batch, "ttl" if batch.column("ttl_ms") is None else "ttl_ms", "expires_at")
        dues = self._times_of(batch, "delay", "deliver_at")
        has_ids = ids_needed or (ids is not None and b"" not in ids)
        ids_only = ids_needed and extras is None and ttls is None
        may_be_over = ttls is not None and any(map(ttl_may_be_over, set(ttls)))
        envelopes = _envelopes(ids, extras, ttls, batch.count)
        return Messages(
            envelopes, bodies.to_pylist(), sizes, dues if dues and any(dues) else None, has_ids, ids_only, may_be_over
        )

    def _extras_of(self, batch: RowBatch) -> list[bytes] | None:
        kinds, headers = batch.values("content_type"), batch.values("headers")
        if kinds is None and headers is None:
            return None
        nothing = [None] * batch.count
        extras = []
        for row, (kind, pairs) in enumerate(zip(kinds or nothing, headers or nothing, strict=True)):
            # 1 and True are equal, but not the same header
            items = pairs if isinstance(pairs, bytes) else tuple((*pair, type(pair[1])) for pair in pairs or ())
            key = kind, items
            packed = self._extras.get(key)
            if packed is None:
                packed = _cached(self._extras, key, partial(_pack_extras, kind, pairs))
            extras.append(batch.accept(row, packed))
        return extras

    def _times_of(self, batch: RowBatch, name: str, end: str) -> list[bytes] | None:
        """Return the times of a column of durations or of one of instants: `+<ms>` or `@<ms>`, or nothing."""
        lengths, instants = batch.values(name), _milliseconds(batch.column(end))
        if lengths is None and instants is None:
            return None
        nothing = [None] * batch.count
        times = []
        for row, (length, instant) in enumerate(zip(lengths or nothing, instants or nothing, strict=True)):
            if instant is not None and instant > units.MAX_INSTANT:
                batch.refuse(row, InvalidInput.code, f"{end}: expected a time up to the year 9999, got {instant} ms")
            if length is None:
                times.append(b"" if instant is None else b"@%d" % max(0, instant))
                continue
            if instant is not None:
                batch.refuse(row, InvalidInput.code, f"{name}: set {name} or {end}, not both")
            key = name, length
            packed = self._lengths.get(key) or _cached(self._lengths, key, partial(_pack_length, length, name))
            times.append(batch.accept(row, packed))
        return times


def _cached(cache: dict[object, Packed], key: object, pack: Callable[[], bytes]) -> Packed:
    if len(cache) >= _MAX_CACHED:
        cache.clear()
    try:
        cache[key] = pack()
    except RqttlError as error:
        cache[key] = error
    return cache[key]


def _pack_extras(kind: str | None, pairs: list[tuple[str, Any]] | bytes | None) -> bytes:
    try:
        headers = msgpack.unpackb(pairs) if isinstance(pairs, bytes) else dict(pairs or ())
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidInput(f"headers: expected a value of the reader's column, {type(error).__name__}") from None
    return codec.pack_extras(kind, headers)


def _pack_length(length: Any, name: str) -> bytes:
    return b"+%d" % (units.milliseconds(length, name) if name == "ttl_ms" else units.duration(length, name))


def _binary(column: pa.Array) -> pa.Array:
    return column if pa.types.is_binary(column.type) else column.cast(pa.binary())


def _milliseconds(column: pa.Array | None) -> list[int | None] | None:
    """Convert timestamps to ms, rounded down."""
    if column is None:
        return None
    instants = column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_pylist()
    return [None if us is None else us // 1000 for us in instants]


def _message_ids(batch: RowBatch) -> list[bytes] | None:
    column = batch.column("message_id")
    if column is None:
        return None
    ids: list[bytes] = _binary(column.fill_null("")).to_pylist()
    lengths = pc.min_max(pc.binary_length(column)).as_py()
    if pc.all(pc.ascii_is_printable(column)).as_py() and (lengths["max"] or 1) <= codec.MAX_ID_BYTES and lengths["min"]:
        return ids
    for row, message_id in enumerate(column.to_pylist()):
        if message_id is not None:
            try:
                codec.check_id(message_id)
            except InvalidInput as error:
                batch.refuse(row, error.code, str(error))
    return ids


def _envelopes(
    ids: list[bytes] | None, extras: list[bytes] | None, ttls: list[bytes] | None, count: int
) -> list[bytes]:
    """Encode the envelope of each message, in the format of `Envelope.encode`."""
    if ids is not None and ttls is None:
        if extras is None:
            return [b";%d;;%b" % (len(id), id) if id else b"" for id in ids]
        return [
            b";%d;;%b%b" % (len(id), id, extra) if id else b";;;" + extra if extra else b""
            for id, extra in zip(ids, extras, strict=True)
        ]
    nothing = [b""] * count
    return [
        b"%b;%b;;%b%b" % (ttl, b"%d" % len(id) if id else b"", id, extra) if id or extra else ttl
        for ttl, id, extra in zip(ttls or nothing, ids or nothing, extras or nothing, strict=True)
    ]
