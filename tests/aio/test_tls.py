"""The line over TLS: it takes over an encrypted connection, holds callers back, and is replaced when it is lost."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rqttl
from rqttl.aio import line
from tests import tls
from tests.aio.conftest import Run
from tests.servers import Server

pytestmark = [pytest.mark.once, pytest.mark.slow]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """See `certify`."""
    return tls.certify(tmp_path_factory.mktemp("tls"))


def test_calls_go_over_an_encrypted_line_and_over_the_next_one(
    run: Run, start_server: Callable[..., Server], certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "FULL", 10_000)
    held: list[line.Line] = []
    room = line.Line.room

    async def counted(own: line.Line) -> None:
        held.append(own)
        await room(own)

    monkeypatch.setattr(line.Line, "room", counted)
    server, url = tls.secure(start_server, certificates)
    files = {"ssl_ca_certs": "ca.crt", "ssl_certfile": "client.crt", "ssl_keyfile": "client.key"}
    options = "&".join(f"{option}={certificates / name}" for option, name in files.items())

    async def work() -> None:
        async with rqttl.connect_async(f"{url}?{options}") as broker:
            queue = await broker.declare_queue("q")
            await queue.enqueue(b"x")
            first: Any = broker._driver.store._line
            server.process.send_signal(signal.SIGSTOP)  # so that no bytes of the calls can leave
            try:
                calls = asyncio.gather(*[queue.enqueue(b"x" * 50_000) for _ in range(400)])
                while not held:
                    await asyncio.sleep(0)
            finally:
                server.process.send_signal(signal.SIGCONT)
            await calls
            assert set(held) == {first}
            first._writer.transport.abort()
            while first.usable:
                await asyncio.sleep(0)
            await queue.enqueue(b"x")
            assert broker._driver.store._line is not first
            assert (await queue.stats()).ready == 402

    run(work())
