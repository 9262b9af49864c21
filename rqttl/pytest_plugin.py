"""Fixtures for pytest, in every project that has rqttl installed.

Pytest imports this module before anything else, so it imports nothing itself until a fixture is used: not only for
speed, also because a module that is imported too early escapes tools such as coverage.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from rqttl.testing import AsyncFakeBroker, FakeBroker


@pytest.fixture
def rqttl_broker() -> Iterator[FakeBroker]:
    """A fake broker, empty, whose clock stands still: `rqttl.testing.fake_broker()`."""
    from rqttl.testing import FakeUnavailable, fake_broker

    try:
        broker = fake_broker()
    except FakeUnavailable as error:
        pytest.fail(str(error), pytrace=False)
    yield broker
    broker.close()


@pytest.fixture
def rqttl_async_broker() -> AsyncFakeBroker:
    """An asyncio fake broker, empty, whose clock stands still: `rqttl.testing.async_fake_broker()`.

    The fixture works with every plugin for asyncio tests, because it awaits nothing. The event loop of the test is the
    first one that uses the broker. It has no connection, so nothing is left open if the test does not close it.
    """
    from rqttl.testing import FakeUnavailable, async_fake_broker

    try:
        return async_fake_broker()
    except FakeUnavailable as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture
def rqttl_server() -> Iterator[str]:
    """The URL of a real redis-server of the test's own, empty: `rqttl.connect(rqttl_server)`. It is gone afterwards.

    It is an embedded server in a temporary folder: the redis-server on the PATH, else that of the extra `embedded`.
    """
    from tempfile import TemporaryDirectory

    from rqttl.embedded.server import acquire
    from rqttl.errors import EmbeddedUnavailable

    with TemporaryDirectory(prefix="rqttl-") as folder:
        try:
            server = acquire(folder)
        except EmbeddedUnavailable as error:
            pytest.fail(str(error), pytrace=False)
        yield server.url
        server.close()
