"""A primary with replicas and Sentinels for a test, and the loops of asyncio."""

from collections.abc import Iterator

import pytest

from tests.aio.conftest import run as run  # noqa: PLC0414  # a fixture
from tests.servers import SentinelSet, find_binary


@pytest.fixture
def service() -> Iterator[SentinelSet]:
    """One primary, two replicas, three Sentinels."""
    binary = find_binary("7.0")
    if binary is None:
        pytest.skip("no redis-server: `make setup` says what to install")
    service = SentinelSet(binary)
    yield service
    service.remove()
