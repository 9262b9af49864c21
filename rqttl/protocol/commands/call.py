"""One script call as a value, and what a client knows of the queue that it is for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from rqttl.options import QueueOptions
from rqttl.protocol import scripts
from rqttl.protocol.keys import TARGET_PARTS, Keyspace
from rqttl.protocol.scripts import Script

Word = str | bytes | int

#: A reply as redis-py gives it: bytes, integers and lists of them. Its first element is `ok` or `refused`.
Reply = Sequence[Any]

#: Messages, or deliveries to settle, that one script call takes at most.
BATCH = 250

#: Bytes of headers and bodies that one script call reads, and one message more. Settles that read are cut by it.
READ_BYTES = 2**22

#: Prefixes of calls that a client keeps for a queue: one for each script, and for each source of dead letters.
PREFIXES = 100

#: Body bytes that one enqueue call carries at most (a single message may be larger).
BATCH_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Command:
    """One script call that has not happened yet.

    `repeatable` says that running it twice does no more than running it once, so that it may be run again when its
    reply was lost; `marked` is the position of the argument that then tells the script so.
    """

    script: Script
    queue: str
    words: tuple[Word, ...]
    repeatable: bool = True
    marked: int | None = None

    def again(self) -> Command:
        """The same call, after the reply to an earlier one was lost."""
        if self.marked is None:
            return self
        words = (*self.words[: self.marked], "1", *self.words[self.marked + 1 :])
        return Command(self.script, self.queue, words, self.repeatable, self.marked)


@dataclass(frozen=True)
class Known:
    """What a client knows of a queue: its options and their version."""

    keyspace: Keyspace
    name: str
    version: bytes
    options: QueueOptions
    _prefixes: dict[str, tuple[Word, ...]] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def retention(self) -> int | None:
        """`message_ttl` in ms."""
        return self.options.number("message_ttl")

    @cached_property
    def max_body(self) -> int:
        """`max_message_bytes`."""
        return self.options.number("max_message_bytes") or 0

    @cached_property
    def lease(self) -> int:
        """`lease` in ms."""
        return self.options.number("lease") or 0

    @cached_property
    def limited(self) -> bool:
        """Whether the queue has a limit of length or bytes."""
        return self.options.max_length is not None or self.options.max_length_bytes is not None

    @cached_property
    def window(self) -> int:
        """`duplicate_window` in ms; 0 without one."""
        return self.options.number("duplicate_window") or 0

    @cached_property
    def simple(self) -> bool:
        """Whether a message with a TTL above 0 can only be stored.

        So it is without limits, a window for duplicates, and options that give a TTL of 0.
        """
        rules = ("message_ttl", "default_ttl", "min_ttl", "max_ttl")
        return not self.limited and not self.window and all(self.options[name] != 0 for name in rules)

    def short(self, script: Script) -> tuple[Word, ...]:
        """`prefix` for a call that needs only the keys that it always needs."""
        words = self._prefixes.get("short")
        if words is None:
            keys = [self.keyspace.key(self.name, part) for part in script.keys[: script.least]]
            words = self._prefixes["short"] = (len(keys), *keys, self.version, "")
        return words

    def prefix(self, script: Script, source: str = "") -> tuple[Word, ...]:
        """The keys of a call that depends on the options in force, and its first two arguments: version and targets.

        `source` is the further queue of a script that has one.
        """
        place = f"{script.name} {source}" if source else script.name
        words = self._prefixes.get(place)
        if words is None:
            if len(self._prefixes) >= PREFIXES:
                self._prefixes.clear()
            found = {"source": source} if source else {}
            found |= {reason: self.options.target(reason) for reason in script.targets}
            targets = {reason: target for reason, target in found.items() if target}
            said = " ".join(f"{reason}={'.' if name == self.name else name}" for reason, name in targets.items())
            words = (*keys_of(self.keyspace, self.name, script, tuple(targets.values())), self.version, said)
            self._prefixes[place] = words
        return words


@lru_cache(maxsize=4096)
def keys_of(keyspace: Keyspace, queue: str, script: Script, targets: tuple[str, ...]) -> tuple[Word, ...]:
    """The number of keys and the keys: the queue's own, those of each other target queue, and more of the source."""
    keys = [keyspace.key(queue, part) for part in script.keys]
    for target in dict.fromkeys(targets):
        if target != queue:
            keys += [keyspace.key(target, part) for part in TARGET_PARTS]
    keys += [keyspace.key(targets[0], part) for part in script.source]
    return (len(keys), *keys)


def bind(
    keyspace: Keyspace, queue: str, name: str, args: Mapping[str, Word], rest: Iterable[Word] = ()
) -> tuple[Word, ...]:
    """Bind a call that needs no fence. `args` must name exactly what the script's header names."""
    script = scripts.load(name)
    return (*keys_of(keyspace, queue, script, ()), *[args[word] for word in script.args], *rest)
