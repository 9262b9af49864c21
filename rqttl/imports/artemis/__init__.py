"""The broker.xml of Apache ActiveMQ Artemis, read as queues and policies.

An `address-setting` becomes a policy with syntax `wildcard`: matching and merging are those of Artemis. An anycast
queue becomes a queue. Each other element is noted, with the reason why it is left out.
"""

from rqttl.imports.artemis.broker import read_broker

__all__ = ["read_broker"]
