"""Every key that a script touches is among its KEYS: shown by a user who may touch nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from rqttl.protocol.commands import Command
from tests.lua.scenarios import CONSUMERS, MAKERS, PRODUCERS, Scenario
from tests.lua.states import Lab
from tests.servers import Server

WAYS: dict[str, Scenario] = {**PRODUCERS, **CONSUMERS, **MAKERS}


@pytest.fixture
def confined(lab: Lab, server: Server) -> Iterator[Lab]:
    """A laboratory of a user who may do everything, but to no key and only on the channel for reapers."""
    lab.client.execute_command(
        "ACL", "SETUSER", "lint", "reset", "on", "nopass", "+@all", "resetchannels", "&rqttl:due"
    )
    with server.client(username="lint") as client:
        yield Lab(client)
    lab.client.execute_command("ACL", "DELUSER", "lint")


def keys_of(command: Command) -> list[str]:
    return [str(word) for word in command.words[1 : 1 + int(command.words[0])]]


@pytest.mark.parametrize("way", WAYS)
def test_a_command_touches_only_the_keys_it_names(lab: Lab, confined: Lab, way: str) -> None:
    command = WAYS[way].prepare(lab)
    lab.client.execute_command("ACL", "SETUSER", "lint", *[f"~{key}" for key in keys_of(command)])

    assert confined.run(command)[0] == b"ok"


def test_the_user_of_these_tests_is_really_confined(lab: Lab, confined: Lab) -> None:
    command = CONSUMERS["sweep that expires"].prepare(lab)
    keys = keys_of(command)
    lab.client.execute_command("ACL", "SETUSER", "lint", *[f"~{key}" for key in keys if "dead" not in key])

    with pytest.raises(redis.ResponseError):
        confined.run(command)


@pytest.mark.parametrize("way", WAYS)
def test_all_keys_of_a_command_belong_to_the_queue_or_to_a_target(lab: Lab, way: str) -> None:
    command = WAYS[way].prepare(lab)

    keys = keys_of(command)
    assert len(set(keys)) == len(keys)
    assert {key.split(":")[1] for key in keys} <= {f"{{{command.queue}}}", "{dead}", "{more}", "{nobody}"}
