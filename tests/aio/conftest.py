"""Fixtures of the asyncio tests: they run a coroutine on each kind of loop, with nothing left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.aio.campaign import LOOPS
from tests.waiting import PATIENCE

Run = Callable[[Coroutine[Any, Any, Any]], Any]


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
