"""Processes that race for a queue, or with changes of policies.

`python -m tests.process.racers <url> <role> <seed> <seconds>` begins at a line of input, and at its end prints as JSON
what it has done, or what became of each message as far as it knows.
"""

from __future__ import annotations

import json
import logging
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import rqttl

ROOT = Path(__file__).resolve().parents[2]
QUEUE = "race"
#: Calls that each process makes at least, however busy the machine is: of messages, and with policies.
FEWEST, FEWEST_WITH_POLICIES = 200, 40


def race(url: str, roles: Sequence[str], seconds: float) -> list[Any]:
    """Let processes race; returns what each of them printed. None of them may log a warning."""
    pipe = subprocess.PIPE
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.process.racers", url, role, str(seed), str(seconds)],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
            cwd=ROOT,
        )
        for seed, role in enumerate(roles)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    told = []
    for process in processes:
        out, log = process.communicate()
        assert (process.returncode, log) == (0, "")
        told.append(json.loads(out))
    return told


class Racer:
    """Sends, takes and settles the messages of one queue with limits."""

    def __init__(self, broker: rqttl.Broker, seed: int) -> None:
        self.queue = broker.queue(QUEUE)
        self.name = f"p{seed}"
        self.random = random.Random(seed)
        self.told: dict[str, list[str]] = {"sent": [], "refused": [], "acked": [], "rejected": []}

    def message(self) -> rqttl.Message:
        id = f"{self.name}-{len(self.told['sent']) + len(self.told['refused'])}"
        self.told["sent"].append(id)
        ttl = self.random.choice((None, None, None, "0", "5ms", "50ms", "400ms"))
        return rqttl.Message(id.encode().ljust(self.random.choice((20, 50, 120)), b"."), ttl=ttl, id=id)

    def produce(self) -> None:
        """Send one, or a batch."""
        messages = [self.message() for _ in range(self.random.choice((1, 1, 2, 5, 12)))]
        for message, outcome in zip(messages, self.queue.enqueue_many(messages), strict=True):
            if isinstance(outcome, rqttl.QueueFull):
                assert message.id is not None
                self.told["sent"].remove(message.id)
                self.told["refused"].append(message.id)
            else:
                assert outcome.id == message.id

    def consume(self) -> None:
        """Take some, also by waiting for them, and settle them in one way or another, or not at all."""
        if self.random.random() < 0.2:
            found = self.queue.receive(auto_ack=True)
            self.told["acked"] += [found.id] if found else []
            return
        wait = self.random.choice((None, "10ms"))
        batch = self.queue.receive_many(self.random.randint(1, 8), wait=wait, lease="60ms")
        if batch and self.random.random() < 0.3:
            self.settle(lambda: self.queue.ack_many(batch))
        else:
            for one in batch:
                self.settle_one(one)
        self.told["acked"] += [one.id for one in batch if one.settled == "ack"]
        self.told["rejected"] += [one.id for one in batch if one.settled == "reject"]

    def settle_one(self, one: rqttl.Delivery) -> None:
        how = self.random.choice(("ack", "ack", "ack", "nack", "nack", "later", "reject", "renew", "lapse"))
        ways: dict[str, Callable[[], None]] = {
            "ack": one.ack,
            "nack": one.nack,
            "later": lambda: one.nack(delay="30ms"),
            "reject": lambda: one.reject("no"),
            "renew": lambda: one.renew("90ms"),
        }
        if how in ways:
            self.settle(ways[how])
        if how == "renew" and one.settled is None:
            self.settle(one.ack)

    @staticmethod
    def settle(call: Callable[[], None]) -> None:
        with suppress(rqttl.LeaseLost):  # another consumer has it, or it is dead
            call()

    def both(self) -> None:
        self.random.choice((self.produce, self.consume))()

    def sweep(self) -> None:
        self.queue.sweep()


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


class PolicyRacer:
    """Declares, fills, changes and deletes queues, or changes policies of them."""

    def __init__(self, broker: rqttl.Broker, seed: int) -> None:
        self.broker = broker
        self.random = random.Random(seed)
        self.told: Counter[str] = Counter()

    def work(self) -> None:
        """Declare a queue, and let messages come and die in it; delete or change it at times."""
        name = self.random.choice(QUEUES)
        try:
            queue = self.broker.declare_queue(name, **self.random.choice(DECLARED))
            self.told[str(queue.declared)] += 1
        except rqttl.QueueMismatch:
            queue = self.broker.queue(name)
            self.told["mismatch"] += 1
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
                self.told["rejected"] += 1

    def delete(self, queue: rqttl.Queue) -> None:
        queue.delete()
        self.told["deleted"] += 1

    def update(self, queue: rqttl.Queue) -> None:
        queue.update(**self.random.choice(DECLARED[1:]))
        self.told["updated"] += 1

    def change(self) -> None:
        """Set or delete a policy or an operator policy."""
        kind, name = self.random.choice(("", "operator_")), self.random.choice(NAMES)
        if self.random.random() < 0.3:
            with suppress(rqttl.PolicyNotFound):
                getattr(self.broker, f"delete_{kind}policy")(name)
                self.told["policies deleted"] += 1
            return
        pattern = self.random.choice(PATTERNS + OF_LETTERS)
        definition = dict(self.random.choice(DEFINED) | self.random.choice(DEFINED))
        if pattern in OF_LETTERS or pattern == "*.#":
            definition = {option: value for option, value in definition.items() if option in QUIET} or {"lease": "3m"}
        set_it = getattr(self.broker, f"set_{kind}policy")
        result = set_it(name, pattern, definition, priority=self.random.choice((0, 0, 1)))
        assert not result.damaged
        self.told["policies set"] += 1
        self.told["queues changed"] += len(result.changed)


def main(url: str, role: str, seed: str, seconds: str) -> None:
    logging.basicConfig(level=logging.WARNING)  # work that was not followed up is a warning in the log
    with rqttl.connect(url) as broker:
        kind, fewest = (PolicyRacer, FEWEST_WITH_POLICIES) if role in ("work", "change") else (Racer, FEWEST)
        racer: Any = kind(broker, int(seed))
        act: Callable[[], None] = getattr(racer, role)
        sys.stdin.readline()
        ends, acts = time.monotonic() + float(seconds), 0
        while time.monotonic() < ends or acts < fewest:
            act()
            acts += 1
    sys.stdout.write(json.dumps(racer.told))


if __name__ == "__main__":
    main(*sys.argv[1:])
