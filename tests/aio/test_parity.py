"""The asyncio interface has the names, the parameters and the docstrings of the sync one."""

import inspect
import re
from typing import Any

import pytest

from rqttl import _RENAMED as RENAMED
from rqttl import connect, connect_async
from tests.contract.portal import TWINS

#: Methods whose parameters or docstrings differ, and the reason.
OTHER_PARAMETERS = {
    "AsyncBroker.__init__": "an embedded server starts at the first call, in a thread",
    "AsyncQueue.run": "tasks instead of threads, and an asyncio.Event",
}
OTHER_DOCSTRINGS = {
    "AsyncBroker.aclose": "it waits for the end of what has begun",
    "AsyncQueue.consume": "a task renews, not a thread",
    "AsyncQueue.run": "tasks instead of threads",
}

CLASSES = [pytest.param(twin, sync, id=sync.__name__) for twin, sync in TWINS.items()]


def members(kind: type) -> dict[str, Any]:
    """The public members of a class, and its protocol methods, by the names of the sync class."""
    shown = [name for name in dir(kind) if not name.startswith("_") or name in RENAMED or name in RENAMED.values()]
    return {RENAMED.get(name, name): inspect.getattr_static(kind, name) for name in shown}


def text(annotation: object) -> str:
    return re.sub(r"\bAsync(?=[A-Z])", "", str(annotation)).replace("Redis | None", "redis.Redis")


@pytest.mark.parametrize("twin, sync", CLASSES)
def test_the_same_members(twin: type, sync: type) -> None:
    assert members(twin).keys() == members(sync).keys()


@pytest.mark.parametrize("twin, sync", CLASSES)
def test_the_same_parameters_and_types(twin: type, sync: type) -> None:
    for name, member in members(sync).items():
        other = members(twin)[name]
        if not inspect.isfunction(member) or other.__qualname__ in OTHER_PARAMETERS:
            continue
        mine, its = inspect.signature(other), inspect.signature(member)
        assert [(p.name, p.kind, p.default, text(p.annotation)) for p in mine.parameters.values()] == [
            (p.name, p.kind, p.default, text(p.annotation)) for p in its.parameters.values()
        ], name
        assert text(mine.return_annotation) == text(its.return_annotation), name


@pytest.mark.parametrize("twin, sync", CLASSES)
def test_the_same_docstrings(twin: type, sync: type) -> None:
    for name, member in members(sync).items():
        other = members(twin)[name]
        if inspect.isfunction(member) or isinstance(member, property):
            label = getattr(other, "__qualname__", name)  # a property has none
            assert (inspect.getdoc(other) == inspect.getdoc(member)) is (label not in OTHER_DOCSTRINGS), label


@pytest.mark.parametrize("twin, sync", CLASSES)
def test_methods_that_talk_to_redis_are_awaited(twin: type, sync: type) -> None:
    at_once = {
        "queue",
        "topic",
        "consume",
        "interrupt",
        "node_of",
        "stop",
        "decode",
        "__iter__",
        "__init__",
        "__repr__",
    }
    at_once |= {"check_unsettled", "checksum", "fields", "settle_as", "hand_out"}  # for the code that has deliveries

    for name, member in members(twin).items():
        if inspect.isfunction(member):
            assert inspect.iscoroutinefunction(member) is (name not in at_once), name


def test_connect_is_a_plain_function_with_the_same_parameters() -> None:
    mine, its = inspect.signature(connect_async), inspect.signature(connect)

    assert mine.parameters == its.parameters
    assert not inspect.iscoroutinefunction(connect_async)
    assert connect_async.__doc__ == connect.__doc__
