"""One call of a script reads 4 MB and the message that exceeds them, wherever large bodies are."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rqttl import Message
from rqttl.options import QueueOptions
from rqttl.protocol import commands
from rqttl.protocol.commands import Command, Options
from tests.encoded import enqueue_encoded
from tests.lua.states import NOW, Lab, place
from tests.servers import Server

MB = 2**20
#: What the server may hold at once beyond what it stores: several copies of what a script reads, and what it moves.
ROOM = 120 * MB
LATER = NOW + 1000


def fill(lab: Lab, bodies: Sequence[bytes], queue: str = "orders", ttl: str | None = None, **options: Any) -> None:
    """Declare a queue and enqueue, a few messages in a call."""
    lab.seed(queue, options)
    known = lab.known(queue)
    packed = [commands.pack(Message(body, ttl=ttl)) for body in bodies]
    step = max(1, min(250, 8 * MB // max(map(len, bodies))))
    for start in range(0, len(packed), step):
        lab.run(commands.enqueue(known, packed[start : start + step], now=NOW))


def leased(lab: Lab, lease: int = 500, *, queue: str = "orders") -> list[bytes]:
    """Take everything out; the deliveries, id and token in turn."""
    words: list[bytes] = []
    while (reply := lab.run(commands.receive(lab.known(queue), 250, lease, now=NOW)))[7]:
        words += [word for id in reply[7][::3] for word in (id, reply[5])]
    return words


@contextmanager
def bounded(server: Server) -> Iterator[None]:
    """Meanwhile the server takes at most `ROOM` more memory than before."""
    process = Path(f"/proc/{server.process.pid}")
    if not (process / "clear_refs").exists():
        yield
        return
    (process / "clear_refs").write_text("5")
    before = memory(process, "VmRSS")
    yield
    assert memory(process, "VmHWM") - before < ROOM


def memory(process: Path, line: str) -> int:
    found = re.search(rf"^{line}:\s+(\d+) kB", (process / "status").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) * 1024


@dataclass(frozen=True)
class Case:
    """A call that meets 250 messages of 1 MB, and how many of them it says that it read.

    They are `leased` until the leases run out, `delayed` until that is over, `ready`, ready with one that is not (`one
    leased`), or `mortal`, with a TTL that is over.
    """

    command: Callable[[Lab], Command]
    count: Callable[[Any], int]
    options: dict[str, Any] = field(default_factory=dict)
    state: str = "ready"


def sweep(lab: Lab) -> Command:
    return commands.sweep(lab.known(), now=LATER)


def lowered(lab: Lab) -> Command:
    """A sweep, once other options are in force."""
    options = QueueOptions.read("orders", {"max_length": 0, "dead_letter": "dead"})
    lab.run(commands.update(lab.known(), Options.plain(options), now=NOW))
    return commands.sweep(lab.known(version=lab.snapshot_of("orders", "meta")["version"]), now=NOW)


def chosen(lab: Lab) -> list[bytes]:
    """The first 100 places of the log."""
    return [place(0, i).encode() for i in range(100)]


EMPTY = QueueOptions.read("orders", {"max_length": 0})
DEAD = {"dead_letter": "dead"}
CASES = {
    "receive": Case(lambda lab: commands.receive(lab.known(), 250, 1000, now=NOW), lambda reply: len(reply[7][::3])),
    "receive past the expired": Case(
        lambda lab: commands.receive(lab.known(), 250, 1000, now=LATER), lambda _: 1, DEAD, "expiring"
    ),
    "peek": Case(lambda lab: commands.peek(lab.keyspace, "orders", after="", limit=250), lambda reply: len(reply[4])),
    "sweep that reclaims": Case(sweep, lambda reply: reply[5], DEAD, "leased"),
    "sweep that reclaims into a limit": Case(sweep, lambda reply: reply[5], {"max_length": 2, **DEAD}, "leased"),
    "sweep that promotes": Case(sweep, lambda reply: reply[6], DEAD, "delayed"),
    "sweep that expires": Case(sweep, lambda reply: reply[7], DEAD, "expiring"),
    "sweep by retention": Case(sweep, lambda reply: reply[7], {"message_ttl": "1s", **DEAD}),
    "sweep that trims": Case(lowered, lambda reply: reply[8], DEAD),
    "sweep that retires": Case(
        sweep, lambda reply: reply[7], {"expires": "1s", "on_expire": "dead-letter", **DEAD}, "leased"
    ),
    "stats": Case(lambda lab: commands.stats(lab.known(), now=LATER), lambda _: 1, {"message_ttl": "10s"}, "leased"),
    "purge": Case(lambda lab: commands.purge(lab.keyspace, "orders", ""), lambda reply: reply[2], DEAD, "one leased"),
    "purge of the chosen": Case(
        lambda lab: commands.purge(lab.keyspace, "orders", "", chosen(lab)), lambda reply: reply[2]
    ),
    "redrive": Case(
        lambda lab: commands.redrive(lab.known("origin"), "orders", chosen(lab), now=NOW), lambda reply: len(reply[2])
    ),
    "preview": Case(lambda lab: commands.preview(lab.known(), EMPTY, commands.Walk(), now=NOW), lambda reply: reply[6]),
    "enqueue past the expired": Case(
        lambda lab: enqueue_encoded(lab.known(), [(b"", b"x")], now=LATER), lambda _: 1, {"max_length": 250}, "expiring"
    ),
}


def prepare(lab: Lab, case: Case) -> None:
    lab.seed("origin")
    limit = case.options.get("max_length")
    free = {name: value for name, value in case.options.items() if value != 2}
    fill(lab, [b"x" * MB] * 250, ttl="1s" if case.state == "expiring" else None, **free)
    if case.state in ("leased", "delayed"):
        words = leased(lab)
        for start in range(0, len(words) if case.state == "delayed" else 0, 20):
            lab.run(commands.nack(lab.known(), words[start : start + 20], delay=10, now=NOW))
    elif case.state == "one leased":
        lab.run(commands.receive(lab.known(), 1, 1000, now=NOW))
    if limit == 2:
        lab.client.hset(lab.keyspace.key("orders", "meta"), mapping={"max_length": 2, "option_set": 0})


@pytest.mark.parametrize("name", CASES)
def test_of_messages_of_1_mb_one_call_reads_5(lab: Lab, server: Server, name: str) -> None:
    case = CASES[name]
    prepare(lab, case)
    command = case.command(lab)

    with bounded(server):
        reply = lab.run(command)

    if reply != [b"refused", b"retry"]:
        assert 0 < case.count(reply) <= 5


@pytest.mark.parametrize("action", ["nack", "reject"])
def test_a_settle_of_250_messages_of_1_mb_holds_few_of_them_at_once(lab: Lab, server: Server, action: str) -> None:
    fill(lab, [b"x" * MB] * 250)
    words = leased(lab)
    settle = commands.nack if action == "nack" else commands.reject

    with bounded(server):
        assert lab.run(settle(lab.known(), words, now=NOW))[2] == []

    meta = lab.snapshot_of("orders", "meta")
    assert (meta["ready_bytes"], meta.get("deaths:rejected", 0)) == ((250 * MB, 0) if action == "nack" else (0, 250))


@pytest.mark.parametrize("name", ["receive", "peek", "sweep that trims", "stats", "purge of the chosen"])
def test_a_few_huge_messages_before_many_small_ones_come_one_in_a_call(lab: Lab, server: Server, name: str) -> None:
    fill(lab, [b"x" * 15 * MB] * 24)
    for _ in range(96):
        lab.run(commands.enqueue_alike(lab.known(), [b"x" * 20] * 250, now=NOW))
    command = CASES[name].command(lab)

    with bounded(server):
        assert CASES[name].count(lab.run(command)) == 1


def test_small_messages_beyond_the_large_ones_come_all_at_once(lab: Lab) -> None:
    fill(lab, [b"x" * MB] * 3 + [b"x" * 20] * 600)

    counts = [len(lab.run(commands.receive(lab.known(), 250, 1000, now=NOW))[7][::3]) for _ in range(4)]

    assert counts == [250, 250, 103, 0]


def test_headers_count_in_what_one_call_reads(lab: Lab) -> None:
    header = b";;;" + b"\x92\xc0" + b"x" * MB
    lab.seed()
    for _ in range(3):
        lab.run(enqueue_encoded(lab.known(), [(header, b"x")] * 3, now=NOW))

    assert len(lab.run(commands.receive(lab.known(), 9, 1000, now=NOW))[7][::3]) == 4


def test_the_place_of_the_large_ones_is_forgotten_once_nothing_is_there(lab: Lab) -> None:
    fill(lab, [b"x" * 20_000, b"x"])
    last = lab.snapshot_of("orders", "meta")["last_id"]
    assert lab.snapshot_of("orders", "meta")["largest_bytes"] == 20_000
    words = leased(lab)
    lab.run(commands.sweep(lab.known(), now=NOW))
    assert lab.snapshot_of("orders", "meta")["large_upto"] == last

    lab.run(commands.ack(lab.keyspace, "orders", words, now=NOW))
    lab.run(commands.sweep(lab.known(), now=NOW))

    assert lab.snapshot_of("orders", "meta")["large_upto"] == ""


@pytest.mark.parametrize("way", ["one", "batch", "with a deadline", "letter"])
def test_every_way_in_notes_a_large_message(lab: Lab, way: str) -> None:
    body = b"x" * 20_000
    fill(lab, [b"x"], dead_letter_rejected="dead")
    lab.seed("dead")
    if way == "letter":
        lab.run(commands.enqueue_alike(lab.known(), [body], now=NOW))
        lab.run(commands.reject(lab.known(), leased(lab), now=NOW))
    else:
        said = b"+900" if way == "with a deadline" else b""
        lab.run(enqueue_encoded(lab.known("dead"), [(said, body)] * (3 if way == "batch" else 1), now=NOW))

    meta = lab.snapshot_of("dead", "meta")

    newest = max(one for one, (_, large) in lab.snapshot_of("dead", "log").items() if large == body)
    assert meta["large_upto"] >= newest
    assert 20_000 <= meta["largest_bytes"] < 20_300


def test_a_page_of_a_compacted_queue_reads_no_more(lab: Lab, server: Server) -> None:
    fill(lab, [b"x" * MB] * 60)
    client: Any = lab.client
    log, detached, returned = (lab.keyspace.key("orders", part) for part in ("log", "detached", "requeued"))
    moved = client.xrange(log, count=40)
    for id, fields in moved:
        ((header, body),) = fields.items()
        client.hset(detached, id, b"%d:%b%b" % (len(header), header, body))
        client.zadd(returned, {id: int(id[:13])})
        client.xdel(log, id)
    client.hset(lab.keyspace.key("orders", "meta"), "cursor", moved[-1][0])
    seen: list[str] = []

    with bounded(server):
        while page := lab.run(commands.peek(lab.keyspace, "orders", after=seen[-1] if seen else "", limit=250))[4]:
            assert len(page) <= 6
            seen += [one.decode() for one, _ in page]

    assert (len(seen), seen) == (60, sorted(set(seen)))


def test_a_repeated_ack_of_messages_that_came_back_reads_5_and_leaves_the_others_unknown(
    lab: Lab, server: Server
) -> None:
    fill(lab, [b"x" * MB] * 50)
    words = leased(lab)
    lab.run(commands.nack(lab.known(), words, now=NOW))

    with bounded(server):
        _, _, unknown, lost = lab.run(commands.ack(lab.keyspace, "orders", words, now=LATER).as_replay())

    assert 0 < len(lost) <= 5
    assert len(unknown) + len(lost) == 50
