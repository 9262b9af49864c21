"""The other processes of the demo: `python -m rqttl.demo.worker` is a consumer or the reaper. Its input names its role.

A worker prints one line when it is ready, and one line of results at the end. At the end of its input it finishes its
work and ends, so it also ends when its parent is killed.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import rqttl
from rqttl.demo.names import boarding
from rqttl.reaper import Reaper

#: After `finish` a consumer ends when no call has come for this time.
QUIET = "1s"


@dataclass(slots=True)
class Tally:
    """The calls of one carrier that one consumer handled or rejected."""

    handled: int = 0
    rejected: int = 0


class Consumer:
    """A consumer for the calls of all carriers, with a thread for each. All threads share some agents."""

    def __init__(self, broker: rqttl.Broker, carriers: Sequence[str], agents: int, handling_ms: float) -> None:
        self._broker = broker
        self._agents = threading.BoundedSemaphore(agents)
        self._handling = handling_ms / 1000
        self._over = threading.Event()
        self._unready = {boarding(carrier) for carrier in carriers}
        self._ready = threading.Event()
        broker.events.subscribe(self._count_waiting, rqttl.WaitEvent)
        self.tallies = {carrier: Tally() for carrier in carriers}

    def finish(self) -> None:
        """End when the queues are empty: no more calls will be sent."""
        self._over.set()

    def run(self, ready: Callable[[], None]) -> None:
        """Work until `finish` was called and no call is left. Call `ready` when every thread waits for its first call.

        The day begins then, so that no call expires because a process was slow to start.
        """
        threads = [threading.Thread(target=self._serve, args=[carrier]) for carrier in self.tallies]
        for thread in threads:
            thread.start()
        self._ready.wait()
        ready()
        for thread in threads:
            thread.join()

    def _count_waiting(self, wait: rqttl.WaitEvent) -> None:
        self._unready.discard(wait.queue)
        if not self._unready:
            self._ready.set()

    def _serve(self, carrier: str) -> None:
        try:
            queue, tally = self._broker.queue(boarding(carrier)), self.tallies[carrier]
            last = False
            while not last:
                last = self._over.is_set()  # read before the loop, so that all calls sent until then are received
                with queue.consume(prefetch=1, wait=QUIET) as calls:
                    for call in calls:
                        self._handle(call, tally)
                tally.handled -= calls.lost_count
        except BaseException:  # noqa: BLE001  # the process must not go on without this carrier
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    def _handle(self, call: rqttl.Delivery, tally: Tally) -> None:
        with call, self._agents:  # leaving without an exception acks
            time.sleep(self._handling)  # the work
            if call.decode()["cancelled"]:
                call.reject("cancelled")
                tally.rejected += 1
            else:
                tally.handled += 1


def _print(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def _at_end_of_input(stop: Any) -> None:
    def watch() -> None:
        sys.stdin.read()
        stop()

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Do the task of the first line of input."""
    task = json.loads(sys.stdin.readline())
    with rqttl.connect(task["url"], namespace=task["namespace"]) as broker:
        if task["role"] == "reaper":
            reaper = Reaper(broker)
            _at_end_of_input(reaper.stop)
            _print("ready")
            _print(asdict(reaper.run()))
        else:
            consumer = Consumer(broker, task["carriers"], task["agents"], task["handling_ms"])
            _at_end_of_input(consumer.finish)
            consumer.run(lambda: _print("ready"))
            _print({carrier: asdict(tally) for carrier, tally in consumer.tallies.items()})


if __name__ == "__main__":
    main()
