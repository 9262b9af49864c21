"""The files of `reportPath`: for each write a JSON report on the driver, for programs."""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from rqttl import text
from spark_connectors.errors import InvalidOption, ReportNotWritten
from spark_connectors.write.report import LATE, OUTCOMES, Report

#: The version of the format.
_VERSION = 1
#: The query of a micro-batch that neither a task nor a checkpoint names.
_UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ReportTarget:
    """The place of the reports of a write: the file of a batch, or the folder of a stream."""

    path: Path
    of_stream: bool

    def prepare(self) -> None:
        """Check the place before a task starts, and remove the report of an earlier batch write.

        So a report that exists is that of the last write, also after a crash. Raises `InvalidOption`.
        """
        folder = self.path if self.of_stream else self.path.parent
        try:
            self._check_kind()
            folder.mkdir(parents=True, exist_ok=True)
            # the longest name that the write needs
            draft = _draft(self.path / "check" if self.of_stream else self.path)
            draft.touch(exist_ok=False)
            draft.unlink()
            if not self.of_stream:
                self.path.unlink(missing_ok=True)
        except OSError as error:
            raise InvalidOption(
                f"reportPath: cannot write {str(self.path)!r} on the driver ({error.strerror})"
            ) from None

    def write(self, report: Mapping[str, object]) -> Path:
        """Write a report, which replaces an earlier one of the same batch in one step. Raises `ReportNotWritten`."""
        name = f"{report['query_id'] or _UNKNOWN}-{report['batch_id']}.json"
        path = self.path / name if self.of_stream else self.path
        draft = _draft(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with draft.open("x", encoding="utf-8") as file:
                    file.write(text.dump_json(report) + "\n")
                    file.flush()
                    os.fsync(file.fileno())
                draft.replace(path)
            finally:
                draft.unlink(missing_ok=True)
        except OSError as error:
            raise ReportNotWritten(f"reportPath: cannot write {str(path)!r} on the driver ({error.strerror})") from None
        return path

    def _check_kind(self) -> None:
        if not self.path.exists() or (self.path.is_dir() if self.of_stream else self.path.is_file()):
            return
        kinds = ("a folder", "a stream") if self.of_stream else ("the path of a file", "a batch write")
        raise InvalidOption(
            f"reportPath: expected {kinds[0]} on the driver for {kinds[1]}, and {str(self.path)!r} is something else"
        )


def _draft(path: Path) -> Path:
    # a hidden file: Spark skips names that begin with a dot or an underscore
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.draft")


def content(
    total: Report,
    *,
    status: str,
    error: str | None,
    operation: str,
    tasks: Sequence[object | None],
    query: str | None,
    batch: int | None,
) -> Mapping[str, object]:
    """Return the report of a write. `tasks` has `None` for each task that did not end."""
    return {
        "version": _VERSION,
        "status": status,
        "error": error,
        "operation": operation,
        "query_id": query,
        "batch_id": batch,
        "ended_at": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        "tasks": len(tasks),
        "tasks_ended": sum(task is not None for task in tasks),
        **_numbers(total.counts, total.refused.total()),
        "reasons": [
            {"reason": reason, "rows": rows, "cause": total.causes[reason], "first": total.named[reason]}
            for reason, rows in total.refused.most_common()
        ],
        "queues": [
            {"queue": queue, **_numbers(counts, counts["refused"])}
            for queue, counts in sorted(total.queues.items(), key=lambda item: (item[0] is None, item[0] or ""))
        ],
        "rejected_files": total.files,
    }


def _numbers(counts: Counter[str], refused: int) -> dict[str, int]:
    return {name: counts[name] for name in (*OUTCOMES, LATE)} | {"refused": refused}
