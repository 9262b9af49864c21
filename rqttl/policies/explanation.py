"""The answer of `explain`: every option in force of a queue with its source, and the deadline of a message."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rqttl.options import QueueOptions
from rqttl.policies.deadline import TtlResolution, resolve_ttl
from rqttl.policies.explaining import Explained
from rqttl.policies.policy import Policy
from rqttl.policies.resolution import Resolution


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
