"""A process that gets a signal at each line of a wait in turn; its handler ends the wait. It prints the signals.

Whatever lock the main thread holds at one of these lines, it holds while the handler runs.
"""

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import rqttl
from rqttl.consuming.consumer import Runner
from rqttl.reaper import Reaper
from rqttl.store.driver import driver_of
from tests.drivers import broker_of

#: Files whose lines count: those of rqttl, and the locks and queues of Python.
FILES = ("/rqttl/", "/threading.py", "/queue.py", "/contextlib.py")
SHORT = "3ms"
#: Every so many lines gets a signal.
STRIDE = 11

Stop = Callable[[], object]


class Lines:
    """Raises a signal at one line of the main thread's code."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if not any(part in frame.f_code.co_filename for part in FILES):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                signal.raise_signal(signal.SIGUSR1)
        return self


def consume(queue: rqttl.Queue, arm: Callable[[Stop], None]) -> None:
    with queue.consume(prefetch=2, wait=SHORT) as deliveries:
        arm(deliveries.stop)
        for delivery in deliveries:
            delivery.ack()


def receive(queue: rqttl.Queue, arm: Callable[[Stop], None]) -> None:
    arm(broker_of(queue).interrupt)
    queue.receive(wait=SHORT)


def run(queue: rqttl.Queue, arm: Callable[[Stop], None]) -> None:
    runner = Runner(driver_of(queue), queue.consume(20, wait="1ms"), lambda delivery: None, 2)
    arm(runner.stop)
    runner.run()


def run_until_set(queue: rqttl.Queue, arm: Callable[[Stop], None]) -> None:
    stop = threading.Event()
    arm(stop.set)
    queue.run(lambda delivery: None, wait=SHORT, stop=stop)


def reap(queue: rqttl.Queue, arm: Callable[[Stop], None]) -> None:
    reaper = Reaper(broker_of(queue))
    arm(reaper.stop)
    ending = threading.Timer(0.02, reaper.stop)
    ending.start()
    reaper.run()
    ending.join()


def main(url: str, what: str) -> None:
    signals = 0
    at = 1
    while True:
        with rqttl.connect(url) as broker:
            queue = broker.declare_queue("q")
            queue.enqueue_many([b"x"] * 3)
            lines = Lines(at)

            def arm(stop: Stop, lines: Lines = lines) -> None:
                signal.signal(signal.SIGUSR1, lambda *_: stop())
                sys.settrace(lines)
                frame: FrameType | None = sys._getframe()
                while frame is not None:  # a trace begins in functions that are called from here on, and in these
                    frame.f_trace = lines
                    frame = frame.f_back

            try:
                globals()[what](queue, arm)
            finally:
                sys.settrace(None)
        if lines.left > 0:
            break
        signals += 1
        at += STRIDE
    sys.stdout.write(f"{signals}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
