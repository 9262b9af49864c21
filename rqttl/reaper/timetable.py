"""The order in which queues are swept. No clock and no I/O: times are the server's, in ms."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Container, Iterable


class Timetable:
    """Queues by their next due time, and two lines of queues to sweep now.

    One line holds queues in which something is due, the other holds the queues of a full pass. They are served
    alternately, each first come, first served. So neither a queue with endless work nor a pass over very many queues
    keeps the others waiting.
    """

    def __len__(self) -> int:
        return len(self._due)

    def __init__(self) -> None:
        self._due: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []
        self._line: deque[str] = deque()
        self._since: dict[str, int] = {}  # the queues in the line, and their due times
        self._pass: deque[str] = deque()
        self._unseen: set[str] = set()  # the queues that the pass has not reached yet
        self._favour_pass = False

    def schedule(self, queue: str, due: int | None) -> None:
        """Sweep the queue at `due` and not before; without `due`, after a hint or in a pass."""
        if due is None:
            self._due.pop(queue, None)
        elif self._due.get(queue) != due:
            self._due[queue] = due
            heapq.heappush(self._heap, (due, queue))
            if len(self._heap) > 2 * len(self._due) + 64:  # most of its entries are outdated
                self._heap = [(at, name) for name, at in self._due.items()]
                heapq.heapify(self._heap)

    def hint(self, queue: str, due: int) -> None:
        """Sweep the queue at `due`, unless it is scheduled before."""
        if queue not in self._since and due < self._due.get(queue, due + 1):
            self.schedule(queue, due)

    def enqueue(self, queue: str, due: int) -> None:
        """Append a queue to the line. Its oldest due work is from `due`."""
        self._due.pop(queue, None)
        if queue not in self._since:
            self._since[queue] = due
            self._line.append(queue)

    def remove(self, queue: str) -> None:
        """Remove the due time of a queue."""
        self._due.pop(queue, None)

    def keep(self, queues: Container[str]) -> None:
        """Remove the due times of all other queues."""
        self._due = {queue: due for queue, due in self._due.items() if queue in queues}
        self._heap = [(due, queue) for queue, due in self._due.items()]
        heapq.heapify(self._heap)

    def begin_pass(self, queues: Iterable[str]) -> None:
        """Sweep all these queues, due or not."""
        fresh = [queue for queue in queues if queue not in self._unseen]
        self._unseen.update(fresh)
        self._pass.extend(fresh)

    @property
    def passing(self) -> bool:
        """True until the full pass has come to its end."""
        return bool(self._unseen)

    @property
    def busy(self) -> bool:
        """True if a queue is to be swept now."""
        return bool(self._line or self._unseen)

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
        self._favour_pass = not self._favour_pass
        queue = self._next_in_pass() if self._favour_pass or not self._line else None
        if queue is None:
            if not self._line:
                return None
            queue = self._line.popleft()
            self._unseen.discard(queue)
        elif queue in self._since:
            self._line.remove(queue)
        known = self._due.get(queue)
        return queue, self._since.pop(queue, known if known is not None and known <= now else None)

    def _next_in_pass(self) -> str | None:
        while self._pass:
            queue = self._pass.popleft()
            if queue in self._unseen:
                self._unseen.remove(queue)
                return queue
        return None
