"""The options of one job, read and checked.

Whatever speaks of options (reader, stream, writer, documentation, refusals) reads `OPTIONS`, the table that declares
them. Names are camelCase and hold without case; values are text, as Spark passes them.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, cast

from spark_connectors.errors import InvalidOption, UnknownOption
from spark_connectors.options import patterns
from spark_connectors.options.secret import Secret
from spark_connectors.options.table import OPTIONS, Option, Use
from spark_connectors.options.values import READ, Address

__all__ = ["OPTIONS", "Option", "Options", "Use"]

T = TypeVar("T")

#: What Spark itself puts among the options of a source or sink, in lower case.
SPARKS = frozenset({"checkpointlocation", "queryname"})
_USES = {"batch": "spark.read", "stream": "spark.readStream", "write": "write and writeStream"}
_BY_LOWER = {name.lower(): option for name, option in OPTIONS.items()}
#: What `load(path)` and `save(path)` mean.
_PATH: Mapping[Use, str] = {"batch": "queues", "stream": "queues", "write": "queue"}
#: Options of which at most one may be given.
_EITHER = (
    ("queues", "queuePattern"),
    ("password", "passwordEnv", "passwordFile"),
    ("maxEntriesPerTrigger", "maxBytesPerTrigger"),
)


@dataclass(frozen=True)
class Options(Mapping[str, object]):
    """The options of one job, read and checked: every option that it knows by name, `None` where it is not set.

    It holds plain values only, so it can be pickled; what is secret in it is not seen in any text.
    """

    use: Use
    given: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def read(cls, use: Use, options: Mapping[str, str]) -> Options:
        """Check what the user said. Raises `UnknownOption` or `InvalidOption`, before anything is connected to."""
        given: dict[str, object] = {}
        # not dict(options): Spark's mapping knows names without case, but gives them in lower case
        for written, text in options.items():
            name = _PATH[use] if written.lower() == "path" else written
            if name.lower() in SPARKS:
                continue
            option = _known(use, name)
            if option.name in given:
                raise InvalidOption(f"{option.name}: given twice")
            given[option.name] = READ[option.kind](option, text)
        _take_credentials(given)
        _check_together(use, given)
        return cls(use, given)

    def text(self, name: str) -> str:
        """An option that is a text and has a value."""
        return self._of(name, str)

    def number(self, name: str) -> int:
        """An option that is a count, or a duration or an instant in ms, and has a value."""
        return self._of(name, int)

    def flag(self, name: str) -> bool:
        """An option that is true or false."""
        return self._of(name, bool)

    def maybe_text(self, name: str) -> str | None:
        """A text that may be absent."""
        return None if self[name] is None else self.text(name)

    def maybe_number(self, name: str) -> int | None:
        """A number that may be absent."""
        return None if self[name] is None else self.number(name)

    @property
    def address(self) -> Address:
        """Where Redis is; holds no secret."""
        return self._of("url", Address)

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues to read, in the order given; empty with `queuePattern`."""
        return cast("tuple[str, ...]", self["queues"] or ())

    def offsets(self, name: str) -> str | Mapping[str, str]:
        """`earliest`, `latest`, or a place for each queue: a sequence or one of these words."""
        return cast("str | Mapping[str, str]", self[name])

    def password(self) -> Secret | None:
        """The password, from wherever it is to come; environment and file are those of the process that asks."""
        variable, file = self.maybe_text("passwordEnv"), self.maybe_text("passwordFile")
        if variable is not None:
            if variable not in os.environ:
                raise InvalidOption(f"passwordEnv: {variable!r} is not set here; driver and executors both need it")
            return Secret(os.environ[variable])
        if file is not None:
            try:
                return Secret(Path(file).read_text(encoding="utf-8").rstrip("\r\n"))
            except (OSError, UnicodeDecodeError) as error:
                why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
                raise InvalidOption(
                    f"passwordFile: {file!r} cannot be read here ({why}); driver and executors both need it"
                ) from None
        return cast("Secret | None", self["password"])

    def __getitem__(self, name: str) -> object:
        option = OPTIONS[name]
        if name in self.given:
            return self.given[name]
        return None if option.default is None else READ[option.kind](option, option.default)

    def __iter__(self) -> Iterator[str]:
        return (name for name, option in OPTIONS.items() if self.use in option.uses)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _of(self, name: str, kind: type[T]) -> T:
        value = self[name]
        if not isinstance(value, kind):
            raise InvalidOption(f"{name}: required here, and not given")
        return value


def _known(use: Use, name: str) -> Option:
    option = _BY_LOWER.get(name.lower())
    if option is None:
        here = {lower: known.name for lower, known in _BY_LOWER.items() if use in known.uses}
        near = difflib.get_close_matches(name.lower(), here, n=1)
        hint = (
            f"; did you mean {here[near[0]]}?"
            if near
            else f"; the options of {_USES[use]} are {', '.join(here.values())}"
        )
        raise UnknownOption(f"{name[:80]}: no such option{hint}")
    if use not in option.uses:
        places = " and ".join(_USES[other] for other in option.uses)
        raise UnknownOption(f"{option.name}: an option of {places}, not of {_USES[use]}")
    return option


def _take_credentials(given: dict[str, object]) -> None:
    """Move what a URL holds beside the address to the options that are meant for it."""
    address = given.get("url")
    if not isinstance(address, Address):
        return
    for name, value in (("username", address.username), ("password", address.password)):
        if value is not None:
            if name in given:
                raise InvalidOption(f"{name}: given twice, as an option and in url")
            given[name] = value
    given["url"] = address.bare()


def _check_together(use: Use, given: Mapping[str, object]) -> None:
    for names in _EITHER:
        if len(both := [name for name in names if name in given]) > 1:
            raise InvalidOption(f"{both[0]}: give either this or {both[1]}, not both")
    if use != "write" and not ("queues" in given or "queuePattern" in given):
        raise InvalidOption("queues: name what to read, with option queues, queuePattern or load(...)")
    _check_offsets(given, "startingOffsets", "latest" if use == "batch" else "")
    _check_offsets(given, "endingOffsets", "earliest")
    address = given.get("url")
    for name in ("tlsCaFile", "tlsCertFile", "tlsKeyFile"):
        if name in given and not (isinstance(address, Address) and address.tls):
            raise InvalidOption(f"{name}: only with a url that begins with rediss://")
    if "tlsKeyFile" in given and "tlsCertFile" not in given:
        raise InvalidOption("tlsKeyFile: needs tlsCertFile beside it")


def _check_offsets(given: Mapping[str, object], name: str, refused: str) -> None:
    offsets = given.get(name)
    named: Mapping[str, str] = offsets if isinstance(offsets, Mapping) else {}
    if refused in (offsets, *named.values()):
        raise InvalidOption(f"{name}: {refused!r} would read nothing in a batch")
    queues, pattern = cast("tuple[str, ...]", given.get("queues", ())), str(given.get("queuePattern", ""))
    known = {*queues, *patterns.select(pattern, named)}
    if strangers := sorted(set(named) - known):
        raise InvalidOption(f"{name}: {strangers[0]!r} is not among the queues that are read")
