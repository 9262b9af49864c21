"""The contract tests on the asyncio interface: sync faces of asyncio objects, which run on a loop in a thread.

`RQTTL_TEST_REDIS=aio`. A call that a listener of events makes within the loop goes to the sync interface instead: there
it plays another client.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

import redis
import redis.asyncio

import rqttl
from rqttl.aio.broker import AsyncBroker
from rqttl.aio.consumer import AsyncDelivery
from rqttl.aio.driver import AsyncDriver
from rqttl.broker import Broker
from rqttl.flows.steps import Step
from rqttl.protocol.commands import Command
from rqttl.store.cluster import borrowed
from rqttl.store.driver import RedisDriver
from rqttl.store.topology import Trip
from rqttl.testing.fake import AsyncClockedDriver, Clock, ClockedDriver
from rqttl.types import Instant
from tests.waiting import PATIENCE

#: The asyncio classes and their sync twins.
TWINS: dict[type, type] = {getattr(rqttl, f"Async{twin}"): getattr(rqttl, twin) for twin in rqttl._TWINS}
#: The thread that made the call which a task carries out.
_caller: ContextVar[int] = ContextVar("caller")


class _Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="portal", daemon=True)
        self.thread.start()

    def is_here(self) -> bool:
        return threading.current_thread() is self.thread

    def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call a function within the loop, and await its result if it is a coroutine."""
        if self.is_here():  # a broker that a listener makes
            return function(*arguments, **options)
        _caller.set(threading.get_ident())

        async def call() -> Any:
            result = function(*arguments, **options)
            return await result if inspect.isawaitable(result) else result

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result()


_loops: list[_Loop] = []


def _loop() -> _Loop:
    if not _loops:
        _loops.append(_Loop())
    return _loops[0]


