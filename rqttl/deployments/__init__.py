"""Whole deployments: queues, policies and operator policies as a file, and the steps from one state to another.

Nothing here does I/O.
"""

from rqttl.deployments.deployment import Deployment, read_deployment, read_document, write_yaml
from rqttl.deployments.plan import Plan, Step, make_plan

__all__ = ["Deployment", "Plan", "Step", "make_plan", "read_deployment", "read_document", "write_yaml"]
