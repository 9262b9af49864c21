"""Every script call as a value: the script, its keys and arguments, and a flag for repeatable calls. No I/O here.

`QueueConfig` is the record of a queue that a client keeps; the scripts answer `stale` when it is outdated.
"""

from rqttl.protocol.commands.call import BATCH, BATCH_BYTES, READ_BYTES, Command
from rqttl.protocol.commands.joining import Joined
from rqttl.protocol.commands.messages import (
    ABSENT,
    Presence,
    check_size,
    enqueue,
    enqueue_alike,
    enqueue_encoded,
    pack,
    receive,
    redrive,
)
from rqttl.protocol.commands.queues import (
    Options,
    Walk,
    apply_policies,
    change_policies,
    declare,
    delete,
    discard,
    lookup,
    peek,
    preview,
    purge,
    stats,
    sweep,
    touch,
    update,
)
from rqttl.protocol.commands.settle import ack, nack, reject, renew
from rqttl.protocol.contract import Ok, Refused, Reply, Word
from rqttl.protocol.queue_config import QueueConfig

__all__ = [
    "ABSENT",
    "BATCH",
    "BATCH_BYTES",
    "READ_BYTES",
    "Command",
    "Joined",
    "Ok",
    "Options",
    "Presence",
    "QueueConfig",
    "Refused",
    "Reply",
    "Walk",
    "Word",
    "ack",
    "apply_policies",
    "change_policies",
    "check_size",
    "declare",
    "delete",
    "discard",
    "enqueue",
    "enqueue_alike",
    "enqueue_encoded",
    "lookup",
    "nack",
    "pack",
    "peek",
    "preview",
    "purge",
    "receive",
    "redrive",
    "reject",
    "renew",
    "stats",
    "sweep",
    "touch",
    "update",
]
