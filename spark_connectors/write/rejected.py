"""Refused rows as JSON lines, which Spark can read."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import pyarrow as pa

from rqttl import text
from spark_connectors.errors import InvalidOption


class Rejected:
    """The file of one task attempt. It appears at the end of a successful attempt with refused rows.

    A line has `reason`, `cause`, and `row` with all columns. Binary values are in base64, as in Spark's JSON.
    Use it in a `with`. Without a folder it keeps nothing. Raises `InvalidOption` for a folder without write access.
    """

    def __init__(self, folder: str | None, name: str) -> None:
        self._path = None if folder is None else Path(folder) / f"{name}.jsonl"
        # a hidden file: Spark skips names that begin with a dot or an underscore
        self._draft = Path(folder or "") / f".{name}.jsonl.draft"
        self._file: IO[str] | None = None

    def __enter__(self) -> Rejected:
        if self._path is not None:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._draft.touch()
            except OSError as error:
                raise InvalidOption(
                    f"rejectedPath: cannot write into {str(self._path.parent)!r} here ({error.strerror})"
                ) from None
        return self

    def add(self, batch: pa.RecordBatch, row: int, reason: str, cause: str) -> None:
        """Write a refused row."""
        if self._path is None:
            return
        if self._file is None:
            self._file = self._draft.open("w", encoding="utf-8")
        line = {"reason": reason, "cause": cause, "row": _row(batch, row)}
        self._file.write(text.dump_readable_json(line, _json_value) + "\n")

    def publish(self) -> list[str]:
        """Give the complete file its final name. Returns its path, if there are refused rows."""
        if self._path is None or self._file is None:
            return []
        self._file.close()
        self._draft.replace(self._path)
        return [str(self._path)]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
        if self._path is not None:
            self._draft.unlink(missing_ok=True)


def _row(batch: pa.RecordBatch, row: int) -> Mapping[str, object]:
    only = batch.slice(row, 1)
    values = {name: _value(column) for name, column in zip(only.schema.names, only.columns, strict=True)}
    maps = [field.name for field in only.schema if pa.types.is_map(field.type)]
    return {**values, **{name: dict(values[name]) for name in maps if values[name] is not None}}


def _value(column: pa.Array) -> Any:
    try:
        return column.to_pylist()[0]
    except OverflowError:  # a time beyond those of `datetime`
        return str(column.to_numpy(zero_copy_only=False)[0]) + "Z"


def _json_value(value: object) -> object:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    return text.replace_for_json(value)
