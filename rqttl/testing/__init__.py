"""For tests of code that uses rqttl: a broker without a server, whose clock the test moves, and looks at its queues.

Public is what is listed in `__all__`, and the two pytest fixtures that are there wherever rqttl is installed:
`rqttl_broker` (a fake broker) and `rqttl_server` (the URL of a real server).
"""

from rqttl.testing.clock import Clock
from rqttl.testing.errors import EndlessWait, FakeUnavailable, NotOnFake
from rqttl.testing.fake import FakeBroker, fake_broker
from rqttl.testing.looks import assert_depth, bodies, dead_letters, messages

__all__ = [
    "Clock",
    "EndlessWait",
    "FakeBroker",
    "FakeUnavailable",
    "NotOnFake",
    "assert_depth",
    "bodies",
    "dead_letters",
    "fake_broker",
    "messages",
]
