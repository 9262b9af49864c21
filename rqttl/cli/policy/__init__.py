"""`rqttl policy` and `rqttl operator-policy`: options for all queues whose names match a pattern."""

from rqttl.cli.policy.commands import operator_policy, policy

__all__ = ["operator_policy", "policy"]
