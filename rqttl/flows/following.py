"""The options in force that follow for a queue from its record and from a set of policies. No steps here."""

from __future__ import annotations

from dataclasses import dataclass

from rqttl.flows import targets
from rqttl.options import QueueOptions, Value
from rqttl.policies import PolicySet
from rqttl.policies.damage import kept
from rqttl.protocol.commands import Options, QueueConfig

#: The options whose change may let messages die at once.
_DEADLY = ("message_ttl", "max_length", "max_length_bytes", "overflow")


@dataclass(frozen=True, slots=True)
class Change:
    """A queue that is not up to date: its options in force, or only the version of the policies that they name."""

    config: QueueConfig
    options: Options

    @property
    def differences(self) -> dict[str, tuple[Value | None, Value | None]]:
        """The differing options, each with both values."""
        before, after = self.config.options, self.options.in_force
        return {} if before == after else before.differences(after)

    @property
    def given_up(self) -> set[str]:
        """The queues to which dead letters do not go any more."""
        return targets.given_up(self.config.options, self.options.in_force)

    @property
    def may_kill(self) -> bool:
        """True if messages may die at once by the change."""
        return not self.differences.keys().isdisjoint(_DEADLY)


def following(policies: PolicySet, declared: QueueOptions, config: QueueConfig | None = None) -> Options:
    """The options in force that follow for a queue, with the version that its record names then.

    `config` is the record of an existing queue. If a policy that may match cannot be read, a newer rqttl may have
    applied it. So its options keep their values there, and the record names version 0: a process that can read all
    policies brings the queue up to date later.
    """
    resolved = policies.resolve(declared).options
    damages = policies.damages(declared.queue)
    if not damages:
        return Options(declared, resolved, policies.version)
    if config is not None:
        resolved = kept(resolved, declared, config.declared, config.options, damages)
    return Options(declared, resolved, 0)


def needed(config: QueueConfig, policies: PolicySet) -> Change | None:
    """The change that brings a queue up to date; `None` if it is, or if this process cannot bring it further."""
    options = following(policies, config.declared, config)
    if options.policies == policies.version:
        is_done = options.in_force == config.options and config.policies == policies.version
    else:  # a process that can read all policies may have brought the queue to this version
        is_done = options.in_force == config.options or config.policies == policies.version
    return None if is_done else Change(config, options)
