"""The contract of a script, as its header states it: keys, arguments, and the values of its reply.

No other code knows a position. `Script.arguments` puts words in the order of the header. `Script.read` gives the values
of a reply the names from the header.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, final

from rqttl.errors import ContractError
from rqttl.text import format_value

_PLAIN = frozenset((bytes, str))
_NUMBERS = frozenset((int, float))


def pack_in_python(words: tuple[Any, ...]) -> bytes:
    """Pack bytes, texts and numbers as `hiredis.pack_command` does."""
    packed = [b"*%d\r\n" % len(words)]
    for word in words:
        data = word if isinstance(word, bytes) else str(word).encode()
        packed.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(packed)


def without_numbers(words: tuple[Any, ...]) -> tuple[Any, ...]:
    """The words with each number as text.

    hiredis does not check what Python gives it for a number: a signal handler that raises then would crash the process.
    """
    if _PLAIN.issuperset(map(type, words)):
        return words
    return tuple([str(word) if type(word) in _NUMBERS else word for word in words])


try:
    from hiredis import pack_command as pack_words
except ImportError:
    pack_words = pack_in_python  # type: ignore[assignment]  # it takes fewer types


def pack_command(words: tuple[Any, ...]) -> bytes:
    """Pack one command."""
    packed: bytes = pack_words(without_numbers(words))
    return packed


class Packer:
    """Packs the commands that redis-py itself sends on a connection, such as `SELECT 3` and `HELLO 3`."""

    def pack(self, *words: Any) -> list[bytes]:
        """Pack one command. Its name may have several words."""
        name = words[0].encode() if isinstance(words[0], str) else words[0]
        arguments = [bytes(word) if isinstance(word, bytearray | memoryview) else word for word in words[1:]]
        return [pack_command((*name.split(), *arguments))]


Word = str | bytes | int

#: A reply as redis-py gives it: bytes, integers and lists of them. Its first element is `ok` or `refused`.
Reply = Sequence[Any]

#: The arguments that depend on the options in force. They stand first in each header that has them.
FENCE = ("version", "targets")
#: The argument that tells a script that the reply to an equal call was lost.
REPLAY = "replay"


class Ok:
    """The values of a reply, by the names in the header of the script; and its notes about other queues."""

    __slots__ = ()

    if TYPE_CHECKING:
        notes: Sequence[bytes]

        def __getattr__(self, name: str) -> Any: ...


@final
@dataclass(frozen=True, slots=True)
class Refused:
    """A refusal. `repeated`: the call had the mark `REPLAY`, so a call in its place needs the mark, too."""

    code: str
    details: tuple[Any, ...] = ()
    repeated: bool = False


def fits(reply: Any) -> bool:
    """Return False for a reply that no script gives. It may be an error."""
    if type(reply) is list:
        return len(reply) > 1 and reply[0] in (b"ok", b"refused")
    return isinstance(reply, Exception)


class Repeated(list[Any]):
    """A refusal, as redis-py gives it, of a call that had the mark `REPLAY`."""


class IncompleteReply(ContractError):
    """A reply with fewer values than the header of the script names. Lua ends a list at the first value that is nil."""


@dataclass(frozen=True, eq=False)  # equal means identical: the hash of all fields would be computed in each call
class Script:
    """A linked command: its text and hash, and the names of its keys, arguments and values, in order.

    A call that cannot need the keys from position `least` on leaves them out, and with them all targets. `targets` are
    the death reasons whose target queues the command may write to. `has_rest`: any number of arguments may follow.
    `source` are parts of one more queue, whose name is among the targets. The last name of `values` may be `word...`,
    which stands for all further values. `shared` are keys of no queue: the first ones of `keys`.
    `copies` is the command whose keys and targets the call has of each further queue.
    """

    name: str
    text: str = field(repr=False)
    sha: str
    keys: tuple[str, ...]
    least: int
    args: tuple[str, ...]
    targets: tuple[str, ...]
    refusals: tuple[str, ...]
    has_rest: bool
    source: tuple[str, ...]
    values: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    copies: str = ""

    @cached_property
    def fence(self) -> tuple[str, ...]:
        """The arguments that depend on the options in force."""
        return tuple(name for name in self.args if name in FENCE)

    @cached_property
    def arguments(self) -> Callable[..., tuple[Word, ...]]:
        """A function that takes all arguments behind the fence by name. It returns them in the order of the header.

        It is compiled once, as `namedtuple` compiles its constructor, because a mapping would slow down hot calls.
        """
        names = self.args[len(self.fence) :]
        parameters = f"*, {', '.join(names)}" if names else ""
        ordered: Callable[..., tuple[Word, ...]] = eval(  # noqa: S307  # names of a header
            f"lambda {parameters}: ({''.join(f'{name}, ' for name in names)})"
        )
        return ordered

    def check(self, reply: Any) -> None:
        """Raise `ContractError` for a reply that no script gives."""
        if type(reply) is not list or len(reply) < 2 or reply[0] not in (b"ok", b"refused"):
            start = reply[:2] if type(reply) is list else format_value(reply)
            raise ContractError(f"script {self.name}: unexpected reply {start!s:.80}")

    def read(self, reply: Reply) -> Ok | Refused:
        """Read a reply. Raises `ContractError` if it has other values than the header names."""
        if reply[0] == b"ok":
            make, size = self._reader
            if len(reply) == size:
                return make(reply)
            return self._read_list(reply)
        return Refused(reply[1].decode(), tuple(reply[2:]), type(reply) is Repeated)

    @cached_property
    def _reader(self) -> tuple[Callable[[Reply], Ok], int]:
        """A function that makes an `Ok` of a reply, and the number of elements that it takes; -1 for any number."""
        name = f"{self.name}_values"
        plain = [word.removesuffix("...") for word in self.values]
        fields = namedtuple(name, ["ok", "notes", *plain])  # type: ignore[misc]  # noqa: PYI024  # from a header
        make = partial(tuple.__new__, type(name, (fields, Ok), {"__slots__": ()}))
        return make, 2 + len(self.values) if plain == [*self.values] else -1

    def _read_list(self, reply: Reply) -> Ok:
        """Read a reply whose last value stands for all further elements."""
        make, size = self._reader
        fixed = 1 + len(self.values)
        if size >= 0 or len(reply) < fixed:
            kind = IncompleteReply if len(reply) <= fixed else ContractError
            raise kind(f"script {self.name}: {len(reply) - 2} values in its reply, expected {', '.join(self.values)}")
        return make([*reply[:fixed], reply[fixed:]])
