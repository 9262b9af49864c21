"""Checks of the options of a job that belong together. They raise `InvalidOption`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from spark_connectors.errors import InvalidOption
from spark_connectors.options import patterns
from spark_connectors.options.addresses import Address

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


#: What to write instead of `CREATE TABLE`, whose options Spark does not hand to a source.
NO_TABLE = (
    "a queue is no table of a catalog; write CREATE TEMPORARY VIEW letters USING rqttl OPTIONS (url 'redis://…', "
    "queues 'orders/dead')"
)


def check_together(use: Use, explicit: Mapping[str, object]) -> None:
    """Check the values that the user set."""
    for names in _EXCLUSIVE:
        if len(both := [name for name in names if name in explicit]) > 1:
            raise InvalidOption(f"{both[0]}: set either this or {both[1]}, not both")
    if use != "write" and not ("queues" in explicit or "queuePattern" in explicit):
        hint = "" if explicit else f". If this is a table of CREATE TABLE: {NO_TABLE}"
        raise InvalidOption(f"queues: required; name the queues with option queues, queuePattern or load(...){hint}")
    for name, place in _PLACES.items():
        if "://" in str(explicit.get(name, "")):
            raise InvalidOption(f"{name}: expected a {place}, not a URL")
    _check_offsets(explicit, "startingOffsets", "latest" if use == "batch" else "")
    _check_offsets(explicit, "endingOffsets", "earliest")
    _check_trigger(explicit)
    address = explicit.get("url")
    for name in ("tlsCaFile", "tlsCertFile", "tlsKeyFile"):
        if name in explicit and not (isinstance(address, Address) and address.tls):
            raise InvalidOption(f"{name}: needs a url that begins with rediss://")
    if "tlsKeyFile" in explicit and "tlsCertFile" not in explicit:
        raise InvalidOption("tlsKeyFile: needs option tlsCertFile, too")


def _check_trigger(explicit: Mapping[str, object]) -> None:
    least, most = explicit.get("minEntriesPerTrigger"), explicit.get("maxEntriesPerTrigger")
    if isinstance(least, int) and isinstance(most, int) and least > most:
        raise InvalidOption(f"minEntriesPerTrigger: expected at most maxEntriesPerTrigger, {most}, got {least}")
    if "maxTriggerDelay" in explicit and least is None:
        raise InvalidOption("maxTriggerDelay: needs option minEntriesPerTrigger, too")


def _check_offsets(explicit: Mapping[str, object], name: str, refused: str) -> None:
    offsets = explicit.get(name)
    by_queue: Mapping[str, Any] = offsets if isinstance(offsets, Mapping) else {}
    queues, pattern = cast("tuple[str, ...]", explicit.get("queues", ())), str(explicit.get("queuePattern", ""))
    if refused in (offsets, *by_queue.values()):
        raise InvalidOption(f"{name}: {refused!r} would read nothing in a batch")
    selected = {*queues, *patterns.matching(pattern, by_queue)}
    if strangers := sorted(set(by_queue) - selected):
        raise InvalidOption(f"{name}: {strangers[0]!r} is not one of the queues to read")
