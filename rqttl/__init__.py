"""rqttl: queues on Redis whose messages live and die by their TTL.

Public is what is listed in `__all__`. Everything else may change in any release.
"""

from rqttl.broker import Broker, connect
from rqttl.consumer import Consumer
from rqttl.delivery import Delivery
from rqttl.errors import (
    AlreadySettled,
    ContractError,
    EmbeddedUnavailable,
    InvalidDuration,
    InvalidInput,
    InvalidName,
    InvalidOption,
    LeaseLost,
    MessageTooLarge,
    OutcomeUnknown,
    QueueFull,
    QueueInUse,
    QueueMismatch,
    QueueNotFound,
    RqttlError,
)
from rqttl.options import QueueOptions
from rqttl.queue import Queue
from rqttl.types import Death, Message, Peeked, QueueStats, Receipt, Swept

__version__ = "0.1.0"

__all__ = [
    "AlreadySettled",
    "Broker",
    "Consumer",
    "ContractError",
    "Death",
    "Delivery",
    "EmbeddedUnavailable",
    "InvalidDuration",
    "InvalidInput",
    "InvalidName",
    "InvalidOption",
    "LeaseLost",
    "Message",
    "MessageTooLarge",
    "OutcomeUnknown",
    "Peeked",
    "Queue",
    "QueueFull",
    "QueueInUse",
    "QueueMismatch",
    "QueueNotFound",
    "QueueOptions",
    "QueueStats",
    "Receipt",
    "RqttlError",
    "Swept",
    "connect",
]
