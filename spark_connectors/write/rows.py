"""What the columns of a batch say, in the form in which scripts take it; and which rows cannot be sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from rqttl import codec, units
from rqttl.errors import InvalidInput, RqttlError
from rqttl.keys import check_queue_name
from spark_connectors.write.plan import Plan

#: Something packed, or why it cannot be.
Packed: TypeAlias = bytes | RqttlError
#: What was packed once is remembered: most rows repeat themselves.
_REMEMBERED = 4096


class Batch:
    """A record batch, and the rows of it that are refused: place -> (reason, why)."""

    def __init__(self, batch: pa.RecordBatch, plan: Plan) -> None:
        self.whole = batch
        self.count: int = batch.num_rows
        self.refused: dict[int, tuple[str, str]] = {}
        self._columns = {name: batch.column(batch.schema.get_field_index(name)) for name in plan.columns}
        self._plan = plan

    def column(self, name: str) -> pa.Array | None:
        """A column that the operation uses, if there is such a one."""
        return self._columns.get(name)

    def values(self, name: str) -> list[Any] | None:
        """The same as Python's values."""
        column = self.column(name)
        return None if column is None else column.to_pylist()

    def refuse(self, row: int, reason: str, why: str) -> None:
        """Refuse a row, unless that is done."""
        self.refused.setdefault(row, (reason, why))

    def accept(self, row: int, packed: Packed) -> bytes:
        """What was packed of a row; where it cannot be packed, the row is refused."""
        if isinstance(packed, bytes):
            return packed
        self.refuse(row, packed.code, str(packed))
        return b""

    def refuse_nulls(self, name: str) -> None:
        """Refuse what lacks something that is needed."""
        column = self.column(name)
        if column is not None and column.null_count:
            for row, valid in enumerate(column.is_valid().to_pylist()):
                if not valid:
                    self.refuse(row, f"no_{name}", f"{name} is null")

    def by_queue(self) -> dict[str, Sequence[int]]:
        """The rows of each queue, in order, without refused ones."""
        if self._plan.queue is not None:
            rows: Sequence[int] = range(self.count)
            if self.refused:
                rows = [row for row in rows if row not in self.refused]
            return {self._plan.queue: rows} if rows else {}
        self.refuse_nulls("queue")
        coded = self._columns["queue"].dictionary_encode()
        names: list[str] = coded.dictionary.to_pylist()
        wrong = {code: fault for code, name in enumerate(names) if (fault := _fault(name))}
        found: list[list[int]] = [[] for _ in names]
        for row, code in enumerate(coded.indices.to_pylist()):
            if code in wrong:
                self.refuse(row, "invalid_name", wrong[code])
            elif row not in self.refused:
                found[code].append(row)
        return {name: rows for name, rows in zip(names, found, strict=True) if rows}


def _fault(name: str) -> str:
    try:
        check_queue_name(name)
    except InvalidInput as error:
        return str(error)
    return ""


@dataclass(slots=True)
class Messages:
    """The messages of a batch: what is said of each, its body, and the size of that.

    `named` says that each has an id and nothing else is said of any; but for refused rows.
    """

    said: list[bytes]
    bodies: list[bytes]
    sizes: list[int]
    named: bool


@dataclass
class Packer:
    """Makes messages of rows. Remembers what repeats itself; for one task."""

    _extras: dict[object, Packed] = field(default_factory=dict)
    _ttls: dict[object, Packed] = field(default_factory=dict)

    def messages(self, batch: Batch, *, ids_needed: bool) -> Messages:
        """The messages of a batch; those of refused rows are empty."""
        batch.refuse_nulls("body")
        if ids_needed:
            batch.refuse_nulls("id")
        bodies = _binary(batch.column("body"))
        sizes = pc.binary_length(bodies).fill_null(0).to_pylist()
        ids, extras, ttls = _ids(batch), self._all_extras(batch), self._all_ttls(batch)
        named = ids_needed and extras is None and ttls is None
        return Messages(_said(ids, extras, ttls, batch.count), bodies.to_pylist(), sizes, named)

    def _all_extras(self, batch: Batch) -> list[bytes] | None:
        kinds, headers = batch.values("content_type"), batch.values("headers")
        if kinds is None and headers is None:
            return None
        nothing = [None] * batch.count
        found = []
        for row, (kind, pairs) in enumerate(zip(kinds or nothing, headers or nothing, strict=True)):
            # 1 and True are equal, but not the same header
            key = kind if pairs is None else (kind, *((name, type(value), value) for name, value in pairs))
            known = self._extras.get(key)
            if known is None:
                known = _remembered(self._extras, key, partial(_pack_extras, kind, pairs))
            found.append(batch.accept(row, known))
        return found

    def _all_ttls(self, batch: Batch) -> list[bytes] | None:
        name = "ttl" if batch.column("ttl_ms") is None else "ttl_ms"
        ttls, ends = batch.values(name), _milliseconds(batch.column("expires_at"))
        if ttls is None and ends is None:
            return None
        nothing = [None] * batch.count
        found = []
        for row, (ttl, end) in enumerate(zip(ttls or nothing, ends or nothing, strict=True)):
            if ttl is None:
                found.append(b"" if end is None else b"@%d" % max(0, end))
                continue
            if end is not None:
                batch.refuse(row, InvalidInput.code, f"{name}: give {name} or expires_at, not both")
            known = self._ttls.get(ttl) or _remembered(self._ttls, ttl, partial(_pack_ttl, ttl, name))
            found.append(batch.accept(row, known))
        return found


def _remembered(memory: dict[object, Packed], key: object, pack: Callable[[], bytes]) -> Packed:
    if len(memory) >= _REMEMBERED:
        memory.clear()
    try:
        memory[key] = pack()
    except RqttlError as error:
        memory[key] = error
    return memory[key]


def _pack_extras(kind: str | None, pairs: list[tuple[str, Any]] | None) -> bytes:
    return codec.pack_extras(kind, dict(pairs or ()))


def _pack_ttl(ttl: Any, name: str) -> bytes:
    return b"+%d" % (units.milliseconds(ttl, name) if name == "ttl_ms" else units.duration(ttl, name))


def _binary(column: pa.Array) -> pa.Array:
    return column if pa.types.is_binary(column.type) else column.cast(pa.binary())


def _milliseconds(column: pa.Array | None) -> list[int | None] | None:
    """The ms of instants, rounded down."""
    if column is None:
        return None
    instants = column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_pylist()
    return [None if us is None else us // 1000 for us in instants]


def _ids(batch: Batch) -> list[bytes] | None:
    column = batch.column("id")
    if column is None:
        return None
    ids: list[bytes] = _binary(column.fill_null("")).to_pylist()
    lengths = pc.min_max(pc.binary_length(column)).as_py()
    if pc.all(pc.ascii_is_printable(column)).as_py() and (lengths["max"] or 1) <= codec.MAX_ID_BYTES and lengths["min"]:
        return ids
    for row, id in enumerate(column.to_pylist()):
        if id is not None:
            try:
                codec.check_id(id)
            except InvalidInput as error:
                batch.refuse(row, error.code, str(error))
    return ids


def _said(ids: list[bytes] | None, extras: list[bytes] | None, ttls: list[bytes] | None, count: int) -> list[bytes]:
    """What is said of each message, as `codec.pack_said` says it."""
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
