"""The options in force of one queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from rqttl.options import OPTIONS, QueueOptions
from rqttl.policies.explaining import Explained, explain
from rqttl.policies.merging import Merged, Ranked, declared_values, merge
from rqttl.policies.policy import Policy


@dataclass(frozen=True)
class Resolution:
    """The declared options of a queue, and the policies that match its name, each kind in its order.

    `templates` are all policies with templates. `options` and `explained` are computed when they are first used.
    """

    declared: QueueOptions
    policies: Ranked = Ranked()  # noqa: RUF009  # it never changes
    operator_policies: Ranked = Ranked()  # noqa: RUF009
    templates: tuple[Policy, ...] = ()

    @cached_property
    def options(self) -> QueueOptions:
        """The options in force. If no policy changes an option, this is the object of the declared options."""
        if not self.policies and not self.operator_policies:
            return self.declared
        values = {name: value for name, value in self._merged.values().items() if value != OPTIONS[name].default}
        return (
            self.declared
            if values == declared_values(self.declared)
            else QueueOptions(self.declared.queue, dict(sorted(values.items())))
        )

    @cached_property
    def explained(self) -> Mapping[str, Explained]:
        """Every option in force, by name."""
        return explain(self.declared, self.policies, self.operator_policies, self._merged)

    @cached_property
    def _merged(self) -> Merged:
        return merge(self.declared, self.policies, self.operator_policies, self.templates)
