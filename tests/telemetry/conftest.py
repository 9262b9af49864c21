"""Fixtures of the tests of telemetry."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rqttl import Broker, connect
from tests.telemetry.recording import Recording


@pytest.fixture
def recording() -> Iterator[Recording]:
    """Providers whose exporters keep spans and points."""
    recording = Recording()
    yield recording
    recording.tracers.shutdown()
    recording.meters.shutdown()


@pytest.fixture
def broker(redis_url: str) -> Iterator[Broker]:
    """A broker of the shared server."""
    with connect(redis_url) as broker:
        yield broker
