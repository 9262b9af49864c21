"""Flows that compare the parts of a queue and repair them, page by page, so that no call is long.

One script checks each page, so its verdict about a message is exact at that moment, while other clients use the queue.
Only the sum of all bodies needs a queue that does not change. The pages show a change.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from rqttl.flows import Flow, run
from rqttl.protocol.commands import Ok, repair
from rqttl.protocol.keys import HARM, PARTS, Keyspace

#: Parts that hold messages, and parts that only name them.
CONTENTS = tuple(part.name for part in PARTS.values() if part.has_messages)
INDEXES = tuple(HARM)
#: Attempts to count the bodies before a queue is too busy for it.
TRIES = 5
#: Sequences of a page, at most. The script cuts pages of large bodies.
PAGE = 250
#: Sequences of each kind that are kept as examples.
_EXAMPLES = 3


@dataclass
class Audit:
    """The result of looking through a queue.

    `counts` has the number of wrong sequences by kind of damage, in the words of `integrity.check`; for a sequence
    without a message the part that still names it follows (`orphan:leases`). `examples` has some sequences of each
    kind. If `still` is true, nothing changed meanwhile, and `messages`, `ready` and `size` (body bytes of ready
    messages) belong together.
    """

    record: dict[str, str] = field(default_factory=dict)
    text: bytes = b""
    due: int | None = None
    cursor: str = ""
    last: str = ""
    messages: int = 0
    ready: int = 0
    size: int = 0
    still: bool = True
    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)
    repaired: Counter[str] = field(default_factory=Counter)

    def add(self, source: str, page: Ok) -> list[bytes]:
        """Add a page. Returns the wrong sequences that can be repaired."""
        self.still = self.still and self.text in (b"", page.record)
        self.text, self.due = page.record, int(page.due) if page.due else None
        self.cursor, self.last = page.cursor.decode(), page.last.decode()
        if source in CONTENTS:
            self.messages += page.seen
            self.ready += page.ready
            self.size += page.bytes
        faults = page.faults
        wrong = []
        for id, word in zip(faults[::2], map(bytes.decode, faults[1::2]), strict=True):
            kind = f"orphan:{source}" if word == "orphan" else word
            self.counts[kind] += 1
            examples = self.examples.setdefault(kind, [])
            if len(examples) < _EXAMPLES:
                examples.append(id.decode("utf-8", "backslashreplace"))
            if word not in ("foreign", "header"):
                wrong.append(id)
        return wrong

    def close(self) -> None:
        """Read the record as the last page had it."""
        lines = self.text.decode("utf-8", "backslashreplace").split("\n")[:-1]
        self.record = dict(line.partition("=")[::2] for line in lines)


def walk(keyspace: Keyspace, queue: str, sources: tuple[str, ...], *, fix: bool = False) -> Flow[Audit]:
    """Look at all sequences of these parts. With `fix` each page is repaired at once."""
    audit = Audit()
    for source in sources:
        after: bytes = b""
        while True:
            page = yield from run(repair.audit(keyspace, queue, source, after, PAGE))
            wrong = audit.add(source, page)
            if fix and wrong:
                done = yield from run(repair.repair(keyspace, queue, wrong))
                audit.repaired.update(_counts(done))
            after = page.next
            if not after:
                break
    audit.close()
    return audit


def audit(keyspace: Keyspace, queue: str) -> Flow[Audit]:
    """Look at a whole queue. Raises `QueueNotFound`."""
    for _ in range(TRIES):
        result = yield from walk(keyspace, queue, CONTENTS)
        if result.still:
            break
    indexes = yield from walk(keyspace, queue, INDEXES)
    result.counts.update(indexes.counts)
    result.examples.update(indexes.examples)
    return result


def repair_queue(keyspace: Keyspace, queue: str) -> Flow[Counter[str]]:
    """Repair sequences, the ends of the log, and then `bytes` if the queue does not change meanwhile.

    Returns the number of repairs by kind: the words of `Audit.counts` (`orphan` without a part), `cursor`, `last`,
    `bytes`, and `busy` if the bytes could not be counted. Raises `QueueNotFound`.
    """
    done = _counts((yield from run(repair.repair(keyspace, queue))))
    done += (yield from walk(keyspace, queue, (*INDEXES, *CONTENTS), fix=True)).repaired
    for _ in range(TRIES):
        result = yield from walk(keyspace, queue, CONTENTS)
        if result.still and result.record.get("ready_bytes") == str(result.size):
            return done
        if result.still:
            call = repair.repair(keyspace, queue, record=result.text, size=result.size)
            corrected = _counts((yield from run(call)))
            if corrected["bytes"]:
                return done + corrected
    done["busy"] = 1
    return done


def _counts(values: Ok) -> Counter[str]:
    words = values.done
    return Counter(dict(zip(map(bytes.decode, words[::2]), words[1::2], strict=True)))
