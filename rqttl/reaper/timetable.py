"""The order in which queues are swept. No clock and no I/O: times are the server's, in ms."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Container, Iterable


class Timetable:
    """Queues by their next due time, and two lines of queues to sweep now.

    One line holds queues in which something is due, the other holds the queues of a full pass. They are served
    alternately, each first come, first served. So neither a queue with endless work nor a pass over very many queues
    keeps the others waiting.
    """

    def __init__(self) -> None:
        self._due: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []
        self._line: OrderedDict[str, int] = OrderedDict()  # with the due times
        self._pass: OrderedDict[str, None] = OrderedDict()
        self._favour_pass = False

    def __len__(self) -> int:
        return len(self._due)

    def schedule(self, queue: str, due: int | None) -> None:
        """Sweep the queue at `due` and not before; without `due`, after a hint or in a pass."""
        if due is None:
            self._due.pop(queue, None)
        elif self._due.get(queue) != due:
            self._due[queue] = due
            heapq.heappush(self._heap, (due, queue))
            if len(self._heap) > 2 * len(self._due) + 64:  # most of its entries are outdated
                self.keep(self._due)

    def hint(self, queue: str, due: int) -> None:
        """Sweep the queue at `due`, unless it is scheduled before."""
        if queue not in self._line and due < self._due.get(queue, due + 1):
            self.schedule(queue, due)

    def enqueue(self, queue: str, due: int) -> None:
        """Append a queue to the line. Its oldest due work is from `due`."""
        self._due.pop(queue, None)
        self._line.setdefault(queue, due)

    def keep(self, queues: Container[str]) -> None:
        """Remove the due times of all other queues."""
        self._due = {queue: due for queue, due in self._due.items() if queue in queues}
        self._heap = [(due, queue) for queue, due in self._due.items()]
        heapq.heapify(self._heap)

    def begin_pass(self, queues: Iterable[str]) -> None:
        """Sweep all these queues, due or not."""
        self._pass |= dict.fromkeys(queues)

    @property
    def passing(self) -> bool:
        """True until the full pass has come to its end."""
        return bool(self._pass)

    @property
    def busy(self) -> bool:
        """True if a queue is to be swept now."""
        return bool(self._line or self._pass)

    def earliest(self) -> int | None:
        """Return the next due time of a queue that is not in a line."""
        while self._heap:
            due, queue = self._heap[0]
            if self._due.get(queue) == due:
                return due
            heapq.heappop(self._heap)
        return None

    def next(self, now: int) -> tuple[str, int | None] | None:
        """Return the next queue to sweep, and its due time if that is known."""
        while (due := self.earliest()) is not None and due <= now:
            self.enqueue(heapq.heappop(self._heap)[1], due)
        if not self.busy:
            return None
        self._favour_pass = not self._favour_pass
        queue = next(iter(self._pass if self._pass and (self._favour_pass or not self._line) else self._line))
        self._pass.pop(queue, None)
        return queue, self._line.pop(queue, None)
