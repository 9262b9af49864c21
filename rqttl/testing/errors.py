"""Errors of the testing kit."""

from __future__ import annotations

from rqttl.errors import RqttlError


class NotSupportedByFake(RqttlError):
    """The fake broker cannot do this. A real server can, such as that of the fixture `rqttl_server`."""

    code = "not_supported_by_fake"

    def __init__(self, operation: str) -> None:
        instead = "use a real server (the pytest fixture rqttl_server)"
        super().__init__(f"{operation}: a fake broker cannot do this; {instead}")
        self.operation = operation


class WaitWouldNeverEnd(RqttlError):
    """A wait without an end, in the thread that owns the clock, for a queue in which nothing becomes due."""

    code = "wait_would_never_end"

    def __init__(self, queue: str) -> None:
        super().__init__(
            f"queue {queue!r}: waiting without an end, but nothing is in it and nothing becomes due; "
            "give `wait`, or consume in another thread than the one that made the broker"
        )
        self.queue = queue


class FakeUnavailable(RqttlError, ImportError):
    """The packages that the fake broker needs are not installed."""

    code = "fake_unavailable"
