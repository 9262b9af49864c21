"""Absolute times as people and programs write them."""

from __future__ import annotations

import click

from rqttl.errors import InvalidInput
from rqttl.units import instant

__all__ = ["instant", "read_instant"]


def read_instant(context: click.Context, option: click.Parameter, value: str | None) -> int | None:
    """The ms since 1970 of what `instant` takes. For `callback`."""
    if value is None:
        return None
    try:
        return instant(value, "time")
    except InvalidInput as error:
        raise click.BadParameter(str(error).removeprefix("time: "), context, option) from None
