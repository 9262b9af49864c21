"""The process of the worker as a place for handlers (`--processes 0`): for debuggers and tiny machines."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from rqttl.delivery import config_of, parcel
from rqttl.worker import board as boards
from rqttl.worker import command, loading, nursery
from rqttl.worker.crew import Crew
from rqttl.worker.hands import hands_for
from rqttl.worker.loading import Handler, watched
from rqttl.worker.outcomes import Outcome
from rqttl.worker.places import Place, Task
from rqttl.worker.reports import Reports

if TYPE_CHECKING:
    from rqttl.broker import Broker
    from rqttl.worker.board import Board
    from rqttl.worker.settings import Settings


#: Seconds that handlers have to end after `kill`. Threads cannot be killed.
LAST = 0.2


def handler_for(picked: Settings) -> Handler:
    """Load the handler of these settings. Raises `HandlerNotLoaded`."""
    if picked.exec is not None:
        return command.handler(picked.exec, guarded=True)
    if picked.function is not None:
        return loading.of_function(picked.function, "call", with_delivery=picked.delivery)
    return loading.load(picked.call or "", with_delivery=picked.delivery)


class LocalReports(Reports):
    """The reports of the handlers of this process to the crew."""

    def __init__(self, crew: Crew, place: Place, board: Board) -> None:
        super().__init__(board)
        self._crew, self._place = crew, place

    def _report(self) -> None:
        with self._lock:
            keys = self._take()
        if keys:
            self._crew.collect(self._place, keys)

    def ended(self, key: int, outcome: Outcome | None) -> None:
        """See `Reports`."""
        self._crew.done(self._place, key, outcome)

    def settled(self, key: int, outcome: Outcome) -> None:
        """See `Reports`."""
        self._crew.settled(self._place, key, outcome)

    def renewed(self, key: int, lease: int) -> None:
        """See `Reports`."""
        self._crew.renewed(self._place, key, lease)


class LocalPlace(Place):
    """The threads or coroutines of this process."""

    def __init__(
        self, crew: Crew, handler: Handler, threads: int | None, coroutines: int | None, broker: Broker
    ) -> None:
        board = boards.local()
        super().__init__(board)
        reports = LocalReports(crew, self, board)
        self._handler = handler = watched(handler, broker.observer)
        self._crew = crew
        self._hands = hands_for(handler, threads, coroutines, reports)
        self.slots = self._hands.slots
        self.cancel_grace = self._hands.cancel_grace
        self._was_killed = False
        self._thread = threading.Thread(target=self._hands.run, name="rqttl-handlers", daemon=True)

    @property
    def takes(self) -> bool:
        """See `Place`."""
        return True

    def start(self) -> None:
        """Begin to handle messages."""
        self._thread.start()

    def send(self, tasks: list[Task]) -> None:
        """See `Place`."""
        orders = [(task.key, config_of(task.delivery), parcel(task.delivery)) for task in tasks]
        self._hands.put(orders)

    def recall(self) -> None:
        """See `Place`."""
        self._crew.unseen(self, self._hands.recall())

    def cancel(self, key: int) -> None:
        """See `Place`."""
        self._hands.cancel(key)

    def kill(self) -> None:
        """End at once what handlers have started outside of this process."""
        self._was_killed = True
        self._handler.kill()

    def close(self) -> None:
        """End the handlers after their messages, and wait for that: as for a child, or for `LAST` after `kill`."""
        self._hands.stop()
        self._thread.join(LAST if self._was_killed else nursery.QUIT_GRACE)
