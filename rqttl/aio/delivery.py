"""Deliveries of the asyncio interface."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import TracebackType

from rqttl.decisions import Decision
from rqttl.delivery import Delivered, Settler, settle_after, warn_not_given_back
from rqttl.errors import LeaseLost
from rqttl.units import Duration


class AsyncDelivery(Delivered):
    """A message that was handed out: `Delivery` for an event loop.

    As a context manager it acks on success and nacks on an exception, as `Delivery` says. A cancelled task gives its
    message back as after an exception, without waiting.
    """

    __slots__ = ()

    _settler: Settler[Awaitable[None]]

    async def ack(self) -> None:
        await self._settler.settle("ack", [self], None, None)

    async def nack(self, delay: Duration | None = None, description: str | None = None) -> None:
        await self._settler.settle("nack", [self], delay, description)

    async def reject(self, description: str | None = None) -> None:
        await self._settler.settle("reject", [self], None, description)

    async def renew(self, lease: Duration | None = None) -> None:
        await self._settler.settle("renew", [self], lease, None)

    async def __aenter__(self) -> AsyncDelivery:
        self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(error)
        # decisions end with the block. A type checker must not believe that of all exceptions
        decided: None = isinstance(error, Decision)  # type: ignore[assignment]
        if self._settled is not None:
            return decided
        if error is None:
            await self._settler.settle("ack", [self], None, None)
            return None
        giving_back = self._settler.keep(self._give_back(error))  # type: ignore[misc]  # asyncio settlers have it
        if isinstance(error, Exception):  # a cancelled task may not wait for anything
            await asyncio.shield(giving_back)
        return decided

    async def _give_back(self, error: BaseException) -> None:
        try:
            if self._settled is None:
                await settle_after(self, error)
        except LeaseLost:
            pass  # the message is back already
        except Exception as failure:  # noqa: BLE001  # the caller must see the exception of the block
            warn_not_given_back(self, failure)
