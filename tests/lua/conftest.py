"""A laboratory for each test: an empty server, and states to put into it."""

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.lua.states import Lab


@pytest.fixture
def lab(client: redis.Redis) -> Lab:
    """States in, commands, states out."""
    return Lab(client)


@pytest.fixture
def hints(lab: Lab) -> Iterator[Any]:
    """All hints to reapers."""
    with lab.client.pubsub(ignore_subscribe_messages=True) as subscribed:
        subscribed.subscribe("rqttl:due")
        subscribed.get_message(timeout=60)  # the server has answered
        yield subscribed
