"""Processes declare, fill and delete queues, and let messages die, while others change the policies of these queues.

`python -m tests.process.test_policy_race <url> <role> <seed> <seconds>`, such a process, begins at a line of input, and
at its end prints its numbers of calls as JSON.
"""

import json
import logging
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

import rqttl
from rqttl.store.driver import driver_of
from tests.drivers import redis_of
from tests.in_force import problems
from tests.process.consuming import ROOT

#: Calls that each process makes at least, however busy the machine is.
FEWEST = 40
#: `make test-policies` races for longer.
RACE_SECONDS = float(os.environ.get("RQTTL_TEST_RACE_SECONDS", "6"))


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
        operator, name = self.random.choice((False, True)), self.random.choice(NAMES)
        if self.random.random() < 0.3:
            with suppress(rqttl.PolicyNotFound):
                self.broker.delete_policy(name, operator=operator)
                self.told["policies deleted"] += 1
            return
        pattern = self.random.choice(PATTERNS + OF_LETTERS)
        definition = dict(self.random.choice(DEFINED) | self.random.choice(DEFINED))
        if pattern in OF_LETTERS or pattern == "*.#":
            definition = {option: value for option, value in definition.items() if option in QUIET} or {"lease": "3m"}
        result = self.broker.set_policy(
            name, pattern, definition, priority=self.random.choice((0, 0, 1)), operator=operator
        )
        self.told["policies set"] += 1
        self.told["queues changed"] += len(result.changed)


def race(url: str, roles: Sequence[str], seconds: float) -> list[Any]:
    """Let processes race; returns what each of them printed. None of them may log a warning."""
    pipe = subprocess.PIPE
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.process.test_policy_race", url, role, str(seed), str(seconds)],
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


@pytest.mark.slow
def test_after_a_race_of_policies_with_declarations_and_deaths_nothing_is_left_to_reconcile(
    redis_url: str, broker: rqttl.Broker
) -> None:
    calls: Counter[str] = Counter()
    for told in race(redis_url, ("work", "work", "work", "work", "change", "change"), RACE_SECONDS):
        calls.update(told)

    print(dict(calls))  # noqa: T201  # the figures of `make test-policies`
    assert min(calls[name] for name in ("created", "existing", "deleted", "updated", "rejected")) > 0
    assert min(calls[name] for name in ("policies set", "policies deleted", "queues changed")) > 0
    first, second = broker.reconcile(), broker.reconcile()
    assert first.changed == {}
    assert second.changed == {}
    assert any(name.startswith("EXP.") for name in broker.queues())
    assert problems(broker) == []
    # every name leads to a queue, too: each call returned
    keyspace = driver_of(broker).keyspace
    assert all(redis_of(broker).exists(keyspace.key(name, "meta")) for name in broker.queues())


def main(url: str, role: str, seed: str, seconds: str) -> None:
    logging.basicConfig(level=logging.WARNING)  # work that was not followed up is a warning in the log
    with rqttl.connect(url) as broker:
        racer = PolicyRacer(broker, int(seed))
        act: Callable[[], None] = getattr(racer, role)
        sys.stdin.readline()
        ends, acts = time.monotonic() + float(seconds), 0
        while time.monotonic() < ends or acts < FEWEST:
            act()
            acts += 1
    sys.stdout.write(json.dumps(racer.told))


if __name__ == "__main__":
    main(*sys.argv[1:])
