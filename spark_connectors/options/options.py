"""The options of one job, parsed and checked.

The table `OPTIONS` declares them once, for readers, writers, error texts and the documentation. Option names are
camelCase, and case-insensitive as in all of Spark. Spark passes their values as text.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from rqttl.errors import InvalidInput
from rqttl.store.addresses import Address
from rqttl.text import did_you_mean
from spark_connectors.errors import InvalidOption, UnknownOption
from spark_connectors.options import patterns
from spark_connectors.options.secret import Secret, quoted
from spark_connectors.options.table import OPTIONS, Option, Use
from spark_connectors.options.values import PARSERS

__all__ = ["OPTIONS", "Option", "Options", "Use"]

T = TypeVar("T")

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


#: `connectRetries` with Sentinel and on a cluster, unless the user sets it: pauses of 42 s, shortened by chance.
_RETRIES_IN_FAILOVER = 9
#: The name of the password of Sentinels, which is no option.
_OF_SENTINELS = "sentinel_password"
#: What to write instead of `CREATE TABLE`, whose options Spark does not hand to a source.
_NO_TABLE = (
    "a queue is not a table of a catalog; write CREATE TEMPORARY VIEW letters USING rqttl OPTIONS (url 'redis://…', "
    "queues 'orders/dead')"
)


def _check_together(use: Use, explicit: Mapping[str, object]) -> None:
    """Check the values that the user set."""
    for names in _EXCLUSIVE:
        if len(both := [name for name in names if name in explicit]) > 1:
            raise InvalidOption(f"{both[0]}: set either this or {both[1]}, not both")
    if use != "write" and not ("queues" in explicit or "queuePattern" in explicit):
        hint = "" if explicit else f". If this is a table of CREATE TABLE: {_NO_TABLE}"
        raise InvalidOption(f"queues: required; name the queues with option queues, queuePattern or load(...){hint}")
    for name, place in _PLACES.items():
        if "://" in str(explicit.get(name, "")):
            raise InvalidOption(f"{name}: expected a {place}, not a URL")
    _check_offsets(explicit, "startingOffsets", "latest" if use == "batch" else "")
    _check_offsets(explicit, "endingOffsets", "earliest")
    _check_trigger(explicit)
    address = explicit.get("url")
    for name in ("tlsCaFile", "tlsCertFile", "tlsKeyFile"):
        if name in explicit and not (isinstance(address, Address) and address.has_tls):
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


#: Options of Spark itself that it passes to a source or sink, in lower case.
SPARK_OPTIONS = frozenset({"checkpointlocation", "queryname"})
_USES = {"batch": "spark.read", "stream": "spark.readStream", "write": "write and writeStream"}
_BY_LOWER = {name.lower(): option for name, option in OPTIONS.items()}
#: The option that takes the path of `load(path)` and `save(path)`.
_PATH_OPTION: Mapping[Use, str] = {"batch": "queues", "stream": "queues", "write": "queue"}
#: Options of Spark's connector for Kafka, and the options here.
_OF_KAFKA = {
    "kafka.bootstrap.servers": "url",
    "endingOffsetsByTimestamp": "endingTimestamp",
    "maxOffsetsPerTrigger": "maxEntriesPerTrigger",
    "minOffsetsPerTrigger": "minEntriesPerTrigger",
    "minPartitions": "numPartitions",
    "startingOffsetsByTimestamp": "startingTimestamp",
    "subscribePattern": "queuePattern",
}
#: Options for Kafka with names of topics. Their counterpart depends on the job.
_TOPICS_OF_KAFKA = ("assign", "subscribe", "topic")
_KAFKA_BY_LOWER = {name.lower(): name for name in (*_OF_KAFKA, *_TOPICS_OF_KAFKA)}


@dataclass(frozen=True)
class Options(Mapping[str, object]):
    """The options of one job, parsed and checked: a mapping of all options of its use, `None` for one without a value.

    `explicit` has the values that the user set. All values can be pickled, and no text of this object shows a secret.
    """

    use: Use
    explicit: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def parse(cls, use: Use, texts: Mapping[str, str], known: tuple[Use, ...] = ()) -> Options:
        """Parse the texts of the user. Raises `UnknownOption` or `InvalidOption`; connects to nothing.

        Errors name the options of the uses `known`, else those of this use.
        """
        explicit: dict[str, object] = {}
        # not dict(texts): Spark's mapping looks names up without case, but iterates in lower case
        for raw_name, raw_text in texts.items():
            if raw_name.lower() in SPARK_OPTIONS:
                continue
            if raw_name.lower() == "paths" and use != "write":
                name, text = "queues", _joined_paths(raw_text)
            else:
                name, text = _PATH_OPTION[use] if raw_name.lower() == "path" else raw_name, raw_text
            option = _option_of(known or (use,), name)
            if option.name in explicit:
                raise InvalidOption(f"{option.name}: set twice")
            try:
                explicit[option.name] = PARSERS[option.kind](option, text)
            except InvalidInput as error:
                raise InvalidOption(str(error)) from None
        _take_credentials(explicit)
        _check_together(use, explicit)
        return cls(use, explicit)

    @classmethod
    def parse_read(cls, texts: Mapping[str, str]) -> Options:
        """Parse the options of a read that may become a batch or a stream. Raises as `parse` does.

        The options of only one kind decide. Without them the check is that of a stream, because a batch has all its
        rules and one more; the texts of errors then suit both kinds.
        """
        names = {name.lower() for name in texts}
        batch, stream = (
            [option.name for option in OPTIONS.values() if option.uses == (use,) and option.name.lower() in names]
            for use in ("batch", "stream")
        )
        if batch and stream:
            raise UnknownOption(
                f"{stream[0]}: an option of {_USES['stream']}, and {batch[0]} is one of {_USES['batch']}: remove one"
            )
        if batch:
            return cls.parse("batch", texts)
        return cls.parse("stream", texts, ("stream",) if stream else ("batch", "stream"))

    def text(self, name: str) -> str:
        """Return the value of a text option."""
        return self._of(name, str)

    def number(self, name: str) -> int:
        """Return a count, or a duration or an instant in ms."""
        return self._of(name, int)

    def flag(self, name: str) -> bool:
        """Return the value of a true-or-false option."""
        return self._of(name, bool)

    def optional_text(self, name: str) -> str | None:
        """Return the value of a text option, or `None` if it is not set."""
        return None if self[name] is None else self.text(name)

    def optional_number(self, name: str) -> int | None:
        """Return a number, or `None` if it is not set."""
        return None if self[name] is None else self.number(name)

    @property
    def address(self) -> Address:
        """The address of Redis, without secrets."""
        return self._of("url", Address)

    @property
    def shows_password(self) -> bool:
        """True if a password is an option, or a part of `url`."""
        return not {"password", _OF_SENTINELS}.isdisjoint(self.explicit)

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues to read, in the order of the user; empty with `queuePattern`."""
        return cast("tuple[str, ...]", self["queues"] or ())

    def offsets(self, name: str) -> str | Mapping[str, str]:
        """Return `earliest`, `latest`, or for each queue a sequence or one of these words."""
        return cast("str | Mapping[str, str]", self[name])

    def password_of_sentinels(self) -> Secret | None:
        """Return the password of the Sentinels, which only `url` has."""
        return cast("Secret | None", self.explicit.get(_OF_SENTINELS))

    def password(self) -> Secret | None:
        """Read the password from the option, or from the environment or the file of this process."""
        variable, file = self.optional_text("passwordEnv"), self.optional_text("passwordFile")
        if variable is not None:
            if variable not in os.environ:
                raise InvalidOption(f"passwordEnv: {variable!r} is not set here; driver and executors both need it")
            return Secret(os.environ[variable])
        if file is not None:
            try:
                return Secret(Path(file).read_text(encoding="utf-8").rstrip("\r\n"))
            except (OSError, UnicodeDecodeError) as error:
                cause = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
                raise InvalidOption(
                    f"passwordFile: {file!r} cannot be read here ({cause}); driver and executors both need it"
                ) from None
        return cast("Secret | None", self["password"])

    def __getitem__(self, name: str) -> object:
        option = OPTIONS[name]
        if name in self.explicit:
            return self.explicit[name]
        return None if option.default is None else PARSERS[option.kind](option, option.default)

    def __iter__(self) -> Iterator[str]:
        return (name for name, option in OPTIONS.items() if self.use in option.uses)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _of(self, name: str, kind: type[T]) -> T:
        value = self[name]
        if not isinstance(value, kind):
            raise InvalidOption(f"{name}: required, and not set")
        return value


