"""Halves of changes: the state that a client leaves that dies between two steps."""

from rqttl import Broker, Policy
from rqttl.flows import policies, steps
from rqttl.protocol import commands
from rqttl.store.driver import driver_of


def store_policy(broker: Broker, policy: Policy) -> None:
    """Store a policy, as `set_policy` does, and do not put its options in force."""
    driver = driver_of(broker)
    version = driver.perform(policies.current(driver.keyspace)).version
    command = commands.change_policies(driver.keyspace, version, {policy.field: policy.as_json()})
    driver.perform(steps.run(command))
