"""What a fake says where it has to give up."""

from __future__ import annotations

from rqttl.errors import RqttlError


class NotSupportedByFake(RqttlError):
    """The fake broker cannot do this: it takes a real server, such as that of the fixture `rqttl_server`."""

    code = "not_supported_by_fake"

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}: a fake broker cannot do this; use a real server (the pytest fixture rqttl_server)")
        self.what = what


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
    """What the fake broker is made of is not installed."""

    code = "fake_unavailable"
