"""The queues of the model with their options: declared ones, those in force, and the policies between them."""

from __future__ import annotations

from collections.abc import Sequence

from rqttl import Policy
from rqttl.types import Declared
from tests.model.queues import ModelQueue, Options, consistent
from tests.unit.policies import reference


class Declarations:
    """All queues, and every set of policies that there ever was. Every method is one script call."""

    def __init__(self) -> None:
        self.queues: dict[str, ModelQueue] = {}
        #: Of queues that were deleted, the last ones with a loss: the highest place in them, and what they had trimmed.
        self.gone: dict[str, tuple[bytes, bytes]] = {}
        #: The set of policies of each version.
        self.policies: list[tuple[Policy, ...]] = [()]

    @property
    def version(self) -> int:
        """The version of the policies that are stored now."""
        return len(self.policies) - 1

    def in_force(self, name: str, declared: Options, version: int | None = None) -> Options:
        """The options that follow from declared ones and from the policies of a version, or from those of now."""
        policies = self.policies[-1 if version is None else version]
        return {**reference.in_force(name, declared, policies)}  # type: ignore[arg-type]  # no declared value is None

    def outdated(self) -> set[str]:
        """The queues whose options in force are not those that follow now."""
        return {name for name, q in self.queues.items() if q.options != self.in_force(name, q.declared)}

    def found(self, name: str, now: int) -> ModelQueue:
        """The queue, made if need be: its places lie beyond those that a deleted queue of this name has lost now."""
        if name not in self.queues:
            q = self.queues[name] = ModelQueue(name)
            highest = max(self.gone.get(name, (b"", b"")))
            if highest >= b"%013d-" % now:
                q.last = (int(highest[:13]), int(highest[14:]))
        return self.queues[name]

    def declare(self, name: str, declared: Options, now: int, version: int) -> Declared:
        """Declare a queue that is new, that nobody has declared, or that has the same declared options."""
        made: Declared = "adopted" if name in self.queues else "created"
        q = self.found(name, now)
        if q.adopted:
            assert q.declared == declared
            return "existing"
        self._declared(q, declared, version)
        return made

    def update(self, name: str, changes: Options, version: int) -> None:
        """Declare other options that fit together."""
        q = self.queues[name]
        declared = {option: value for option, value in {**q.declared, **changes}.items() if value is not None}
        assert consistent(name, declared)
        self._declared(q, declared, version)

    def _declared(self, q: ModelQueue, declared: Options, version: int) -> None:
        q.declared, q.options = declared, self.in_force(q.name, declared, version)
        q.adopted, q.policies, q.may_exceed = True, version, True

    def apply_policies(self, name: str, version: int) -> None:
        """Put the options in force that follow from the policies of a version. Older policies never come back."""
        q = self.queues[name]
        assert version >= q.policies, f"{name}: policies {version} in the place of {q.policies}"
        options = self.in_force(name, q.declared, version)
        if options != q.options:
            q.options, q.may_exceed = options, True
        q.policies = version

    def change_policies(self, stored: Sequence[Policy], removed: Sequence[Policy]) -> None:
        """Make the next version of the set of policies."""
        touched = {(policy.operator, policy.name) for policy in (*stored, *removed)}
        kept = [policy for policy in self.policies[-1] if (policy.operator, policy.name) not in touched]
        self.policies.append((*kept, *stored))
