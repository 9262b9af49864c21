"""Findings by what was checked, and servers that are as a test wants them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from rqttl import Broker
from rqttl.store.driver import driver_of
from tests.servers import Server


@pytest.fixture
def configured(start_server: Callable[..., Server]) -> Iterator[Callable[..., Broker]]:
    """`configured(maxmemory="1gb")`: a broker on a server of its own with these settings.

    `save` is set once it runs: 6.2 takes several words as one on its command line.
    """
    brokers: list[Broker] = []

    def start(save: str = "", **config: object) -> Broker:
        brokers.append(Broker(start_server(**config).client()))
        driver_of(brokers[-1]).store.client.config_set("save", save)
        return brokers[-1]

    yield start
    for broker in brokers:
        broker.close()
