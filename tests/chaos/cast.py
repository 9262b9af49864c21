"""The queues of a campaign, and which processes work on them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import rqttl


@dataclass(frozen=True)
class Judged:
    """A queue whose messages are all accounted for. `dead` is where its dead letters go."""

    name: str
    options: dict[str, Any]

    @property
    def dead(self) -> str | None:
        """The queue of its dead letters, `None` if they are dropped."""
        target: str | None = self.options.get("dead_letter")
        return target


#: The limit of queues that have one: small, so that it is reached all the time.
LENGTH, BYTES = 40, 4_000
#: The most messages of one queue that are out.
LEASED = 8

QUEUES = (
    Judged("plain", {"dead_letter": "plain.dead", "max_deliveries": 6, "redelivery_delay": "20ms", "lease": "900ms"}),
    Judged("aging", {"dead_letter": "aging.dead", "message_ttl": "300ms", "lease": "700ms"}),
    Judged("window", {"dead_letter": "window.dead", "duplicate_window": "1000d", "lease": "900ms"}),
    Judged("head", {"dead_letter": "head.dead", "max_length": LENGTH, "lease": "500ms"}),
    Judged(
        "full",
        {
            "dead_letter": "full.dead",
            "max_length": LENGTH,
            "max_length_bytes": BYTES,
            "overflow": "reject-publish",
            "lease": "700ms",
        },
    ),
    Judged(
        "dlx", {"dead_letter": "dlx.dead", "max_length": LENGTH, "overflow": "reject-publish-dlx", "lease": "700ms"}
    ),
    # these are moved into `full`, which is in the same slot
    Judged("full/source", {"dead_letter": "full.dead"}),
    Judged("drop", {"lease": "700ms", "max_leased": LEASED}),
    Judged("once", {"dead_letter": "once/dead"}),
    Judged("rated", {"dead_letter": "rated.dead", "lease": "700ms"}),
    # the queues of a topic, and the end of a chain of forwards
    Judged("news/all", {"dead_letter": "news/all/dead", "lease": "700ms"}),
    Judged("news/eu", {"lease": "700ms"}),
    Judged(
        "news/full",
        {"dead_letter": "news/full/dead", "max_length": LENGTH, "overflow": "reject-publish", "lease": "700ms"},
    ),
    Judged("chain/4", {"dead_letter": "chain/4/dead", "lease": "700ms"}),
)

#: A queue of which all messages go on to the next one, up to a judged one.
CHAIN = ("chain", "chain/2", "chain/3", "chain/4")
#: A topic.
TOPIC = "news"
#: Queues from which messages go on: the judged queues that get a copy, with the region of its messages.
PASSED_TO: dict[str, dict[str, str | None]] = {
    TOPIC: {"news/all": None, "news/eu": "eu", "news/full": None},
    CHAIN[0]: {CHAIN[-1]: None},
}
#: The judged queues that get copies, and those of their dead letters.
COPIES = {name: name for bound in PASSED_TO.values() for name in bound}
COPIES |= {str(queue.dead): queue.name for queue in QUEUES if queue.dead and queue.name in COPIES}
#: The queues that messages are sent to.
SENT_TO = (*(queue.name for queue in QUEUES if queue.name not in COPIES), *PASSED_TO)

#: The names of the queues of dead letters. On a cluster only `once` has its own in the same slot.
DEAD = frozenset(queue.dead for queue in QUEUES if queue.dead)
#: The names of all queues whose messages are accounted for.
ACCOUNTED = DEAD.union(queue.name for queue in QUEUES)

#: The policy of all queues, and its option: no message comes near the limits that it gets.
POLICY, POLICED = "largest", "max_message_bytes"

#: The queue whose rate changes, also by a policy of this name, and its rates. At `SLOW` a `FEW` messages leave at most.
RATED, SLOW, FEW = "rated", "1/1h", 3
RATES = (None, SLOW, SLOW, SLOW, "20/1s", "1000/1s")

#: Roles of the processes that always work, each with the number of them.
PROCESSES = {
    "sender": 2,
    "receiver": 2,
    "consumer": 2,
    "runner": 1,
    "worker": 1,
    "hoarder": 1,
    "taker": 1,
    "reaper": 2,
    "redriver": 1,
    "mover": 1,
    "observer": 1,
    "operator": 1,
}


def goals(queue: str, messages: Sequence[rqttl.Message]) -> list[tuple[str, list[rqttl.Message]]]:
    """The judged queues that get these messages, which are sent to `queue`, and those that each one gets."""
    bound = PASSED_TO.get(queue, {queue: None})
    regions = [(message, (message.headers or {}).get("region")) for message in messages]
    found = [(name, [one for one, has in regions if region in (None, has)]) for name, region in bound.items()]
    return [(name, some) for name, some in found if some]


def copy_of(id: str, queue: str) -> str:
    """The name by which the journals know a message in a queue: each copy is one of its own."""
    return f"{id}@{COPIES[queue]}" if queue in COPIES else id


def body_of(id: str, size: int) -> bytes:
    """Return a body of about `size` bytes for a message."""
    text = id.encode() + b" " + b"." * max(0, size - len(id) - 10)
    return text + b"%08x" % crc32(text)


def is_body_of(id: str, body: bytes) -> bool:
    """Return True if it is an unchanged body of this message."""
    text, check = body[:-8], body[-8:]
    return text.partition(b" ")[0] == id.encode() and check == b"%08x" % crc32(text)
