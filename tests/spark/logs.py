"""A log of entries, and the options to read it with."""

from __future__ import annotations

import redis

from spark_connectors.options.options import Options
from spark_connectors.redis.pages import Page

LOG = "rqttl:{q}:log"


def options(url: str, **more: str) -> Options:
    said = {"url": url, "queues": "q", **more}
    return Options.parse("batch", said)


def fill(client: redis.Redis, count: int, *, size: int = 10, key: str = LOG) -> list[bytes]:
    sequences = [b"%013d-100000" % (1_700_000_000_000 + i) for i in range(count)]
    pipeline = client.pipeline(transaction=False)
    for sequence in sequences:
        pipeline.execute_command("XADD", key, sequence, "", "x" * size)
    pipeline.execute()
    return sequences


def sequences_of(page: Page) -> list[bytes]:
    return [page.sequence(row) for row in range(len(page))]
