"""A primary with replicas and Sentinels, and the loops of asyncio."""

from collections.abc import Iterator

import pytest

from tests.aio.conftest import run as run  # noqa: PLC0414  # a fixture
from tests.servers import SentinelSet, server_binary


@pytest.fixture(scope="module")
def shared_service() -> Iterator[SentinelSet]:
    """One primary, two replicas, three Sentinels, for the tests of a module."""
    service = SentinelSet(server_binary("7.0"))
    yield service
    service.remove()


@pytest.fixture
def service(shared_service: SentinelSet) -> SentinelSet:
    """The same, all at work and empty."""
    shared_service.settle()
    with shared_service.primary().client() as client:
        client.flushall()
    return shared_service
