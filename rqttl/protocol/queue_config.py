"""The options of a queue as a client remembers them, and the first words of calls, which depend on these options."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from rqttl.errors import DataDamaged
from rqttl.options import QueueOptions
from rqttl.protocol.contract import Script, Word
from rqttl.protocol.keys import TARGET_PARTS, Keyspace

#: The number of prefixes that a client keeps for a queue: one for each script, and for each source of dead letters.
PREFIXES = 100


@dataclass(frozen=True)
class QueueConfig:
    """The options in force of a queue and their version. Scripts answer `stale` to a call with another version.

    They come from the `declared` options and from the policies of the version `policies`.
    """

    keyspace: Keyspace
    name: str
    version: bytes
    options: QueueOptions
    declared: QueueOptions
    policies: int = 0
    #: The words before the batch of usual enqueue calls, by form and simplicity.
    heads: dict[tuple[Word, bool], tuple[Word, ...]] = field(default_factory=dict, compare=False, repr=False)
    _prefixes: dict[str, tuple[Word, ...]] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def read(
        cls,
        keyspace: Keyspace,
        queue: str,
        version: bytes,
        options: bytes | None,
        declared: bytes | None,
        policies: bytes | None,
    ) -> QueueConfig:
        """The fields of a record. Raises `DataDamaged`."""
        if options is None or declared is None or policies is None or not policies.isdigit():
            raise DataDamaged(queue, "its record lacks options, declared or policies")
        in_force, declaration = QueueOptions.from_json(queue, options), QueueOptions.from_json(queue, declared)
        return cls(keyspace, queue, version, in_force, declaration, int(policies))

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
        """True if the queue has a limit of length or bytes."""
        return self.options.max_length is not None or self.options.max_length_bytes is not None

    @cached_property
    def window(self) -> int:
        """`duplicate_window` in ms; 0 without one."""
        return self.options.number("duplicate_window") or 0

    @cached_property
    def cannot_refuse(self) -> bool:
        """True if the queue stores each message that has a TTL above 0.

        Such a queue has no limits, no window for duplicates, and no option that gives a TTL of 0.
        """
        rules = ("message_ttl", "default_ttl", "min_ttl", "max_ttl")
        return not self.limited and not self.window and all(self.options[name] != 0 for name in rules)

    def minimal_keys(self, script: Script) -> tuple[Word, ...]:
        """`keys_for` for a call that needs no key from position `Script.least` on."""
        words = self._prefixes.get("short")
        if words is None:
            keys = [self.keyspace.key(self.name, part) for part in script.keys[: script.least]]
            words = self._prefixes["short"] = (str(len(keys)), *keys, *self._fence(script, ""))
        return words

    def keys_for(self, script: Script, source: str = "") -> tuple[Word, ...]:
        """The keys of a call that depends on the options in force, and the arguments of its fence.

        `source` is the name of the further queue, for a script that has one.
        """
        place = f"{script.name} {source}" if source else script.name
        words = self._prefixes.get(place)
        if words is None:
            if len(self._prefixes) >= PREFIXES:
                self._prefixes.clear()
            queues = {"source": source} if source else {}
            queues |= {reason: self.options.target(reason) for reason in script.targets}
            targets = {reason: target for reason, target in queues.items() if target}
            mapping = " ".join(f"{reason}={'.' if name == self.name else name}" for reason, name in targets.items())
            keys = keys_of(self.keyspace, self.name, script, tuple(targets.values()))
            words = self._prefixes[place] = (*keys, *self._fence(script, mapping))
        return words

    def _fence(self, script: Script, targets: str) -> list[Word]:
        """The arguments that depend on the options in force, in the order of the header."""
        words: dict[str, Word] = {"version": self.version, "targets": targets}
        return [words[name] for name in script.fence]


@lru_cache(maxsize=4096)
def keys_of(keyspace: Keyspace, queue: str, script: Script, targets: tuple[str, ...]) -> tuple[Word, ...]:
    """The number of keys, then the keys: of the queue, of each other target, and the further ones of the source.

    Numbers of hot calls are text here, so that `resp.pack_command` need not look for numbers in each call.
    """
    keys = [keyspace.key(queue, part) for part in script.keys]
    for target in dict.fromkeys(targets):
        if target != queue:
            keys += [keyspace.key(target, part) for part in TARGET_PARTS]
    keys += [keyspace.key(targets[0], part) for part in script.source]
    return (str(len(keys)), *keys)
