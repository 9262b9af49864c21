"""Policies: options for all queues whose names match a pattern. Pure: no module here talks to Redis."""

from rqttl.policies.explanation import Explanation, TtlResolution, TtlStep
from rqttl.policies.merging import Contender, Explained, Resolution
from rqttl.policies.policy import Policy
from rqttl.policies.policy_set import PolicySet

__all__ = ["Contender", "Explained", "Explanation", "Policy", "PolicySet", "Resolution", "TtlResolution", "TtlStep"]
