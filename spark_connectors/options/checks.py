"""Checks of the options of a job that belong together. They raise `InvalidOption`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from spark_connectors.errors import InvalidOption
from spark_connectors.options import patterns
from spark_connectors.options.addresses import Address, as_tuple

if TYPE_CHECKING:
    from spark_connectors.options.table import Use

#: Groups of options that exclude each other.
_EXCLUSIVE = (
    ("queues", "queuePattern"),
    ("password", "passwordEnv", "passwordFile"),
    ("maxEntriesPerTrigger", "maxBytesPerTrigger"),
)
#: Options with the path of files, and the place where it is.
_PLACES = {
    "rejectedPath": "folder in the file system of the executors",
    "reportPath": "path in the file system of the driver",
}


def is_by_server(offsets: Mapping[str, object]) -> bool:
    """True if a mapping of offsets has a mapping for each server."""
    return any(isinstance(value, Mapping) for value in offsets.values())


def check_together(use: Use, explicit: Mapping[str, object]) -> None:
    """Check the values that the user set."""
    for names in _EXCLUSIVE:
        if len(both := [name for name in names if name in explicit]) > 1:
            raise InvalidOption(f"{both[0]}: set either this or {both[1]}, not both")
    if use != "write" and not ("queues" in explicit or "queuePattern" in explicit):
        raise InvalidOption("queues: required; name the queues with option queues, queuePattern or load(...)")
    for name, place in _PLACES.items():
        if "://" in str(explicit.get(name, "")):
            raise InvalidOption(f"{name}: expected a {place}, not a URL")
    servers = _addresses(explicit.get("url"))
    _check_offsets(explicit, servers, "startingOffsets", "latest" if use == "batch" else "")
    _check_offsets(explicit, servers, "endingOffsets", "earliest")
    _check_trigger(explicit)
    _check_servers(explicit, servers)
    with_tls = any(address.tls for address in (*servers, *_addresses(explicit.get("readFrom"))))
    for name in ("tlsCaFile", "tlsCertFile", "tlsKeyFile"):
        if name in explicit and not with_tls:
            raise InvalidOption(f"{name}: needs a url that begins with rediss://")
    if "tlsKeyFile" in explicit and "tlsCertFile" not in explicit:
        raise InvalidOption("tlsKeyFile: needs option tlsCertFile, too")


def _addresses(value: object) -> tuple[Address, ...]:
    """Return the addresses in the value of an option: none for the default, and for a word."""
    return as_tuple(cast("Address | tuple[Address, ...]", value)) if isinstance(value, (Address, tuple)) else ()


def _check_servers(explicit: Mapping[str, object], servers: Sequence[Address]) -> None:
    names = [address.server for address in servers] or ["of the default url"]
    if explicit.get("onServerLost") == "skip" and not (len(servers) > 1 or any(address.name for address in servers)):
        raise InvalidOption("onServerLost: skip needs a url with a list of servers, or with a name for its server")
    for replica in _addresses(explicit.get("readFrom")):
        if not replica.name and len(servers) > 1:
            raise InvalidOption(
                f"readFrom: with several servers, each replica needs the name of its server: replica:{names[0]}=…"
            )
        if replica.name and replica.name not in names:
            raise InvalidOption(f"readFrom: {replica.name!r} is not one of the servers {', '.join(names)}")


def _check_trigger(explicit: Mapping[str, object]) -> None:
    least, most = explicit.get("minEntriesPerTrigger"), explicit.get("maxEntriesPerTrigger")
    if isinstance(least, int) and isinstance(most, int) and least > most:
        raise InvalidOption(f"minEntriesPerTrigger: expected at most maxEntriesPerTrigger, {most}, got {least}")
    if "maxTriggerDelay" in explicit and least is None:
        raise InvalidOption("maxTriggerDelay: needs option minEntriesPerTrigger, too")


def _check_offsets(explicit: Mapping[str, object], servers: Sequence[Address], name: str, refused: str) -> None:
    offsets = explicit.get(name)
    by_name: Mapping[str, Any] = offsets if isinstance(offsets, Mapping) else {}
    of_servers: Sequence[Mapping[str, str]] = [by_name]
    if is_by_server(by_name):
        names = [address.server for address in servers]
        if strangers := sorted(set(by_name).difference(names)):
            raise InvalidOption(f"{name}: {strangers[0]!r} is not one of the servers of url")
        of_servers = list(by_name.values())
    elif by_name and len(servers) > 1:
        example = f'{{"{servers[0].server}": {{"queue": …}}}}'
        raise InvalidOption(f"{name}: with several servers, expected JSON such as {example}")
    queues, pattern = cast("tuple[str, ...]", explicit.get("queues", ())), str(explicit.get("queuePattern", ""))
    for by_queue in of_servers:
        if refused in (offsets, *by_queue.values()):
            raise InvalidOption(f"{name}: {refused!r} would read nothing in a batch")
        selected = {*queues, *patterns.matching(pattern, by_queue)}
        if strangers := sorted(set(by_queue) - selected):
            raise InvalidOption(f"{name}: {strangers[0]!r} is not one of the queues to read")
