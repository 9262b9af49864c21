"""A run: one flow on its way through an event loop. A task can go on where a cancelled caller has left it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from types import CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rqttl.aio.line import Call
from rqttl.aio.store import is_usual
from rqttl.flows.steps import Flow, Step
from rqttl.runtime.interrupt import Interrupt

if TYPE_CHECKING:
    from rqttl.aio.driver import AsyncDriver

T = TypeVar("T")


class Kept:
    """The work of a task that nobody cancels. Any number of callers may await it."""

    __slots__ = ("_task",)

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task = task

    def __await__(self) -> Generator[Any, None, Any]:
        return (yield from asyncio.shield(self._task).__await__())


class Run(Generic[T]):
    """The state of a flow: the flows that it performs within it, the step that is under way, and the last answer."""

    __slots__ = ("_answer", "_driver", "_error", "_flows", "_pending", "abandoned", "lock")

    def __init__(self, driver: AsyncDriver, flow: Flow[T]) -> None:
        self._driver = driver
        self._flows: list[Flow[Any]] = [flow]
        self._pending: Call | Kept | None = None
        self._answer: Any = None
        self._error: Exception | None = None
        #: Ends the waits of the flow, because nobody waits for its result any more. `None` until a wait needs it.
        self.abandoned: Interrupt | None = None
        #: The lock that the caller holds. It is free while the flow waits for a message.
        self.lock: asyncio.Lock | None = None

    async def proceed(self) -> T:
        """Carry the flow out to its end. After a cancellation the next call goes on where this one ended."""
        while self._pending is not None or self._advance():
            pending = self._pending
            try:
                if type(pending) is Call:
                    if pending.is_open:
                        await pending.arrival()
                    self._answer = pending.answer
                    if not is_usual(pending.command, self._answer):
                        again = self._driver.store.exchanges.run(pending.command, self._answer, pending.at)
                        self._flows.append(again)  # type: ignore[arg-type]  # the driver performs its steps, too
                        self._answer = None
                else:
                    self._answer = await pending  # type: ignore[misc]  # `_advance` has set it
            except Exception as error:  # noqa: BLE001  # the flow decides about it
                self._error = error
            self._pending = None
        result: T = self._answer
        return result

    def _advance(self) -> bool:
        """Perform all steps that need no wait. Returns False at the end of the flow."""
        while True:
            flow = self._flows[-1]
            try:
                if self._error is None:
                    step = flow.send(self._answer)
                else:
                    error, self._error = self._error, None
                    step = flow.throw(error)
            except StopIteration as done:
                self._answer = done.value
                self._flows.pop()
                if not self._flows:
                    return False
                continue
            except Exception as failure:
                self._answer = None
                self._flows.pop()
                if not self._flows:
                    raise
                self._error = failure
                continue
            if self._begin(step):
                return True

    def _begin(self, step: Step) -> bool:
        """Begin a step. Returns True if its answer comes later."""
        try:
            begun = self._driver.begin(step, self)
        except Exception as error:  # noqa: BLE001  # the flow decides about it
            self._error = error
            return False
        kind = type(begun)
        if kind is Call:
            self._pending = begun
            return True
        self._answer = None
        if kind is CoroutineType:
            self._pending = self._keep(begun)
            return True
        if kind is GeneratorType:
            self._flows.append(begun)
        else:
            self._answer = begun
        return False

    def _keep(self, work: Coroutine[Any, Any, Any]) -> Kept:
        return Kept(self._driver.keep(work))
