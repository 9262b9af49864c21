"""The demo's other processes: `python -m rqttl.demo.worker` is a consumer or the reaper, as its first input line says.

It answers with one line when it works and with one line of results at the end. The end of its input tells it to finish
what is there and go: so it also goes when whoever started it was killed.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import rqttl
from rqttl.demo.names import boarding
from rqttl.reaper import Reaper

#: A consumer that is to finish does so when no call has come for so long.
QUIET = "1s"


@dataclass(slots=True)
class Tally:
    """What one consumer did with the calls of one carrier."""

    handled: int = 0
    rejected: int = 0


class Consumer:
    """Handles the calls of all carriers, one thread for each, with only so many agents for all of them together."""

    def __init__(self, broker: rqttl.Broker, carriers: Sequence[str], agents: int, handling_ms: float) -> None:
        self._broker = broker
        self._agents = threading.BoundedSemaphore(agents)
        self._handling = handling_ms / 1000
        self._over = threading.Event()
        self.tallies = {carrier: Tally() for carrier in carriers}

    def finish(self) -> None:
        """No more calls will be sent: end when the queues are empty."""
        self._over.set()

    def run(self) -> None:
        """Work until `finish` was called and nothing is left."""
        threads = [threading.Thread(target=self._serve, args=[carrier]) for carrier in self.tallies]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _serve(self, carrier: str) -> None:
        try:
            queue, tally = self._broker.queue(boarding(carrier)), self.tallies[carrier]
            last = False
            while not last:
                last = self._over.is_set()  # looked at before: what was sent until then is still received
                with queue.consume(prefetch=1, wait=QUIET) as calls:
                    for call in calls:
                        self._handle(call, tally)
                tally.handled -= calls.lost_count
        except BaseException:  # noqa: BLE001  # whatever it is, the process must not go on without this carrier
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


def _say(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def _at_end_of_input(stop: Any) -> None:
    def watch() -> None:
        sys.stdin.read()
        stop()

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Play the part that the first line of input describes."""
    part = json.loads(sys.stdin.readline())
    with rqttl.connect(part["url"], namespace=part["namespace"]) as broker:
        if part["role"] == "reaper":
            reaper = Reaper(broker)
            _at_end_of_input(reaper.stop)
            _say("ready")
            _say(asdict(reaper.run()))
        else:
            consumer = Consumer(broker, part["carriers"], part["agents"], part["handling_ms"])
            _at_end_of_input(consumer.finish)
            _say("ready")
            consumer.run()
            _say({carrier: asdict(tally) for carrier, tally in consumer.tallies.items()})


if __name__ == "__main__":
    main()
