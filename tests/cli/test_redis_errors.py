"""Errors of redis-py in plain words, as far as no server is needed to meet them."""

from __future__ import annotations

import pytest
import redis

from rqttl.cli.common.errors import explain_redis
from rqttl.events import Events
from rqttl.protocol.keys import Keyspace
from rqttl.store.store import Store


def test_a_server_that_hangs_up_may_want_tls() -> None:
    store = Store(redis.Redis(port=1), Keyspace(), Events())

    explained = explain_redis(
        redis.ConnectionError("Error while reading from localhost:1 : (104, 'Connection reset by peer')"), store
    )

    assert explained is not None
    code, line = explained
    assert code == 4
    assert line.startswith("Redis does not answer: Connection reset by peer (a port with TLS wants rediss://; or all ")


@pytest.mark.parametrize(
    "words, line",
    [
        ("LOADING Redis is loading the dataset in memory", "Redis is loading its data: try again in a moment"),
        (
            "MISCONF Redis is configured to save RDB snapshots, but it is currently unable to persist on disk",
            "Redis cannot save its data, so it takes no writes: look at its log and its disk",
        ),
        (
            "Error running script (call to f_0123): @user_script:164: @user_script: 164: -BUSY wait",
            "Redis refused: BUSY wait",
        ),
        (f"BUSY wait script: {'a1' * 20}, on @user_script:164.", "Redis refused: BUSY wait"),
        (
            "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed",
            "the certificate of Redis is not trusted: name its authority's in the URL, with ?ssl_ca_certs=FILE",
        ),
    ],
)
def test_an_error_of_a_script_is_explained_without_its_text(words: str, line: str) -> None:
    explained = explain_redis(redis.ResponseError(words))

    assert explained is not None
    assert explained[1] == line
