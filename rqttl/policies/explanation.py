"""The answer of `explain`: every option in force of a queue with its source, and the deadline of a message."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from rqttl.options import QueueOptions
from rqttl.policies.merging import Explained, Resolution
from rqttl.policies.policy import Policy
from rqttl.units import as_text


class TtlStep(NamedTuple):
    """One rule of the resolution, and the TTL after it in ms (`None`: the message never expires).

    `option` is the option that the rule reads, and `text` its effect. The first step has no option: it is the
    TTL that the sender gives.
    """

    option: str | None
    text: str
    ttl: int | None


class TtlResolution(NamedTuple):
    """The TTL that a message gets, in ms, and the steps that lead to it. `None`: the message never expires.

    A message with a TTL of 0 is dead on arrival, unless a consumer waits for it.
    """

    ttl: int | None
    steps: tuple[TtlStep, ...]


def resolve_ttl(options: QueueOptions, ttl: int | None) -> TtlResolution:
    """The TTL of a message that is sent with `ttl` ms, or without one, to a queue with these options in force."""
    steps = [TtlStep(None, "sent without a TTL" if ttl is None else f"sent with a TTL of {as_text(ttl)}", ttl)]
    steps += _own(options, ttl)
    own, retention = steps[-1].ttl, options.number("message_ttl")
    if retention is not None:
        ends = own is None or retention < own
        text = "the message TTL of the queue is lower" if ends else "the message TTL of the queue is higher"
        steps.append(TtlStep("message_ttl", text, retention if ends else own))
    return TtlResolution(steps[-1].ttl, tuple(steps))


def _own(options: QueueOptions, ttl: int | None) -> list[TtlStep]:
    """The steps for the TTL of the message itself."""
    default, low, high = (options.number(name) for name in ("default_ttl", "min_ttl", "max_ttl"))
    if options.never_expire:
        return [TtlStep("never_expire", "the TTL of the message is ignored", None)]
    if default is not None:
        if ttl is None:
            return [TtlStep("default_ttl", "the TTL of a message without one", default)]
        return [TtlStep("default_ttl", "not for a message with a TTL; min_ttl and max_ttl do not act beside it", ttl)]
    if ttl is None:
        name, value = ("max_ttl", high) if high is not None else ("min_ttl", low)
        return [] if value is None else [TtlStep(name, "the TTL of a message without one", value)]
    steps = []
    if low is not None:
        ttl = max(ttl, low)
        steps.append(TtlStep("min_ttl", f"{as_text(low)} is the shortest TTL", ttl))
    if high is not None:
        ttl = min(ttl, high)
        steps.append(TtlStep("max_ttl", f"{as_text(high)} is the longest TTL", ttl))
    return steps


@dataclass(frozen=True)
class Explanation(Mapping[str, Explained]):
    """Every option of a queue by its name: the value in force, its source, and the values that lost.

    `policies` and `operator_policies` are those that match the name of the queue, in their order. `message` explains
    the TTL of a message that is sent with `ttl` ms (`None`: without one). `exists` is true if the declared options of
    an existing queue were read. `outdated` has the options of that queue that its record does not have in force yet,
    each with the value there: `Broker.reconcile` and reapers bring them up to date.
    """

    queue: str
    options: QueueOptions
    policies: tuple[Policy, ...]
    operator_policies: tuple[Policy, ...]
    message: TtlResolution
    explained: Mapping[str, Explained]
    exists: bool
    outdated: Mapping[str, object]

    @classmethod
    def of(cls, resolution: Resolution, ttl: int | None, recorded: QueueOptions | None = None) -> Explanation:
        """Explain a resolution. `recorded` are the options in force of an existing queue, as its record has them."""
        options = resolution.options
        outdated = {} if recorded is None else {name: was for name, (was, _) in recorded.differences(options).items()}
        return cls(
            options.queue,
            options,
            resolution.policies,
            resolution.operator_policies,
            resolve_ttl(options, ttl),
            resolution.explained,
            recorded is not None,
            outdated,
        )

    def __getitem__(self, name: str) -> Explained:
        return self.explained[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.explained)

    def __len__(self) -> int:
        return len(self.explained)
