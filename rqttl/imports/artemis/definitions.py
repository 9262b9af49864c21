"""The definition of the policy that an `address-setting` becomes, and a verdict on each of its values.

Artemis merges settings one by one, as rqttl merges options. Where several settings make one option, such as
`address-full-policy` with the sizes, the definition takes the missing ones from the vaguer matches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from rqttl.errors import InvalidInput
from rqttl.imports.artemis.address_setting import AddressSetting
from rqttl.imports.artemis.values import duration_text
from rqttl.imports.report import Kind
from rqttl.options import OPTIONS
from rqttl.policies.policy import NONE

#: The default of `max-delivery-attempts`.
ATTEMPTS = 10
#: The default of `max-redelivery-delay` as a multiple of `redelivery-delay`.
LONGEST_PAUSES = 10
_FACTOR = "redelivery-delay-multiplier"


class Verdict(NamedTuple):
    """The treatment of one setting."""

    kind: Kind
    text: str


@dataclass
class Definition:
    """The options of a policy, in kebab-case, and a verdict for each setting of the element."""

    options: dict[str, object] = field(default_factory=dict)
    verdicts: dict[str, Verdict] = field(default_factory=dict)

    def put(self, setting: str, options: Mapping[str, object], text: str = "", kind: Kind | None = None) -> None:
        """Record options and the verdict on a setting. Without a text the setting is taken as it is."""
        self.options.update(options)
        became = ", ".join(f"{name}: {_as_text(value)}" for name, value in options.items())
        full = "; ".join(part for part in (became, text) if part)
        self.verdicts[setting] = Verdict(kind or ("translated" if text else "taken"), full)

    def leave_out(self, setting: str, reason: str) -> None:
        """Record the reason for a setting without a counterpart."""
        self.verdicts[setting] = Verdict("left out", reason)


class Targets(NamedTuple):
    """The settings and options of one kind of target, and the default prefix."""

    address: str
    create: str
    prefix: str
    suffix: str
    options: tuple[str, ...]
    default_prefix: str


EXPIRY = Targets(
    "expiry-address",
    "auto-create-expiry-resources",
    "expiry-queue-prefix",
    "expiry-queue-suffix",
    ("dead-letter-expired",),
    "EXP.",
)
DEAD_LETTERS = Targets(
    "dead-letter-address",
    "auto-create-dead-letter-resources",
    "dead-letter-queue-prefix",
    "dead-letter-queue-suffix",
    ("dead-letter-delivery-limit", "dead-letter-rejected"),
    "DLQ.",
)

#: Returns the queue of an address and a remark on it.
QueueOf = Callable[[str], tuple[str, str]]


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value) if value != "" else "''"


def expiry_delays(setting: AddressSetting, made: Definition, *, is_target: bool) -> None:
    """Translate `no-expiry`, `expiry-delay`, `min-expiry-delay` and `max-expiry-delay`."""
    own = setting.own
    if "no-expiry" in own:
        made.put("no-expiry", {"never-expire": own["no-expiry"]})
    if "expiry-delay" in own:
        _expiry_delay(int(own["expiry-delay"]), made, is_target=is_target)
    for name, option in (("min-expiry-delay", "min-ttl"), ("max-expiry-delay", "max-ttl")):
        delay = int(own.get(name, -1))
        if delay < -1:
            made.leave_out(name, f"Artemis would let messages expire at once; -1 turns {name} off")
        elif name in own:
            made.put(name, {option: NONE if delay < 0 else duration_text(delay)})
    low, high = int(own.get("min-expiry-delay", -1)), int(own.get("max-expiry-delay", -1))
    if low > high >= 0:
        text = "the minimum is above the maximum, so the maximum counts; Artemis lets messages between them live longer"
        made.put("min-expiry-delay", {"min-ttl": duration_text(high)}, text)


def _expiry_delay(delay: int, made: Definition, *, is_target: bool) -> None:
    name = "expiry-delay"
    if delay < 0:
        made.put(name, {"default-ttl": NONE} | ({"message-ttl": NONE} if is_target else {}))
    elif is_target:
        text = "this address is a target of expired or dead messages: message-ttl counts from the arrival of a letter"
        made.put(name, {"message-ttl": duration_text(delay)}, text)
    else:
        made.put(name, {"default-ttl": duration_text(delay)}, "it acts on messages that are sent, not on dead letters")


def attempts(setting: AddressSetting, made: Definition) -> None:
    """Translate `max-delivery-attempts`: 0 and less mean no limit. Without one, Artemis has a limit of 10."""
    name = "max-delivery-attempts"
    if setting.has(name):
        most = int(setting.own[name])
        made.put(name, {"max-deliveries": most if most > 0 else NONE})
    elif setting.pattern.text == "#":
        made.put(name, {"max-deliveries": ATTEMPTS}, "it is not set, and this is the default of Artemis")


def redelivery(setting: AddressSetting, made: Definition) -> None:
    """Translate the pause before a redelivery, its multiplier, its limit and its random part."""
    own = setting.own
    delay, longest = int(setting.number("redelivery-delay", 0)), setting.inherited("max-redelivery-delay")
    factor = setting.number(_FACTOR, 1)
    if "redelivery-delay" in own:
        capped = delay if longest is None or int(longest) <= 0 else min(delay, int(longest))
        text = "" if capped == delay else "max-redelivery-delay is shorter, and limits each pause"
        made.put("redelivery-delay", {"redelivery-delay": duration_text(capped) if capped > 0 else NONE}, text)
    if _FACTOR in own and factor < 1:
        made.leave_out(
            "redelivery-delay-multiplier", "the least multiplier of rqttl is 1: pauses do not become shorter"
        )
    elif _FACTOR in own:
        made.put(_FACTOR, {"redelivery-multiplier": _number(factor)})
    if "max-redelivery-delay" in own and int(own["max-redelivery-delay"]) <= 0:
        made.leave_out("max-redelivery-delay", "Artemis would drop all pauses; leave out redelivery-delay for that")
    elif "max-redelivery-delay" in own:
        made.put("max-redelivery-delay", {"redelivery-max-delay": duration_text(int(own["max-redelivery-delay"]))})
    elif (
        longest is None and delay > 0 and factor > 1 and setting.has("redelivery-delay", "redelivery-delay-multiplier")
    ):
        text = f"it is not set, and Artemis takes {LONGEST_PAUSES} times redelivery-delay"
        made.put("max-redelivery-delay", {"redelivery-max-delay": duration_text(delay * LONGEST_PAUSES)}, text)
    _jitter(setting, made)


def _jitter(setting: AddressSetting, made: Definition) -> None:
    name = "redelivery-collision-avoidance-factor"
    if setting.has(name):
        factor = float(setting.own[name])
        text = "" if factor == 0 else "chance shortens a pause by up to this part; Artemis also lengthens it"
        made.put(name, {"redelivery-jitter": _number(factor)}, text)


def _number(value: float) -> int | float:
    return int(value) if value == int(value) else value


def target(setting: AddressSetting, made: Definition, kind: Targets, queue_of: QueueOf) -> None:
    """Translate the address of expired or dead messages, and the automatic creation of its resources."""
    own = [name for name in kind[:4] if setting.has(name)]
    if not own:
        return
    address, creates = setting.text(kind.address), bool(setting.inherited(kind.create))
    if not address:
        _no_target(setting, made, kind)
        return
    text = remark = ""
    try:
        if creates:
            prefix, suffix = setting.text(kind.prefix, kind.default_prefix), setting.text(kind.suffix)
            text = f"{prefix}{{queue}}{suffix}"
            remark = "each queue gets its own target, made when it is first needed"
        else:
            text, remark = queue_of(address)
        for option in kind.options:
            name = option.replace("-", "_")
            OPTIONS[name].read(name, text)
    except InvalidInput as error:
        for name in own:
            made.leave_out(name, str(error))
        return
    for name in own:
        if name in (kind.prefix, kind.suffix) and not creates:
            made.leave_out(name, f"it acts with {kind.create} only, and that is off here")
        else:
            made.put(name, dict.fromkeys(kind.options, text), remark)


def _no_target(setting: AddressSetting, made: Definition, kind: Targets) -> None:
    if setting.has(kind.address):
        made.put(kind.address, dict.fromkeys(kind.options, NONE), "an empty address: the messages are dropped")
    for name in kind[1:4]:
        if setting.has(name):
            made.leave_out(name, f"it acts with {kind.address} only, and none is set here")


SIZES = {"max-length-bytes": "max-size-bytes", "max-length": "max-size-messages"}
_REFUSED = {
    "FAIL": "an enqueue into a full queue raises `QueueFull`",
    "BLOCK": "an enqueue into a full queue raises `QueueFull`; Artemis lets the sender wait",
    "DROP": "an enqueue into a full queue raises `QueueFull`; Artemis drops the message silently",
}


def limits(setting: AddressSetting, made: Definition) -> None:
    """Translate the sizes with `address-full-policy`, and `default-ring-size`."""
    own, ring = setting.own, int(setting.number("default-ring-size", -1))
    policy = setting.text("address-full-policy", "PAGE")
    if not setting.has("address-full-policy", "default-ring-size", *SIZES.values()):
        return
    for option, name in SIZES.items():
        size = setting.inherited(name)
        limited = size is not None and int(size) >= 0 and policy in _REFUSED and ring < 0
        if size is not None:
            made.options[option] = int(size) if limited else NONE
        if name in own:
            _size(made, name, option, int(own[name]), policy if ring < 0 else "ring")
    if "default-ring-size" in own:
        text = "a full queue drops its oldest message" if ring >= 0 else ""
        made.put("default-ring-size", {"max-length": ring, "overflow": "drop-head"} if ring >= 0 else {}, text)
    elif ring >= 0:
        made.options |= {"max-length": ring, "overflow": "drop-head"}
    if "default-ring-size" in own and ring < 0:
        made.options.setdefault("max-length", NONE)
        made.verdicts["default-ring-size"] = Verdict("taken", f"max-length: {made.options['max-length']}")
    if ring < 0:
        made.options["overflow"] = "reject-publish" if policy in _REFUSED else NONE
    if "address-full-policy" in own:
        _full(made, policy, ring)


def _size(made: Definition, name: str, option: str, size: int, policy: str) -> None:
    if size < 0:
        made.put(name, {option: NONE}, kind="taken")
    elif policy == "ring":
        made.leave_out(name, "default-ring-size limits these queues, and a queue has one rule for its limits")
    elif policy == "PAGE":
        made.leave_out(name, "Artemis pages further messages to disk; rqttl has no pages, so there is no limit here")
    else:
        text = "the limit is that of one queue" + (" and counts bodies only" if option == "max-length-bytes" else "")
        made.put(name, {option: size}, text)


def _full(made: Definition, policy: str, ring: int) -> None:
    if ring >= 0:
        made.leave_out("address-full-policy", "default-ring-size limits these queues: they drop the oldest message")
    elif policy == "PAGE":
        text = "rqttl has no pages: Redis holds all messages in memory, without a limit"
        made.put("address-full-policy", {"overflow": NONE}, text)
    else:
        made.put("address-full-policy", {"overflow": "reject-publish"}, _REFUSED[policy])
