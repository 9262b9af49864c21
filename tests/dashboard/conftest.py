"""The dashboard, asked without a server of its own."""

from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest
from starlette.testclient import TestClient

from rqttl import Broker
from rqttl.dashboard import app


@pytest.fixture
def visiting(broker: Broker) -> Iterator[Callable[..., TestClient]]:
    """`visiting(act=True)`: a client of the dashboard of this broker, or of another one."""
    clients = []

    def make(of: Broker = broker, *, act: bool = False, **options: Any) -> TestClient:
        right: Literal["act", "look"] = "act" if act else "look"
        client = TestClient(app(of, may=lambda _: right, **options), base_url="http://queues.test")
        client.headers.update({"Sec-Fetch-Site": "same-origin"})
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def pages(visiting: Callable[..., TestClient]) -> TestClient:
    """A client who may look."""
    return visiting()