class Face:
    """The sync face of an asyncio object. `beside` makes the sync object for calls from within the loop."""

    def __init__(self, inner: Any, beside: Callable[[], Any], **attributes: Any) -> None:
        vars(self).update(_inner=inner, _beside=beside, _made=None, **attributes)

    @property  # type: ignore[misc]  # for isinstance: the class of the sync object
    def __class__(self) -> type:
        return TWINS.get(type(self._inner), Broker)

    def __getattr__(self, name: str) -> Any:
        if _loop().is_here():
            if self._made is None:
                vars(self)["_made"] = self._beside()
            return getattr(self._made, name)
        name = {"close": "aclose"}.get(name, name) if hasattr(self._inner, "aclose") else name
        member = getattr(type(self._inner), name, None)
        if isinstance(member, property) or not callable(getattr(self._inner, name)):
            return self._shown(getattr(self._inner, name))
        return partial(self._call, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(getattr(type(self._inner), name, None), property):
            _loop().call(setattr, self._inner, name, value)
        else:
            vars(self)[name] = value

    def _call(self, name: str, *arguments: Any, **options: Any) -> Any:
        if _loop().is_here():
            return getattr(self, name)(*arguments, **options)
        inner = [_inner(argument) for argument in arguments]
        if name == "run":
            inner, options = _run_arguments(inner, options, self._shown)
        return self._shown(_loop().call(getattr(self._inner, name), *inner, **options))

    def _shown(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._shown(item) for item in value]
        if type(value) in TWINS:
            driver, queue, twin = vars(self)["_driver"], getattr(value, "name", None), TWINS[type(value)]
            return Face(value, lambda: twin(driver, queue) if queue else value, _driver=driver, _parent=self)
        return value

    def __repr__(self) -> str:
        return repr(self._inner).replace("<Async", "<")

    def __iter__(self) -> Face:
        return self

    def __next__(self) -> Any:
        try:
            return self._shown(_loop().call(self._inner.__anext__))
        except StopAsyncIteration:
            raise StopIteration from None

    def __enter__(self) -> Any:
        _loop().call(self._inner.__aenter__)
        return self

    def __exit__(self, *error: object) -> Any:
        return _loop().call(self._inner.__aexit__, *error)


def _inner(value: Any) -> Any:
    if isinstance(value, Face):
        return value._inner
    if type(value) is list and value and all(type(item) is Face for item in value):
        return [item._inner for item in value]
    return value


def _run_arguments(inner: list[Any], options: dict[str, Any], shown: Callable[[Any], Any]) -> Any:
    handler, *others = inner or [options.pop("handler")]
    stop = options.get("stop")
    if "threads" in options:
        options["concurrency"] = options.pop("threads")
    if callable(handler) and not inspect.isgeneratorfunction(handler) and not inspect.iscoroutinefunction(handler):

        async def handle(delivery: AsyncDelivery) -> Any:
            result = await asyncio.get_running_loop().run_in_executor(None, handler, shown(delivery))
            if result is not None and (inspect.isawaitable(result) or inspect.isgenerator(result)):
                raise TypeError(
                    f"the handler returned a {type(result).__name__} that nobody awaited: make it async def"
                )

        inner = [handle, *others]
    if isinstance(stop, threading.Event):
        options["stop"] = _Stop(stop)
    return inner, options


class _Stop:
    """A `threading.Event` for a task to wait for."""

    def __init__(self, event: threading.Event) -> None:
        self._event = event

    async def wait(self) -> None:
        while not self._event.is_set():
            await asyncio.sleep(0.01)


def _async_client(client: redis.Redis | redis.RedisCluster) -> Any:
    """An asyncio client of the same server. It waits for replies as long as a test waits."""
    if isinstance(client, redis.RedisCluster):
        node = client.get_default_node()
        return redis.asyncio.RedisCluster(host=node.host, port=node.port, socket_timeout=PATIENCE)
    settings = client.connection_pool.connection_kwargs
    path, db = settings.get("path"), settings.get("db", 0)
    return redis.asyncio.Redis(unix_socket_path=path, db=db, socket_timeout=PATIENCE)


class PortalBroker(Face):
    """The sync face of an `AsyncBroker`. `driver_of` gives a sync driver on the same server."""

    def __init__(
        self, client: Any, namespace: str = "rqttl", *, inner: Any = None, driver: Any = None, slotted: bool = False
    ) -> None:
        if not isinstance(client, redis.RedisCluster) and (
            not isinstance(client, redis.Redis) or client.connection_pool.connection_kwargs.get("decode_responses")
        ):
            AsyncBroker(client)
        driver = driver or RedisDriver(client, namespace, slotted=slotted)
        inner = inner or _loop().call(lambda: AsyncBroker(_async_client(client), namespace, slotted=slotted))
        super().__init__(inner, lambda: Broker(client, namespace, driver=lambda *_, **__: driver), _driver=driver)
        driver.events = inner.events
        # a broker that a test leaves open is closed when nothing refers to it any more
        weakref.finalize(self, lambda: asyncio.run_coroutine_threadsafe(inner.aclose(), _loop().loop))

    def close(self) -> None:
        _loop().call(self._inner.aclose)
        self._driver.close()


class _PortalClock(Clock):
    """A clock of the thread that made it, also for tasks that carry out its calls."""

    def is_of_this_thread(self) -> bool:
        return self._owner == _caller.get(threading.get_ident())


class _OnConnection(AsyncClockedDriver):
    """A clocked driver that sends scripts itself, unless the test has taken over the steps of its sync driver."""

    def __init__(self, client: Any, sync: ClockedDriver) -> None:
        source: Any = (
            borrowed(_async_client(client)) if isinstance(client, redis.RedisCluster) else partial(_opened, client)
        )
        AsyncDriver.__init__(self, source, sync.keyspace.namespace, events=sync.events, timing=sync.timing)
        self.sync = sync
        self._leaping = False

    def leaps(self, prepare: Callable[[int], Any]) -> Any:
        """Nothing that consumers prepare for a leap goes on the line: no step of it may wait."""

        async def at_once(ms: int) -> None:
            self._leaping = True
            try:
                await prepare(ms)
            finally:
                self._leaping = False

        return super().leaps(at_once)

    def begin(self, step: Step, run: Any) -> Any:
        store = self.sync.store
        taken = "step" in vars(self.sync) or "run" in vars(store) or "read" in vars(store.exchanges)
        if type(step) is Command and not taken and not self._leaping:
            return AsyncDriver.begin(self, self.sync.timed(step), run)
        kind: type = type(step)
        if kind in (Trip, float):  # a round trip on the shared connection, or the pause before it
            return AsyncDriver.begin(self, step, run)
        return super().begin(step, run)


async def _opened(client: redis.Redis) -> Any:
    return _async_client(client)


class PortalClocked(PortalBroker):
    """The sync face of an `AsyncBroker` at the time of a clock."""

    def __init__(self, client: redis.Redis, namespace: str = "rqttl", *, start: Instant | None = None) -> None:
        clock = _PortalClock(start)
        sync = ClockedDriver(client, namespace, clock)
        inner = _loop().call(
            lambda: AsyncBroker(None, namespace, folder=Path(), driver=lambda *_, **__: _OnConnection(client, sync))
        )
        super().__init__(client, namespace, inner=inner, driver=sync)
        vars(self)["clock"] = clock
