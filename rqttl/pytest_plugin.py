"""Fixtures for pytest, in every project that has rqttl installed.

Pytest imports this module before anything else, so it imports nothing itself until a fixture is used: not only for
speed, also because a module that is imported too early escapes tools such as coverage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    from rqttl.testing import AsyncFakeBroker, FakeBroker

T = TypeVar("T")


def _made(make: Callable[[], T]) -> T:
    """Make what a test needs. A package or a server that is missing fails the test, in one line."""
    from rqttl import RqttlError

    try:
        return make()
    except RqttlError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture
def rqttl_broker() -> Iterator[FakeBroker]:
    """A fake broker, empty, whose clock stands still: `rqttl.testing.fake_broker()`."""
    from rqttl.testing import fake_broker

    broker = _made(fake_broker)
    yield broker
    broker.close()


@pytest.fixture
def rqttl_async_broker() -> AsyncFakeBroker:
    """An asyncio fake broker, empty, whose clock stands still: `rqttl.testing.async_fake_broker()`.

    The fixture works with every plugin for asyncio tests, because it awaits nothing. The event loop of the test is the
    first one that uses the broker. It has no connection, so nothing is left open if the test does not close it.
    """
    from rqttl.testing import async_fake_broker

    return _made(async_fake_broker)


@pytest.fixture
def rqttl_server() -> Iterator[str]:
    """The URL of a real redis-server of the test's own, empty: `rqttl.connect(rqttl_server)`. It is gone afterwards.

    It is an embedded server in a temporary folder: the redis-server on the PATH, else that of the extra `embedded`.
    """
    from rqttl.embedded.server import acquire

    with TemporaryDirectory(prefix="rqttl-") as folder:
        server = _made(lambda: acquire(folder))
        yield server.url
        server.close()
