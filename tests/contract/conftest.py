"""What contract tests share: a broker with a clock of its own, and the short words for what a queue holds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from tests.contract.clocked import Clocked


@pytest.fixture
def clocked(client: redis.Redis) -> Iterator[Clocked]:
    """A broker whose time stands still until the test moves it."""
    broker = Clocked(client)
    yield broker
    broker.close()
