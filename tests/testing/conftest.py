"""A fake broker whose clock begins at a fixed time."""

from collections.abc import Iterator

import pytest

from rqttl.testing import FakeBroker, fake_broker
from tests.contract.clocked import START


@pytest.fixture
def fake() -> Iterator[FakeBroker]:
    with fake_broker(start=START) as broker:
        yield broker
