"""Policies: options for all queues whose names match a pattern. Pure: no module here talks to Redis."""

from rqttl.policies.deadline import TtlResolution, TtlStep
from rqttl.policies.explaining import Contender, Explained
from rqttl.policies.explanation import Explanation
from rqttl.policies.policy import Policy
from rqttl.policies.policy_set import PolicySet
from rqttl.policies.resolution import Resolution

__all__ = ["Contender", "Explained", "Explanation", "Policy", "PolicySet", "Resolution", "TtlResolution", "TtlStep"]
