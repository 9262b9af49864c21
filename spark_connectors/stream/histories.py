"""The replication histories of the servers: they tell whether what a query has read has survived.

A promoted replica has a prefix of the writes of its primary, and a server that restarts from a file has an older state.
Counters hide that once enough new messages have come. The ids and offsets of replication do not: a primary goes on in
its history, and a replica names the history that it goes on from, and where it left it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass

import numpy as np

from rqttl.protocol.keys import LOG, Keyspace
from spark_connectors.errors import NoPermission, RefusedByRedis
from spark_connectors.ranges import sequence_number, sequence_text
from spark_connectors.read.arrivals import STEP, ArrivalIndex
from spark_connectors.read.loss import Loss
from spark_connectors.read.positions import QueuePosition, QueueState
from spark_connectors.redis.bulk_reader import BulkReader

_log = logging.getLogger("spark_connectors")

#: The most messages behind a position that are counted.
_MOST = 4 * STEP


@dataclass(frozen=True, slots=True)
class History:
    """The history of a server: its id and length, and the one that it goes on from, up to a length."""

    id: str
    length: int
    before: str
    before_upto: int

    @classmethod
    def parse(cls, info: bytes) -> History | None:
        """Parse the reply to INFO; `None` for a server without histories."""
        facts = dict(line.split(":", 1) for line in info.decode("utf-8", "replace").splitlines() if ":" in line)
        try:
            length, before_upto = int(facts["master_repl_offset"]), int(facts["second_repl_offset"]) - 1
            return cls(facts["master_replid"], length, facts["master_replid2"], before_upto)
        except (KeyError, ValueError):
            return None

    def continued(self, lengths: Mapping[str, int]) -> set[str]:
        """Return the ids of the histories that it continues, given how much of each was seen."""
        own = {self.id: self.length, self.before: self.before_upto}
        return {id for id, length in own.items() if id in lengths and length >= lengths[id]}


def doubted(seen: Mapping[str, int], present: Mapping[Hashable, History]) -> Collection[Hashable]:
    """Return the nodes whose queues may be in an older state than the one that was seen.

    If nobody continues one of the histories, its queues may be at any node by now.
    """
    continued = {node: history.continued(seen) for node, history in present.items()}
    if set().union(*continued.values()) != seen.keys():
        return present.keys()
    return {node for node, ids in continued.items() if not ids}


class Histories:
    """Reads the histories of all nodes. A user without the right to do so gets none, and the log says so once."""

    def __init__(self) -> None:
        self._readable = True

    def read(self, reader: BulkReader) -> dict[Hashable, History]:
        """Return the history of each node."""
        if not self._readable:
            return {}
        try:
            found = {node: History.parse(info) for node, info in reader.ask_each_node("INFO", "replication").items()}
        except (NoPermission, RefusedByRedis) as error:
            self._readable = False
            _log.warning("cannot read INFO replication, so only counters show a failover that lost messages: %s", error)
            return {}
        return {node: history for node, history in found.items() if history is not None}


def detect_older(
    reader: BulkReader, keys: Keyspace, name: str, position: QueuePosition, state: QueueState
) -> Loss | None:
    """Return a loss if more messages lie behind a position than have arrived there: some before it were lost.

    The next mark, or the end of the queue, tells how many have arrived.
    """
    if state.last_sequence <= position.after:
        return None
    after = sequence_number(position.after)
    marks = ArrivalIndex(keys).around(reader, name, position.after, ())
    at = int(np.searchsorted(marks.sequences, after, "right"))
    upto, arrived = state.last_sequence, state.enqueued
    if at < len(marks) and marks.sequences[at] < sequence_number(upto):
        upto, arrived = sequence_text(int(marks.sequences[at])), int(marks.counts[at])
    expected = max(0, arrived - position.received)
    if reader.count_entries(keys.key(name, LOG), position.after, upto, min(expected, _MOST)) <= expected:
        return None
    return Loss(
        f"queue {name!r} is in an older state than this query has seen, as after a failover to a replica that lagged: "
        f"it has more messages after {position.after} than have arrived since. Messages that had arrived before are "
        "lost"
    )
