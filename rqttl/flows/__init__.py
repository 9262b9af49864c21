"""Flows: operations of several steps, as generators that yield each step. No I/O here.

`steps` has the steps and the ways to run a command; each other module has the flows of one subject.
"""

from rqttl.flows import messages, policies, queues, reading, receive, redrive, registry, steps, sweeping

__all__ = ["messages", "policies", "queues", "reading", "receive", "redrive", "registry", "steps", "sweeping"]
