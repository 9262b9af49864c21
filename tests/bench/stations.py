"""The files of rqttl that run for one call in the steady state: those that a reader of this call has to open.

python -m tests.bench.stations
"""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import rqttl
from rqttl import Broker
from tests.bench.measure import running_server

#: The most files that a call may run through.
GOALS = {"enqueue": 9, "ack": 9, "receive": 12}
_PACKAGE = Path(rqttl.__file__).parent


def stations(call: Callable[[], object]) -> list[str]:
    """The files of rqttl whose functions a call runs, in the order of their first frames."""
    seen: dict[str, None] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(_PACKAGE):
            seen[str(path.relative_to(_PACKAGE))] = None

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return list(seen)


def measure(broker: Broker) -> dict[str, list[str]]:
    """The stations of each call, after a first message has warmed all caches."""
    queue = broker.declare_queue("orders")
    found: dict[str, list[str]] = {}
    for _ in range(2):
        found["enqueue"] = stations(lambda: queue.enqueue(b"x"))
        found["receive"] = stations(queue.receive)
        queue.enqueue(b"y")
        delivery = queue.receive()
        assert delivery is not None
        found["ack"] = stations(delivery.ack)
    return found


def main() -> None:
    """Print the stations of each call, and fail where there are more than its goal."""
    with running_server() as server, server.client() as client:
        found = measure(Broker(client))
    for name, goal in GOALS.items():
        print(f"{name}: {len(found[name])} (goal {goal}): {' '.join(found[name])}")
    sys.exit(any(len(found[name]) > goal for name, goal in GOALS.items()))


if __name__ == "__main__":
    main()
