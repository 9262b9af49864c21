"""The offsets of a streaming query: its position in each queue, as JSON for the checkpoint of Spark.

    {"dataset":"9f86d081884c7d65","queues":{"orders/dead":["1700000000123-100000",1690000000000,5021]},"v":2}

A position is the last sequence that was read, the creation time of the queue, and the number of messages that the queue
had received by then. `dataset` is the random name of the data, and `histories` are the replication histories of its
servers. A queue that was deleted and created again starts anew. A queue that the options no longer select keeps its
position, so the query goes on there if they select it again. Ranges between two offsets are closed, so a repeated batch
reads the same messages. Names are sorted, because Spark compares offsets as text. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_connectors.errors import InvalidOffset
from spark_connectors.ranges import FIRST, Range, sequence_number, sequence_text
from spark_connectors.read.positions import QueuePosition

VERSION = 2


@dataclass(frozen=True, slots=True)
class Offset:
    """The positions of a query, by queue. A queue without a position is new to the query."""

    positions: Mapping[str, QueuePosition]
    #: The start of this batch where it is not the end of the batch before it: in the end offset of the first batch,
    #: because Spark asks for the initial offset again before it repeats the first batch, and `latest` has moved on by
    #: then; and in that of a batch that reads again after a loss.
    began: Mapping[str, QueuePosition] | None = None
    initial: bool = field(default=False)
    #: The queues of the option `queues` that were deleted after the query had read them.
    gone: frozenset[str] = frozenset()
    #: The name of the data that the query has read.
    dataset: str = ""
    #: By queue, the last sequences before the start of the query, and before a failover that may have lost messages: it
    #: may not have read all messages up to them.
    since: Mapping[str, str] = field(default_factory=dict)
    #: The replication histories of the servers, by id: how much of each there was after the positions were read.
    histories: Mapping[str, int] = field(default_factory=dict)
    #: The option `queuePattern` of the query. A queue that it leaves out is new to the query because of a restart.
    pattern: str = ""

    def dump(self) -> dict[str, Any]:
        """Return the JSON value for the checkpoint, with its keys in order."""
        values: dict[str, Any] = {}
        if self.began is not None:
            values["began"] = _dump(self.began)
        if self.dataset:
            values["dataset"] = self.dataset
        if self.gone:
            values["gone"] = sorted(self.gone)
        if self.histories:
            values["histories"] = dict(sorted(self.histories.items()))
        if self.initial:
            values["initial"] = True
        if self.pattern:
            values["pattern"] = self.pattern
        values["queues"] = _dump(self.positions)
        if self.since:
            values["since"] = dict(sorted(self.since.items()))
        return {**values, "v": VERSION}

    @property
    def text(self) -> str:
        """The JSON text. Equal offsets have equal texts."""
        return json.dumps(self.dump(), separators=(",", ":"))

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Offset:
        """Parse the result of `dump`. Raises `InvalidOffset` for other values, and for other versions."""
        if values.get("v") != VERSION:
            raise InvalidOffset(
                f"offset in the checkpoint: expected version {VERSION}, got {values.get('v')!r}; another "
                "version of rqttl, or another source, wrote it"
            )
        try:
            began = values.get("began")
            return cls(
                positions=_parse(values["queues"]),
                began=None if began is None else _parse(began),
                initial=bool(values.get("initial", False)),
                gone=frozenset(_parse_names(values.get("gone", []))),
                dataset=str(values.get("dataset", "")),
                since={queue: sequence_text(sequence_number(text)) for queue, text in values.get("since", {}).items()},
                histories={str(id): int(length) for id, length in values.get("histories", {}).items()},
                pattern=str(values.get("pattern", "")),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidOffset(f"offset in the checkpoint: it is damaged ({type(error).__name__})") from error

    def advanced(
        self,
        positions: Mapping[str, QueuePosition],
        gone: Collection[str] = (),
        *,
        dataset: str = "",
        turned_back: Collection[str] = (),
        histories: Mapping[str, int] | None = None,
    ) -> Offset:
        """Return the end of a batch that starts at this offset; the offset itself for an empty batch.

        The batch reads the queues of `turned_back` from their first message on.
        """
        if positions == self.positions:
            return self
        began = {queue: position for queue, position in self.positions.items() if position.after > FIRST}
        for queue in turned_back:
            began.pop(queue, None)
        since = {queue: text for queue, text in self.since.items() if self._is_same(queue, positions, turned_back)}
        began_anew = began if self.initial or turned_back else None
        return Offset(
            positions, began_anew, gone=frozenset(gone), dataset=dataset, since=since, histories=histories or {}
        )

    def _is_same(self, queue: str, positions: Mapping[str, QueuePosition], turned_back: Collection[str]) -> bool:
        """True if the query goes on in the same queue."""
        before, then = self.positions.get(queue), positions.get(queue)
        same = before is not None and then is not None and before.created_at == then.created_at
        return same and queue not in turned_back


def batch_ranges(start: Offset, end: Offset) -> list[Range]:
    """Return the ranges of a batch, by queue. `rows` is the number of messages that the queue received in the range.

    The same two offsets always make the same ranges.
    """
    starts = start.positions if end.began is None else end.began
    ranges = []
    for queue in sorted(end.positions):
        upto, since = end.positions[queue], starts.get(queue)
        if since is None or since.created_at != upto.created_at:
            since = QueuePosition(FIRST, upto.created_at)
        part = Range(queue, since.after, upto.after, max(1, upto.received - since.received))
        if not part.empty:
            ranges.append(part)
    return ranges


def _dump(positions: Mapping[str, QueuePosition]) -> dict[str, list[Any]]:
    return {queue: positions[queue].dump() for queue in sorted(positions)}


def _parse_names(values: object) -> list[str]:
    if not isinstance(values, list) or not all(isinstance(name, str) for name in values):
        raise TypeError("expected a list of names")
    return values


def _parse(values: Mapping[str, list[Any]]) -> dict[str, QueuePosition]:
    positions = {queue: QueuePosition(*parts) for queue, parts in values.items()}
    for position in positions.values():
        # raises `ValueError` for text that is no sequence
        sequence_number(position.after)
    return positions
