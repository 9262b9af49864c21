"""A laboratory for each test: an empty server, and states to put into it."""

import pytest
import redis

from tests.lua.states import Lab


@pytest.fixture
def lab(client: redis.Redis) -> Lab:
    """States in, commands, states out."""
    return Lab(client)
