"""Fixtures of the asyncio tests: they run a coroutine on each kind of loop, with nothing left behind."""

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterator
from functools import wraps
from typing import Any

import pytest
import uvloop

import rqttl
from tests.process.proxy import Proxy
from tests.servers import Server
from tests.waiting import PATIENCE

Run = Callable[[Coroutine[Any, Any, Any]], Any]
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


@pytest.fixture
def proxy(server: Server, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A line to the shared server that can be spoilt, and short pauses between attempts."""
    monkeypatch.setattr("rqttl.store.exchanges.PAUSES", (0.001,) * 4)
    proxy = Proxy(server.socket)
    yield proxy
    proxy.stop_listening()


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    """Run a coroutine on a new loop. It fails if a task is left, or if the loop has met an error."""

    def run(work: Coroutine[Any, Any, Any]) -> Any:
        loop = LOOPS[request.param]()
        trouble: list[str] = []
        loop.set_exception_handler(lambda _, context: trouble.append(str(context)))
        try:
            result = loop.run_until_complete(asyncio.wait_for(work, PATIENCE))
            left = asyncio.all_tasks(loop)
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()
        assert (trouble, left) == ([], set())
        return result

    return run


def looped(**options: Any) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], Callable[..., None]]:
    """Run a test on each loop, with a broker and its queue `q` with these options as first arguments.

    With the fixture `proxy` the broker is behind it.
    """

    def decorate(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        parameters = list(inspect.signature(test).parameters.values())[2:]
        given = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in ("run", "redis_url")]
        given += [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters if one.name != "redis_url"]

        @wraps(test)
        def looped(run: Run, redis_url: str, **fixtures: Any) -> None:
            if any(one.name == "redis_url" for one in parameters):
                fixtures["redis_url"] = redis_url

            url = f"redis://127.0.0.1:{fixtures['proxy'].port}" if "proxy" in fixtures else redis_url

            async def work() -> None:
                async with rqttl.connect_async(url) as broker:
                    await test(broker, await broker.declare_queue("q", **options), **fixtures)

            run(work())

        looped.__signature__ = inspect.Signature(given)  # type: ignore[attr-defined]  # what pytest reads
        return looped

    return decorate
