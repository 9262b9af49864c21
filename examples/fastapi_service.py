"""A service that sends, consumes and shows its queues: `uvicorn examples.fastapi_service:api`."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

from fastapi import FastAPI, Request

import rqttl
from rqttl.dashboard import app as dashboard

shipped: list[int] = []


async def ship(delivery: rqttl.AsyncDelivery) -> None:
    """Ship what was ordered."""
    shipped.append(delivery.decode()["item"])


@asynccontextmanager
async def lifespan(api: FastAPI) -> AsyncIterator[None]:
    """Consume while the service runs."""
    async with rqttl.connect_async() as broker:
        api.state.orders = await broker.declare_queue("orders", dead_letter="{queue}/dead", max_deliveries=3)
        stop = asyncio.Event()
        consuming = asyncio.create_task(api.state.orders.run(ship, concurrency=8, stop=stop))
        yield
        stop.set()
        await consuming


def may(request: Request) -> Literal["look"] | None:
    """Who may look at the queues: requests from this machine. A real service asks its users."""
    return "look" if request.client and request.client.host == "127.0.0.1" else None


api = FastAPI(lifespan=lifespan)
api.mount("/queues", dashboard(rqttl.connect(), may=may))


@api.post("/orders/{item}")
async def order(item: int) -> dict[str, str]:
    """Order an item."""
    return {"id": (await api.state.orders.enqueue({"item": item}, ttl="1h")).id}
