"""Deliveries of the asyncio interface."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from rqttl.decisions import Decision
from rqttl.delivery import Delivered, warn_not_given_back
from rqttl.errors import LeaseLost
from rqttl.settlers import Settlers
from rqttl.units import Duration


@dataclass(frozen=True, slots=True)
class AsyncSettler(Settlers["AsyncDelivery", Awaitable[None]]):
    """The functions that settle deliveries, and `keep`: it makes a task of work, which goes on without the caller."""

    keep: Callable[[Coroutine[Any, Any, None]], Awaitable[None]]


class AsyncDelivery(Delivered):
    """A message that was handed out. As a context manager it acks on success and nacks on an exception.

    Such a nack counts as a failed delivery. Its description is the class and the text of the exception. The exceptions
    `rqttl.Reject`, `rqttl.Retry` and `rqttl.Release` settle the delivery in their own ways, and end with the block. A
    cancelled task gives its message back as after an exception, without waiting.

    Settle a delivery once: `ack` (done), `nack` (give back) or `reject` (refuse for good). No other consumer gets the
    message while the lease lasts. After the end of the lease another consumer may get it, and settling raises
    `LeaseLost`. A lease is no lock: work that must not happen twice needs a check of its own.
    """

    __slots__ = ()

    _settler: AsyncSettler

    async def ack(self) -> None:
        await self._settler.ack([self])

    async def nack(self, delay: Duration | None = None, description: str | None = None) -> None:
        await self._settler.nack([self], delay, description)

    async def reject(self, description: str | None = None) -> None:
        await self._settler.reject([self], description)

    async def renew(self, lease: Duration | None = None) -> None:
        await self._settler.renew([self], lease)

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
            await self._settler.ack([self])
            return None
        giving_back = self._settler.keep(self._give_back(error))
        if isinstance(error, Exception):  # a cancelled task may not wait for anything
            await asyncio.shield(giving_back)
        return decided

    async def _give_back(self, error: BaseException) -> None:
        try:
            if self._settled is None:
                await self._settler.settle_after(self, error)
        except LeaseLost:
            pass  # the message is back already
        except Exception as failure:  # noqa: BLE001  # the caller must see the exception of the block
            warn_not_given_back(self, failure)


def settle_after(delivery: AsyncDelivery, error: BaseException | None, pause: Duration | None) -> Awaitable[None]:
    """See `Settlers.settle_after`."""
    return delivery._settler.settle_after(delivery, error, pause)  # noqa: SLF001  # of this module
