"""Policies: options for all queues whose names match a pattern. Pure: no module here talks to Redis."""

from rqttl.policies.explanation import Contender, Explained, Explanation, TtlResolution, TtlStep
from rqttl.policies.policy import Policy, PolicySet, Resolution

__all__ = ["Contender", "Explained", "Explanation", "Policy", "PolicySet", "Resolution", "TtlResolution", "TtlStep"]
