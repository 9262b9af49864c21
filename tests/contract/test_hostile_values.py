"""No value, however strange, gets more than a typed error that names its argument, and a refusal changes nothing."""

from __future__ import annotations

import pytest
import redis

from rqttl import Broker, CommandEvent, InvalidInput, QueueNotFound, RqttlError
from tests.hostile import CALLS, VALUES, Call, attempt, set_stage
from tests.lua.states import everything


def fault_of(call: Call, error: RqttlError) -> str | None:
    """The reason why an error is no good answer to a hostile value."""
    if isinstance(error, QueueNotFound):
        # a valid name, of a queue that is not there
        return None if call.label == "redrive(to)" else "no such queue"
    if not isinstance(error, InvalidInput):
        return "not of the family InvalidInput"
    names = tuple(f"{name}: " if name else "" for name in call.names)
    return None if str(error).startswith(names) else "names another argument"


@pytest.mark.parametrize("call", CALLS, ids=[call.label for call in CALLS])
def test_a_hostile_value_is_taken_or_refused_by_name(
    call: Call, broker: Broker, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RQTTL_URL", "unix:///none")
    sent, faults = [], []
    broker.events.subscribe(lambda event: sent.append(event.name), CommandEvent)
    stage = set_stage(broker)
    before = everything(client)
    for value in VALUES:
        sent.clear()
        error = None
        try:
            error = attempt(call, stage, value)
        except Exception as fault:  # noqa: BLE001  # every other error is what the test looks for
            faults.append(f"{value}: {type(fault).__name__}: {str(fault)[:200]}")
        if error is not None and (why := fault_of(call, error)):
            faults.append(f"{value}: {why}: {type(error).__name__}: {error}")
        if error is not None and sent and everything(client) != before:
            faults.append(f"{value}: changed Redis, and was refused: {error}")
        if sent:
            client.flushall()
            stage = set_stage(broker)
            before = everything(client)
    assert faults == []
    assert everything(client) == before
