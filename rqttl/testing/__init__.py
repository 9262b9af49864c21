"""The testing kit: a broker without a server, whose clock the test moves, and assertions about its queues.

The names in `__all__` are public, and so are two pytest fixtures that every installation of rqttl has: `rqttl_broker`
(a fake broker) and `rqttl_server` (the URL of a real server).
"""

from rqttl.testing.assertions import assert_depth, bodies, dead_letters, messages
from rqttl.testing.fake import (
    AsyncFakeBroker,
    Clock,
    FakeBroker,
    FakeUnavailable,
    NotSupportedByFake,
    WaitWouldNeverEnd,
    async_fake_broker,
    fake_broker,
)

__all__ = [
    "AsyncFakeBroker",
    "Clock",
    "FakeBroker",
    "FakeUnavailable",
    "NotSupportedByFake",
    "WaitWouldNeverEnd",
    "assert_depth",
    "async_fake_broker",
    "bodies",
    "dead_letters",
    "fake_broker",
    "messages",
]
