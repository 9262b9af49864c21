"""One of the processes that race with policies: `python -m tests.process.policy_worker <url> <role> <seed> <seconds>`.

It begins at a line of input. At its end it prints its numbers of calls as JSON.
"""

from __future__ import annotations

import json
import logging
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import rqttl

#: Calls that each process makes at least, however busy the machine is.
FEWEST = 40
#: More queues than one round trip of a change reads, and more bytes than Redis reads from a socket at once.
QUEUES = tuple(f"{kind}.{number}" for kind in ("orders", "jobs", "a.b") for number in range(90))
DECLARED: tuple[dict[str, Any], ...] = (
    {},
    {"max_length": 4},
    {"message_ttl": "1h"},
    {"dead_letter": "graves"},
    {"dead_letter_rejected": "{queue}.no"},
    {"max_deliveries": 2, "redelivery_delay": "1ms"},
    {"overflow": "reject-publish", "max_length": 3},
)
#: Options of policies, all together or apart. Messages die at once by the short TTLs and the limits.
DEFINED: tuple[dict[str, object], ...] = (
    {"message_ttl": "2h"},
    {"message_ttl": 0},
    {"default_ttl": "1ms"},
    {"max_length": 2},
    {"max_length": None},
    {"overflow": "reject-publish-dlx"},
    {"dead_letter": "EXP.{queue}"},
    {"dead_letter_expired": "EXP.{queue}"},
    {"dead_letter_maxlen": "{queue}.full"},
    {"dead_letter": "graves"},
    {"dead_letter": None},
    {"max_deliveries": 3},
    {"redelivery_delay": "1s", "redelivery_max_delay": "1m"},
    {"lease": "3m"},
    {"expires": "5h"},
)
#: Letters live long, so that no chain of expiry queues grows: the patterns of queues that letters make.
NAMES, PATTERNS, OF_LETTERS = "pqrstu", ("orders.*", "*.#", "jobs.*", "a.#", "a.b.7", "*.5"), ("EXP.#", "graves")
QUIET = {"max_length", "max_deliveries", "lease", "redelivery_delay", "expires"}


class Worker:
    def __init__(self, broker: rqttl.Broker, seed: int) -> None:
        self.broker = broker
        self.random = random.Random(seed)
        self.calls: Counter[str] = Counter()

    def work(self) -> None:
        """Declare a queue, and let messages come and die in it; delete or change it at times."""
        name = self.random.choice(QUEUES)
        try:
            queue = self.broker.declare_queue(name, **self.random.choice(DECLARED))
            self.calls[str(queue.declared)] += 1
        except rqttl.QueueMismatch:
            queue = self.broker.queue(name)
            self.calls["mismatch"] += 1
        with suppress(rqttl.QueueNotFound):  # another process deleted it
            self.random.choice((self.fill, self.fill, self.fill, self.reject, self.delete, self.update))(queue)

    def fill(self, queue: rqttl.Queue) -> None:
        ttl = self.random.choice((None, "0", "1ms"))
        queue.enqueue_many([rqttl.Message(b"x", ttl=ttl) for _ in range(self.random.randint(1, 5))])
        queue.sweep()

    def reject(self, queue: rqttl.Queue) -> None:
        with suppress(rqttl.LeaseLost, rqttl.QueueFull):
            queue.enqueue(b"x")
            for one in queue.receive_many(5):
                one.reject("no")
                self.calls["rejected"] += 1

    def delete(self, queue: rqttl.Queue) -> None:
        queue.delete()
        self.calls["deleted"] += 1

    def update(self, queue: rqttl.Queue) -> None:
        queue.update(**self.random.choice(DECLARED[1:]))
        self.calls["updated"] += 1

    def change(self) -> None:
        """Set or delete a policy or an operator policy."""
        kind, name = self.random.choice(("", "operator_")), self.random.choice(NAMES)
        if self.random.random() < 0.3:
            with suppress(rqttl.PolicyNotFound):
                getattr(self.broker, f"delete_{kind}policy")(name)
                self.calls["policies deleted"] += 1
            return
        pattern = self.random.choice(PATTERNS + OF_LETTERS)
        definition = dict(self.random.choice(DEFINED) | self.random.choice(DEFINED))
        if pattern in OF_LETTERS or pattern == "*.#":
            definition = {option: value for option, value in definition.items() if option in QUIET} or {"lease": "3m"}
        set_it = getattr(self.broker, f"set_{kind}policy")
        result = set_it(name, pattern, definition, priority=self.random.choice((0, 0, 1)))
        assert not result.damaged
        self.calls["policies set"] += 1
        self.calls["queues changed"] += len(result.changed)


def main(url: str, role: str, seed: str, seconds: str) -> None:
    logging.basicConfig(level=logging.WARNING)  # work that was not followed up is a warning in the log
    with rqttl.connect(url) as broker:
        worker = Worker(broker, int(seed))
        act: Callable[[], None] = getattr(worker, role)
        sys.stdin.readline()
        ends, acts = time.monotonic() + float(seconds), 0
        while time.monotonic() < ends or acts < FEWEST:
            act()
            acts += 1
    sys.stdout.write(json.dumps({role: acts, **worker.calls}))


if __name__ == "__main__":
    main(*sys.argv[1:])
