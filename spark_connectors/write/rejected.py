"""Rows that were refused, as JSON lines that Spark can read again."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from datetime import date, datetime
from pathlib import Path
from types import TracebackType
from typing import IO

import pyarrow as pa

from spark_connectors.errors import InvalidOption


class Rejected:
    """The file of one task attempt, which is there once the attempt has ended well and if there is anything in it.

    A line has `reason`, `why`, and `row` with all columns; what is binary is in base64, as Spark reads it from JSON.
    Use it in a `with`. Without a folder nothing is kept. Raises `InvalidOption` if one cannot write there.
    """

    def __init__(self, folder: str | None, name: str) -> None:
        self._path = None if folder is None else Path(folder) / f"{name}.jsonl"
        # hidden: Spark skips names that begin with a dot or an underscore
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

    def add(self, batch: pa.RecordBatch, row: int, reason: str, why: str) -> None:
        """Keep a row."""
        if self._path is None:
            return
        if self._file is None:
            self._file = self._draft.open("w", encoding="utf-8")
        line = {"reason": reason, "why": why, "row": _row(batch, row)}
        self._file.write(json.dumps(line, default=_plain, ensure_ascii=False) + "\n")

    def done(self) -> list[str]:
        """Put the file into its place, whole; gives its path if there is one."""
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
    one = batch.slice(row, 1)
    values = {name: column.to_pylist()[0] for name, column in zip(one.schema.names, one.columns, strict=True)}
    maps = [field.name for field in one.schema if pa.types.is_map(field.type)]
    return {**values, **{name: dict(values[name]) for name in maps if values[name] is not None}}


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    return value.isoformat() if isinstance(value, date | datetime) else str(value)
