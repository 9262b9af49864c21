"""The marks of unread queues, for the leaps of a limit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rqttl.protocol.keys import LOG, META, Keyspace
from spark_connectors.ranges import sequence_number
from spark_connectors.read.arrivals import STEP, ArrivalIndex, MarkRequest, Marks, Tally
from spark_connectors.read.watch import execute_many
from spark_connectors.redis.bulk_reader import BulkReader, xrange_command
from spark_connectors.redis.names import TALLY_FIELDS
from spark_connectors.stream.leap import Stretch
from spark_connectors.stream.unread import BatchLimit, Unread


class StretchReader:
    """Reads the marks of queues that share a limit."""

    def __init__(self, keys: Keyspace) -> None:
        self._keys = keys
        self._index = ArrivalIndex(keys)

    def read(self, reader: BulkReader, unread: Mapping[str, Unread], limit: BatchLimit) -> dict[str, Stretch]:
        """Return the unread part of each queue, with the marks in it that this limit may reach.

        With a limit of bytes, queues without marks are looked at, too: the bytes up to their end are known.
        """
        total = sum(queue.rows for queue in unread.values())
        large = any(queue.rows >= STEP for queue in unread.values())
        tallies = self._tallies(reader, unread) if limit.in_bytes and large else {}
        most = _messages_within(limit, tallies.values()) if limit.in_bytes else limit.amount
        requests = []
        if large and most >= STEP:
            requests = [
                MarkRequest(
                    name,
                    queue.position.after,
                    queue.state.last_sequence,
                    _marks_within(queue.rows, 2 * most * queue.rows // max(1, total)),
                )
                for name, queue in unread.items()
                if queue.rows >= STEP or limit.in_bytes
            ]
        marks = self._index.read(reader, requests)
        firsts = self._first_messages(reader, {name: unread[name] for name in marks}, marks)
        ends = tallies if tallies or not limit.in_bytes else dict.fromkeys(unread, Tally())
        return {
            name: queue.stretch(marks.get(name), firsts.get(name), ends.get(name)) for name, queue in unread.items()
        }

    def _tallies(self, reader: BulkReader, unread: Mapping[str, Unread]) -> dict[str, Tally]:
        commands = [("HMGET", self._keys.key(name, META), *TALLY_FIELDS) for name in unread]
        replies = execute_many(reader, commands)
        return {name: Tally.parse(*fields) for name, fields in zip(unread, replies, strict=True)}

    def _first_messages(
        self, reader: BulkReader, unread: Mapping[str, Unread], marks: Mapping[str, Marks]
    ) -> dict[str, int]:
        """Return the first unread messages of queues whose number of arrivals is only known to be much too low.

        So it is for a new query over a queue that has lost its first letters.
        """
        loose = [name for name, queue in unread.items() if not queue.detached and queue.is_loose(marks[name])]
        commands = [
            xrange_command(self._keys.key(name, LOG), unread[name].position.after, unread[name].state.last_sequence, 1)
            for name in loose
        ]
        replies = execute_many(reader, commands)
        return {name: sequence_number(reply[0][0]) for name, reply in zip(loose, replies, strict=True) if reply}


def _messages_within(limit: BatchLimit, tallies: Iterable[Tally]) -> int:
    """Estimate the number of messages in a batch of so many bytes. Without dead letters it is 0."""
    known = list(tallies)
    letters, letter_bytes = sum(tally.count - tally.sent for tally in known), sum(tally.letter_bytes for tally in known)
    return limit.amount * letters // max(1, letter_bytes) if letters else 0


def _marks_within(rows: int, most: int) -> int:
    """Return the number of marks of a queue to read, for a limit that admits `most` of its `rows` messages."""
    return min(rows, most + 4 * STEP) // STEP + 4
