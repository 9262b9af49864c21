"""Policies: options for all queues whose names match a pattern. Pure: no module here talks to Redis."""

from rqttl.policies.explanation import Contender, Explained, Explanation, TtlResolution, TtlStep
from rqttl.policies.merging import PolicySet, Resolution
from rqttl.policies.policy import Policy

__all__ = ["Contender", "Explained", "Explanation", "Policy", "PolicySet", "Resolution", "TtlResolution", "TtlStep"]
