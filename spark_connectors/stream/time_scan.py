"""The reads of a share by time: pages of many queues in one round trip."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rqttl.protocol.keys import LOG, Keyspace
from spark_connectors.ranges import SERIALS, sequence_text
from spark_connectors.redis.bulk_reader import BulkReader, xrange_command
from spark_connectors.redis.digits import Array, as_uint64_windows, parse_sequences
from spark_connectors.redis.pages import NOT_A_SEQUENCE, Page, malformed_entry
from spark_connectors.stream.time_share import PageRequest, TimeShare

_FIRST_AVERAGE = 8_192


class TimeScan:
    """Reads the pages that a `TimeShare` requests: `max_entries` entries in one round trip, or about `reply_bytes`."""

    def __init__(self, keys: Keyspace, *, max_entries: int, reply_bytes: int) -> None:
        self._keys = keys
        self._max_entries = max_entries
        self._reply_bytes = reply_bytes
        self._average = _FIRST_AVERAGE

    def run(self, reader: BulkReader, share: TimeShare) -> None:
        """Read until the batch is complete."""
        while requests := share.requests(min(self._max_entries, self._reply_bytes // self._average)):
            for request, page in zip(requests, self._read(reader, requests), strict=True):
                share.add(request, *page)

    def _read(self, reader: BulkReader, requests: Sequence[PageRequest]) -> list[tuple[Array, Array]]:
        """Return the sequences, as numbers, and the sizes of the messages of each request."""
        pages = reader.fetch_pages([self._command(request) for request in requests])
        self._measure(pages)
        return [
            (_sequence_numbers(request.queue, page), page.message_sizes())
            for request, page in zip(requests, pages, strict=True)
        ]

    def _command(self, request: PageRequest) -> tuple[object, ...]:
        after, upto = sequence_text(request.after), sequence_text(request.upto)
        return xrange_command(self._keys.key(request.queue, LOG), after, upto, request.count)

    def _measure(self, pages: list[Page]) -> None:
        """Update the size of an entry. Pages grow slowly and shrink at once."""
        if entries := sum(map(len, pages)):
            self._average = max(sum(page.reply_size for page in pages) // entries, self._average // 4, 1)


def _sequence_numbers(queue: str, page: Page) -> Array:
    """Return the sequences of a page as numbers. Raises `MalformedEntry` for an id that is no sequence."""
    windows, starts = as_uint64_windows(page.data), page.sequence_starts
    ms, serials, invalid = parse_sequences(lambda byte: windows[starts + byte])
    if invalid.any():
        raise malformed_entry(queue, page.sequence(int(np.argmax(invalid))), NOT_A_SEQUENCE)
    numbers: Array = ms * SERIALS + serials
    return numbers