def _joined_paths(text: str) -> str:
    """Convert the list of `load([...])`, which Spark passes as JSON, to the text of option `queues`."""
    try:
        paths = json.loads(text)
    except ValueError:
        paths = None
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise InvalidOption(f"paths: expected a JSON list of queues, as load([...]) makes it, got {quoted(text)}")
    return ",".join(paths)


def _option_of(uses: tuple[Use, ...], name: str) -> Option:
    """Return the option of this name. It belongs to one of these uses at least."""
    option, jobs = _BY_LOWER.get(name.lower()), " and ".join(_USES[use] for use in uses)
    if option is None:
        if name.lower() == "provider":
            raise UnknownOption(f"CREATE TABLE: {_NO_TABLE}")
        theirs = _KAFKA_BY_LOWER.get(name.lower(), "")
        if theirs:
            ours = OPTIONS[_PATH_OPTION[uses[0]] if theirs in _TOPICS_OF_KAFKA else _OF_KAFKA[theirs]]
            raise UnknownOption(f"{theirs}: an option for Kafka; its counterpart here is {ours.name}: {ours.meaning}")
        names = [other.name for other in OPTIONS.values() if set(uses) & set(other.uses)]
        hint = did_you_mean(name, names, f"the options of {jobs} are {', '.join(names)}", ignore_case=True)
        raise UnknownOption(f"{name[:80]}: no such option{hint}")
    if not set(uses) & set(option.uses):
        owners = " and ".join(_USES[other] for other in option.uses)
        raise UnknownOption(f"{option.name}: an option of {owners}, not of {jobs}")
    return option


def _take_credentials(explicit: dict[str, object]) -> None:
    """Move user name and passwords of the URL to options."""
    address = explicit.get("url")
    if not isinstance(address, Address):
        return
    passwords = {"password": address.password, _OF_SENTINELS: address.sentinel_password}
    found = {"username": address.user, **{name: Secret(text) if text else None for name, text in passwords.items()}}
    for name, value in found.items():
        if value is not None:
            if name in explicit:
                raise InvalidOption(f"{name}: set twice, as an option and in url")
            explicit[name] = value
    explicit["url"] = replace(address, user=None, password=None, sentinel_password=None)
    if address.is_cluster or address.service:
        # a failover takes up to 30 s
        explicit.setdefault("connectRetries", _RETRIES_IN_FAILOVER)
