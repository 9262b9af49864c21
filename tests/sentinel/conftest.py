"""A primary with replicas and Sentinels, and the loops of asyncio."""

from collections.abc import Iterator

import pytest

from tests.aio.conftest import run as run  # noqa: PLC0414  # a fixture
from tests.servers import SentinelSet, find_binary


@pytest.fixture(scope="module")
def shared_service() -> Iterator[SentinelSet]:
    """One primary, two replicas, three Sentinels, for the tests of a module."""
    binary = find_binary("7.0")
    if binary is None:
        pytest.skip("no redis-server: `make setup` says what to install")
    service = SentinelSet(binary)
    yield service
    service.remove()


@pytest.fixture
def service(shared_service: SentinelSet) -> SentinelSet:
    """The same, all at work and empty."""
    shared_service.settle()
    with shared_service.primary().client() as client:
        client.flushall()
    return shared_service
