"""The public names: all can be had, none is invented, and importing the package is quick."""

from __future__ import annotations

import subprocess
import sys

import pytest

import rqttl


def test_every_public_name_is_there_and_listed() -> None:
    assert [name for name in rqttl.__all__ if getattr(rqttl, name) is None] == []
    assert set(rqttl.__all__) <= set(dir(rqttl))


def test_a_name_that_is_not_public_is_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'rqttl' has no attribute 'Brokr'"):
        getattr(rqttl, "Brokr")  # noqa: B009  # mypy knows that it is not there


ALL_COMMANDS = "import click; from rqttl.cli import cli; cli.get_help(click.Context(cli))"


@pytest.mark.parametrize(
    "statement", ["import rqttl", "import rqttl.errors", "from rqttl import InvalidInput", ALL_COMMANDS]
)
def test_imports_that_need_no_redis_do_not_wait_for_its_client(statement: str) -> None:
    told = f"{statement}; import sys; print('redis' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True).stdout == "False\n"
