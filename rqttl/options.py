"""Queue options: the table of all options, and the options of one queue.

`declare_queue`, `update`, the command line and the documentation all read `OPTIONS`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, NamedTuple, TypedDict, cast

from rqttl import units
from rqttl.checks import check_queue_name, whole
from rqttl.errors import DataDamaged, InvalidName, InvalidOption, QueueForwards
from rqttl.filters import Rule, check_filter
from rqttl.text import did_you_mean, format_value, load_object, plain_number, plain_text
from rqttl.types import Duration, Size

Value = int | float | str | bool
ScriptUse = Literal["always", "lifetime", "failure"]
#: Reasons of a death, each also the suffix of the option that names its target.
REASONS = ("expired", "maxlen", "rejected", "delivery_limit")
#: Options that an operator turns on and off: a declaration of an existing queue leaves them as they are.
SWITCHES = ("paused",)
#: Options that let consumers wait although messages are ready.
CONTROLS = ("paused", "max_leased", "rate", "burst")
OVERFLOWS = ("drop-head", "reject-publish", "reject-publish-dlx")
#: The values of `on_expire`, from the one that keeps least.
ENDINGS = ("drop", "dead-letter", "keep")
DURABILITIES = ("primary", "replica", "disk")
#: The bindings of a topic among stored options. They are no option: no declaration and no policy names them.
BINDINGS = "bindings"
#: Options that no policy gives: a queue declares them itself.
DECLARED_ONLY = ("forward_to",)

_MAX_COUNT = 2**53 - 1
#: Options by their names in other tools.
OTHER_NAMES = {
    "ttl": "message_ttl",
    "retention": "message_ttl",
    "dlq": "dead_letter",
    "dlx": "dead_letter",
    "dead_letter_queue": "dead_letter",
    "dead_letter_exchange": "dead_letter",
    "retry_delay": "redelivery_delay",
    "backoff": "redelivery_multiplier",
    "retries": "max_deliveries",
    "max_retries": "max_deliveries",
    "delivery_limit": "max_deliveries",
    "visibility_timeout": "lease",
    "lock_duration": "lease",
    "ack_timeout": "lease",
    "auto_delete": "auto_delete_on_idle",
    "capacity": "max_length",
    "max_size": "max_length",
}
#: Names of options that no queue needs, with the reason.
NO_OPTIONS = {
    "priority": "there are no priorities: use a queue for each",
    "max_priority": "there are no priorities: use a queue for each",
    "delay": "`enqueue(…, delay=…)` and `rqttl send --delay` delay a message, redelivery_delay a failed one",
    "durable": "every queue is stored, and `rqttl doctor` says what a crash of Redis can lose",
}
#: Characters of the longest text that may be a misspelt option.
_LONGEST_NAME = 80


@dataclass(frozen=True, slots=True)
class Option:
    """A queue option. `read` turns an argument into the stored value, or raises `InvalidOption`.

    `choices` are the values of an option of kind `choice`. `scripts` names the calls whose scripts read the option:
    each call on a queue with such an option (`always`), on a queue with a lifetime (`lifetime`), or a failed delivery
    (`failure`). Only clients read the others.
    """

    name: str
    kind: str
    default: Value | None
    scripts: ScriptUse | None
    read: Callable[[str, object], Value]
    meaning: str
    choices: tuple[str, ...] = ()

    def format(self, value: Value | None) -> str:
        """A value as people write it on the command line."""
        if value is None:
            return "(none)"
        if self.kind == "duration":
            return units.as_text(int(value))
        if isinstance(value, bool):
            return "yes" if value else "no"
        if self.kind in ("count", "size"):
            return f"{value:,}"
        return str(units.written_rate(value) if self.kind == "rate" else value) or "(drop)"

    def parse(self, written: str) -> object:
        """The argument that a text of `format`, or of people, stands for. `read` refuses what it leaves as text."""
        if written in ("(none)", "(drop)"):
            return None if written == "(none)" else ""
        if self.kind == "flag":
            return {"yes": True, "no": False}.get(written, written)
        plain = written.replace(",", "") if self.kind in ("count", "size") else written
        try:
            return {"count": int, "number": float}.get(self.kind, str)(plain)
        except ValueError:
            return written


def _duration(least: int) -> Callable[[str, object], Value]:
    return lambda name, value: int(units.duration(value, name, least=least))  # type: ignore[arg-type]  # duration checks


def _count(least: int) -> Callable[[str, object], Value]:
    return lambda name, value: whole(value, name, least, _MAX_COUNT, InvalidOption)


def _burst(name: str, value: object) -> Value:
    return whole(value, name, 1, units.MOST_MESSAGES, InvalidOption)


def _size(least: int) -> Callable[[str, object], Value]:
    def read(name: str, value: object) -> Value:
        number = units.size(value)
        if number is None or not least <= number <= _MAX_COUNT:
            rule = f"expected bytes, {least} or more, such as 1048576, '500kB' or '10MB'"
            raise InvalidOption(f"{name}: {rule}, got {format_value(value, str if isinstance(value, str) else int)}")
        return number

    return read


def _number(least: int, most: int = _MAX_COUNT) -> Callable[[str, object], Value]:
    def read(name: str, value: object) -> Value:
        number = plain_number(value)
        if number is None or not least <= number <= most:
            got = format_value(value, float if isinstance(value, float) else int)
            raise InvalidOption(f"{name}: expected a number from {least} to {most}, got {got}")
        # equal numbers are stored as one text
        return int(number) if number == int(number) else float(number)

    return read


def _flag(name: str, value: object) -> Value:
    if not isinstance(value, bool):
        raise InvalidOption(f"{name}: expected true or false, got {format_value(value, bool)}")
    return value


def _rate(name: str, value: object) -> Value:
    messages, per = units.rate(value, name)
    return f"{messages}/{per}"


def _choice(name: str, choices: tuple[str, ...], scripts: ScriptUse | None, meaning: str) -> Option:
    """An option whose default is the first of its values."""

    def read(name: str, value: object) -> Value:
        text = plain_text(value)
        if text not in choices:
            raise InvalidOption(f"{name}: expected one of {', '.join(choices)}, got {format_value(value)}")
        return text

    return Option(name, "choice", choices[0], scripts, read, meaning, choices)


def _target(empty_drops: bool) -> Callable[[str, object], Value]:
    def read(name: str, value: object) -> Value:
        text = plain_text(value)
        if text == "" and empty_drops:
            return ""
        if text is None:
            raise InvalidOption(
                f"{name}: expected a queue name or a template with {{queue}}, got {format_value(value)}"
            )
        try:
            check_queue_name(text.replace("{queue}", "q"))
        except InvalidName as error:
            raise InvalidOption(f"{name}: {error}") from None
        return text

    return read


def _per_reason(reason: str, meaning: str) -> Option:
    return Option(f"dead_letter_{reason}", "target", None, None, _target(empty_drops=True), meaning)


OPTIONS: Mapping[str, Option] = {
    option.name: option
    for option in (
        Option("message_ttl", "duration", None, "always", _duration(0),
               "default and maximum TTL of every message"),
        Option("default_ttl", "duration", None, "always", _duration(0),
               "TTL of messages sent without one; turns off `min_ttl` and `max_ttl`"),
        Option("min_ttl", "duration", None, "always", _duration(0), "shortest TTL that a message gets"),
        Option("max_ttl", "duration", None, "always", _duration(0), "longest TTL that a message gets"),
        Option("never_expire", "flag", False, "always", _flag, "ignore the TTLs of messages"),
        Option("max_length", "count", None, "always", _count(0), "limit of ready messages"),
        Option("max_length_bytes", "size", None, "always", _size(0), "limit of the body bytes of ready messages"),
        _choice("overflow", OVERFLOWS, "always", "rule for a full queue"),
        Option("dead_letter", "target", None, None, _target(empty_drops=False),
               "target of dead messages, for every reason, such as `{queue}/dead`"),
        _per_reason("expired", "target of expired messages; empty = drop"),
        _per_reason("maxlen", "target of messages beyond a limit; empty = drop"),
        _per_reason("rejected", "target of rejected messages; empty = drop"),
        _per_reason("delivery_limit", "target of messages that failed too often; empty = drop"),
        Option("forward_to", "target", None, None, _target(empty_drops=False),
               "queue to which all messages go on: nobody receives them here"),
        Option("expires", "duration", None, "lifetime", _duration(1),
               "time without use after which the queue is deleted"),
        Option("auto_delete_on_idle", "duration", None, "lifetime", _duration(1),
               "like `expires`, but arriving messages and `peek` count as use, too"),
        _choice("on_expire", ENDINGS, "lifetime", "treatment of the messages of an expired queue"),
        Option("lease", "duration", 30_000, None, _duration(1), "default lease of a delivery"),
        Option("max_deliveries", "count", None, "always", _count(1), "failed deliveries after which a message is dead"),
        Option("redelivery_delay", "duration", None, "failure", _duration(1),
               "delay after the first failed delivery of a message"),
        Option("redelivery_multiplier", "number", 1, "failure", _number(1),
               "factor of the delay for each further failure"),
        Option("redelivery_max_delay", "duration", None, "failure", _duration(1), "longest delay"),
        Option("redelivery_jitter", "number", 0, "failure", _number(0, 1),
               "maximum random reduction of each delay, as a fraction (0 to 1)"),
        Option("paused", "flag", False, "always", _flag,
               "give no message to consumers; a later declaration leaves it as it is"),
        Option("max_leased", "count", None, "always", _count(1), "messages that are leased at the same time, at most"),
        Option("rate", "rate", None, "always", _rate,
               "messages that are given to consumers in a time, at most, such as `100/1m`"),
        Option("burst", "count", None, "always", _burst,
               "messages that `rate` lets go at once after a pause; without it, those of one second"),
        Option("duplicate_window", "duration", None, "always", _duration(1),
               "time in which a message id is not stored again"),
        Option("max_message_bytes", "size", 16 * 2**20, None, _size(1), "largest body"),
        _choice("durability", DURABILITIES, None, "what has a message when a call that sends it returns"),
    )
}  # fmt: skip

#: The options that scripts read. A set option is a field of the queue's record.
SCRIPT_OPTIONS: Mapping[str, ScriptUse] = {option.name: option.scripts for option in OPTIONS.values() if option.scripts}
#: The options that act with `redelivery_delay` only.
_DELAYS = tuple(name for name, use in SCRIPT_OPTIONS.items() if use == "failure")


class OptionArguments(TypedDict, total=False):
    """Options of a queue, as keyword arguments of `declare_queue` and `Queue.update`.

    `declare_queue` ignores an option with the value `None`; `update` resets it to its default. A duration is a
    `timedelta`, or text with a unit such as `"30s"`. A size is a number of bytes, or text with a unit such as
    `"500kB"`, `"10MB"` or `"1GiB"`. In the name of a target `{queue}` stands for this queue. The README has a table of
    all options; `python -m tests.unit.test_docs` generates it, and these keys, from `OPTIONS`.
    """

    # <!-- options -->
    message_ttl: Duration | None
    default_ttl: Duration | None
    min_ttl: Duration | None
    max_ttl: Duration | None
    never_expire: bool | None
    max_length: int | None
    max_length_bytes: Size | None
    overflow: Literal["drop-head", "reject-publish", "reject-publish-dlx"] | None
    dead_letter: str | None
    dead_letter_expired: str | None
    dead_letter_maxlen: str | None
    dead_letter_rejected: str | None
    dead_letter_delivery_limit: str | None
    forward_to: str | None
    expires: Duration | None
    auto_delete_on_idle: Duration | None
    on_expire: Literal["drop", "dead-letter", "keep"] | None
    lease: Duration | None
    max_deliveries: int | None
    redelivery_delay: Duration | None
    redelivery_multiplier: float | None
    redelivery_max_delay: Duration | None
    redelivery_jitter: float | None
    paused: bool | None
    max_leased: int | None
    rate: str | None
    burst: int | None
    duplicate_window: Duration | None
    max_message_bytes: Size | None
    durability: Literal["primary", "replica", "disk"] | None
    # <!-- /options -->


@dataclass(frozen=True)
class QueueOptions(Mapping[str, Value | None]):
    """The options of one queue, by attribute or key. Durations are milliseconds, and `None` means no value.

    `non_default` has the options that differ from their defaults, with their stored values. `bindings` has the filter
    of each queue that is bound to a topic; it is `None` for a queue that is none.
    """

    queue: str
    non_default: Mapping[str, Value]
    bindings: Mapping[str, list[Rule]] | None = None

    @classmethod
    def read(cls, queue: str, arguments: Mapping[str, object]) -> QueueOptions:
        """Check arguments of a declaration. Raises `InvalidOption` or `InvalidDuration`, which name the option."""
        return cls(check_queue_name(queue), {}).changed(arguments)

    @classmethod
    def read_stored(cls, queue: str, stored: Mapping[str, object]) -> QueueOptions:
        """Check options from Redis, with durations in milliseconds. Raises as `read` does."""
        return cls.read(queue, {name: written(name, value) for name, value in stored.items()})

    @classmethod
    def from_json(cls, queue: str, text: str | bytes) -> QueueOptions:
        """Read the text of `as_json`. Raises `DataDamaged` for another text, or one with options that are unknown."""
        try:
            return cls(queue, *_read_json(text))
        except (ValueError, OverflowError) as error:
            raise DataDamaged(queue, f"its record holds no options: {error}") from None

    def as_json(self) -> str:
        """The options that differ from their defaults, as JSON. Equal options give equal texts."""
        bindings = {} if self.bindings is None else {BINDINGS: self.bindings}
        return json.dumps({**self.non_default, **bindings}, sort_keys=True, separators=(",", ":"))

    def as_arguments(self) -> OptionArguments:
        """The same options as arguments of `declare_queue` and `update`, with durations as text with a unit.

        A copy of a queue: `broker.declare_queue("copy", **queue.options().as_arguments())`.
        """
        return cast("OptionArguments", {name: written(name, value) for name, value in self.non_default.items()})

    def changed(self, changes: Mapping[str, object]) -> QueueOptions:
        """These options with some changes. `None` unsets an option."""
        named = by_name(changes)
        kept = {name: value for name, value in self.non_default.items() if name not in named}
        options = QueueOptions(self.queue, dict(sorted({**kept, **_stored(named)}.items())), self.bindings)
        options._check_together()
        return options

    def differences(self, other: QueueOptions) -> dict[str, tuple[Value | None, Value | None]]:
        """The differing options, each with both values."""
        return {name: (self[name], other[name]) for name in OPTIONS if self[name] != other[name]}

    def declares(self, stored: QueueOptions) -> bool:
        """Return True if a declaration with these options finds its queue: the switches of that one do not matter."""
        return self.is_topic is stored.is_topic and self.differences(stored).keys() <= set(SWITCHES)

    def as_topic(self) -> QueueOptions:
        """The same options, of a topic without bindings. Raises `InvalidOption` for one that no topic has."""
        return replace(self, bindings={}).changed({})

    @property
    def is_topic(self) -> bool:
        """True if messages go on to bound queues."""
        return self.bindings is not None

    @property
    def forwards_to(self) -> str:
        """The name of the queue that `forward_to` means; empty without one."""
        return str(self.forward_to or "").replace("{queue}", self.queue)

    @property
    def passes_to(self) -> Mapping[str, list[Rule]] | None:
        """The queues to which messages go on, with the filter of each. `None` if consumers receive them here."""
        return {self.forwards_to: []} if self.forward_to else self.bindings

    @property
    def subscriptions(self) -> list[str]:
        """The bound queues `<topic>/<name>`, which are deleted with their topic."""
        return sorted(name for name in self.bindings or () if name.rpartition("/")[0] == self.queue)

    def check_source(self) -> None:
        """Raise `QueueForwards` for a queue from which nobody receives."""
        if self.passes_to is not None:
            raise QueueForwards(self.queue, sorted(self.passes_to), is_topic=self.is_topic)

    def target(self, reason: str) -> str:
        """The target of messages that died for `reason`; empty if they are dropped."""
        template = self.non_default.get(f"dead_letter_{reason}", self.non_default.get("dead_letter", ""))
        return str(template).replace("{queue}", self.queue)

    def targets(self) -> set[str]:
        """The dead-letter targets for all reasons of death."""
        return {target for reason in REASONS if (target := self.target(reason))}

    def number(self, name: str) -> int | None:
        """The value of an option that is a whole number."""
        value = self[name]
        return None if value is None else int(value)

    def fields(self) -> list[int | str]:
        """The fields of the record that scripts read: names and values in turn. `options` alone has all other options.

        `option_set` is `expiring` if the queue has a lifetime, `default` if it has no other option that every command
        reads (where messages go on, `passing`), `capped` with `max_leased`, else `custom`. A queue whose messages go on
        is in use, so it has no lifetime.
        """
        uses = {name: SCRIPT_OPTIONS[name] for name in self.non_default if name in SCRIPT_OPTIONS}
        passes_to = self.passes_to
        expires = not passes_to and (self.expires is not None or self.auto_delete_on_idle is not None)
        kind = "expiring" if expires else "custom" if "always" in uses.values() else "default"
        kind = "passing" if kind == "default" and passes_to is not None else kind
        kind = "capped" if kind == "custom" and self.max_leased is not None else kind
        values: dict[str, Value] = {"option_set": kind, "overflow": str(self.overflow)}
        if passes_to is not None:
            values["passes_on"] = 1
        if expires:
            values["on_expire"] = str(self.on_expire)
        values |= {name: self.non_default[name] for name, use in uses.items() if expires or use != "lifetime"}
        return [
            word
            for name, value in values.items()
            for word in (name, int(value) if isinstance(value, int) else str(value))
        ]

    def _check_together(self) -> None:
        low, high = self.number("min_ttl"), self.number("max_ttl")
        if low is not None and high is not None and low > high:
            raise InvalidOption(f"min_ttl: {units.as_text(low)} is more than max_ttl, {units.as_text(high)}")
        self._check_delays()
        if self.burst is not None and self.rate is None:
            raise InvalidOption(f"burst: {self.burst} does nothing without rate; set both or none")
        if self.is_topic and self.forward_to:
            raise InvalidOption(f"forward_to: {self.queue!r} is a topic: bind {self.forwards_to!r} to it instead")
        if self.forwards_to == self.queue:
            raise InvalidOption(f"forward_to: queue {self.queue!r} cannot forward to itself")
        for reason in REASONS:
            if self.target(reason) == self.queue and reason != "rejected":
                raise InvalidOption(f"dead_letter: queue {self.queue!r} cannot be its own target for reason {reason!r}")
        for name, targets in (("forward_to", {self.forwards_to} - {""}), ("dead_letter", self.targets())):
            for target in targets:
                try:
                    check_queue_name(target)
                except InvalidName as error:
                    raise InvalidOption(f"{name}: {error}") from None

    def _check_delays(self) -> None:
        first, longest = self.number("redelivery_delay"), self.number("redelivery_max_delay")
        if first is None:
            for name in _DELAYS:
                if name in self.non_default:
                    value = f"{self.non_default[name]}{' ms' if OPTIONS[name].kind == 'duration' else ''}"
                    raise InvalidOption(f"{name}: {value} does nothing without redelivery_delay; set both or none")
        elif longest is not None and longest < first:
            raise InvalidOption(f"redelivery_max_delay: {longest} ms is less than redelivery_delay, {first} ms")

    def __getitem__(self, name: str) -> Value | None:
        if name not in OPTIONS:
            raise KeyError(name)
        return self.non_default.get(name, OPTIONS[name].default)

    def __getattr__(self, name: str) -> Value | None:
        if name not in OPTIONS:
            raise AttributeError(name)
        return self.non_default.get(name, OPTIONS[name].default)

    def __iter__(self) -> Iterator[str]:
        return iter(OPTIONS)

    def __len__(self) -> int:
        return len(OPTIONS)


class UpdateResult(NamedTuple):
    """The effect of changed options on one queue.

    `before` and `after` are the options. `expired` counts the ready messages that a shorter `message_ttl` ended.
    `trimmed` counts those that a lower limit pushed out under `drop-head`. They went to their targets, if any.
    A preview also counts the messages that would be `ending` unless a consumer comes within `ends_after_ms`: the TTL or
    the lifetime of their queue is new or shorter, or `on_expire` keeps them no more.
    """

    before: QueueOptions
    after: QueueOptions
    expired: int
    trimmed: int
    ending: int = 0
    ends_after_ms: int | None = None


def written(name: str, stored: object) -> object:
    """A stored value as an argument: durations get a unit."""
    kind = OPTIONS[name].kind if name in OPTIONS else ""
    if kind == "rate":
        return units.written_rate(stored)
    return units.as_text(stored) if kind == "duration" and type(stored) is int else stored


@lru_cache(maxsize=256)
def _read_json(text: str | bytes) -> tuple[Mapping[str, Value], Mapping[str, list[Rule]] | None]:
    """The options and the bindings in a text. Many queues have the same ones, and share the mappings."""
    stored = load_object(text)
    bindings = stored.pop(BINDINGS, None)
    if bindings is not None:
        if not isinstance(bindings, dict):
            raise ValueError(f"expected a mapping of {BINDINGS}, got {format_value(bindings)}")
        bindings = {check_queue_name(name): check_filter(rules, name) for name, rules in bindings.items()}
    return _stored(by_name({name: written(name, value) for name, value in stored.items()})), bindings


def as_flags(arguments: Mapping[str, object], unset: str) -> list[str]:
    """Arguments as flags of the command line. `unset` is the one for an option without a value."""
    flags: list[str] = []
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags += [unset, flag] if value is None else [f"--{flag}", str(value)]
    return flags


def absent_fields(present: Sequence[int | str]) -> list[str]:
    """The fields of options that scripts read and that `present`, the result of `fields`, lacks."""
    names = frozenset(present[::2])
    return [name for name in (*SCRIPT_OPTIONS, "passes_on") if name not in names]


def _stored(named: Mapping[str, object]) -> dict[str, Value]:
    """The stored values of arguments, without `None` and without values that equal their defaults."""
    read = {name: OPTIONS[name].read(name, value) for name, value in named.items() if value is not None}
    return {name: value for name, value in read.items() if value != OPTIONS[name].default}


def by_name(arguments: Mapping[str, object]) -> dict[str, object]:
    """The arguments by names of options, with underscores. Raises `InvalidOption`."""
    if not isinstance(arguments, Mapping):
        raise InvalidOption(f"options: expected a mapping of options, got {format_value(arguments)}")
    named: dict[str, object] = {}
    for written, value in arguments.items():
        option = _option(written)
        if option.name in named:
            raise InvalidOption(f"{option.name}: given twice, with a hyphen and with an underscore")
        named[option.name] = value
    return named


def _option(name: object) -> Option:
    text = plain_text(name)
    if text is None or len(text) > _LONGEST_NAME:
        raise InvalidOption(f"options: expected the name of an option, got {format_value(name)}")
    word = text.replace("-", "_")
    option = OPTIONS.get(word)
    if option is None:
        hint = f"; {NO_OPTIONS[word]}" if word in NO_OPTIONS else did_you_mean(OTHER_NAMES.get(word, word), OPTIONS)
        raise InvalidOption(f"{text if text.isprintable() else format_value(text)}: no such queue option{hint}")
    return option
