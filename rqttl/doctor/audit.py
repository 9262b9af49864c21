"""Whether the parts of a queue agree, and putting them right: flows over pages, so that no call is long.

Each page is judged in one script, so what it says of a message is true at that moment, whatever others do meanwhile.
Only the sum of all bodies needs a queue that stands still: the pages say whether it did.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from rqttl.flows import Flow, plain
from rqttl.protocol.commands import repair
from rqttl.protocol.keys import Keyspace

#: Where messages are; and what names them.
CONTENTS = ("log", "detached")
INDEXES = ("leases", "delayed", "requeued", "expiry", "failures")
#: How often the bodies are counted before a queue is too busy for it.
TRIES = 5
#: Ids that a page has at most. The script cuts pages of large bodies.
PAGE = 250
#: Ids of each kind that are kept as examples.
_SHOWN = 3


@dataclass
class Audit:
    """What was found in a queue.

    `counts` is how many ids are wrong in which way, by the words of `damage.judge`; an orphan also by the
    part that still names it (`orphan:leases`); `examples` some of them. `still` says that nothing has changed
    meanwhile, so that `messages`, `ready` and `size` (body bytes of ready messages) belong together.
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
    mended: Counter[str] = field(default_factory=Counter)

    def add(self, source: str, page: list[Any]) -> list[bytes]:
        """Take in a page. Returns the ids that are wrong and can be put right."""
        _, text, due, cursor, last, seen, ready, size, faults = page
        self.still = self.still and self.text in (b"", text)
        self.text, self.due = text, int(due) if due else None
        self.cursor, self.last = cursor.decode(), last.decode()
        if source in CONTENTS:
            self.messages, self.ready, self.size = self.messages + seen, self.ready + ready, self.size + size
        wrong = []
        for id, word in zip(faults[::2], map(bytes.decode, faults[1::2]), strict=True):
            kind = f"orphan:{source}" if word == "orphan" else word
            self.counts[kind] += 1
            shown = self.examples.setdefault(kind, [])
            if len(shown) < _SHOWN:
                shown.append(id.decode("utf-8", "backslashreplace"))
            if word not in ("foreign", "header"):
                wrong.append(id)
        return wrong

    def close(self) -> None:
        """Read the record as it was in the end."""
        lines = self.text.decode("utf-8", "backslashreplace").split("\n")[:-1]
        self.record = dict(line.partition("=")[::2] for line in lines)


def walk(keyspace: Keyspace, queue: str, sources: tuple[str, ...], *, mend: bool = False) -> Flow[Audit]:
    """Look at all ids of these parts. `mend` puts right what is wrong with them, page by page."""
    audit = Audit()
    for source in sources:
        after: bytes = b""
        while True:
            reply = yield from plain(repair.audit(keyspace, queue, source, after, PAGE))
            wrong = audit.add(source, list(reply[2:]))
            if mend and wrong:
                done = yield from plain(repair.repair(keyspace, queue, wrong))
                audit.mended.update(_counts(done))
            after = reply[2]
            if not after:
                break
    audit.close()
    return audit


def audit(keyspace: Keyspace, queue: str) -> Flow[Audit]:
    """Look at a whole queue. Raises `QueueNotFound`."""
    for _ in range(TRIES):
        found = yield from walk(keyspace, queue, CONTENTS)
        if found.still:
            break
    indexes = yield from walk(keyspace, queue, INDEXES)
    found.counts.update(indexes.counts)
    found.examples.update(indexes.examples)
    return found


def mend(keyspace: Keyspace, queue: str) -> Flow[Counter[str]]:
    """Put right all that can be: ids, the ends of the log, then `bytes`, if the queue stands still for it.

    Returns what was done, by the words of `Audit.counts` (`orphan` without a part), `cursor`, `last`, `bytes`;
    and `busy` if the bytes could not be counted. Raises `QueueNotFound`.
    """
    done = _counts((yield from plain(repair.repair(keyspace, queue))))
    done += (yield from walk(keyspace, queue, (*INDEXES, *CONTENTS), mend=True)).mended
    for _ in range(TRIES):
        found = yield from walk(keyspace, queue, CONTENTS)
        if found.still and found.record.get("ready_bytes") == str(found.size):
            return done
        if found.still:
            call = repair.repair(keyspace, queue, record=found.text, size=found.size)
            told = _counts((yield from plain(call)))
            if told["bytes"]:
                return done + told
    done["busy"] = 1
    return done


def _counts(reply: Any) -> Counter[str]:
    words = reply[2]
    return Counter(dict(zip(map(bytes.decode, words[::2]), words[1::2], strict=True)))
