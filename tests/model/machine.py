"""The basis of the model test: clients, the model beside them, and the comparison after every step."""

import json
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import redis
from hypothesis.stateful import RuleBasedStateMachine

from rqttl.options import OPTIONS, QueueOptions
from rqttl.protocol.codec import ParsedHeader, unpack_envelope
from rqttl.protocol.commands import Command, Reply
from rqttl.types import Death
from rqttl.units import as_datetime
from tests.model.clients import CLIENTS, STEP, Client, Clock
from tests.model.queues import DeathRecord, Item, ModelQueue, Msg, Pair
from tests.model.raw import RawQueue, Reader, check_places, free, unpack_header
from tests.model.topics import Topics

T = TypeVar("T")

#: `a.late` is nobody's until a dead letter makes it, and `t` is a topic.
NAMES = ("a", "b", "dead", "a.late", "t")

#: One call sweeps so many messages at most. The model sweeps all of them.
SWEEP = 250
#: The fields of the record that an option may have.
FIELDS = [name.encode() for name in (*OPTIONS, "passes_on")]
#: The calls whose effect depends on the consumers that wait.
LOOKED_AT = ("sweep", "receive", "stats", "enqueue", "redrive", "move")
#: The words of each queue that gets copies of a call.
WORDS = 5


class Before(NamedTuple):
    """A queue before a call: when it is due, the ends of waits, the wake-up list, and whether nobody may claim."""

    due: int | None
    ends: list[int]
    wakeup: list[bytes]
    is_closed: bool


@dataclass
class Waiter:
    """A consumer that found nothing and waits for a wake-up."""

    consumer: str
    queue: str
    who: int
    count: int


class Machine(RuleBasedStateMachine):
    """Subclasses bring the rules. Each one acts through `act`, on Redis and on the model, and ends with `compare`."""

    def __init__(self, client: redis.Redis, clients: Sequence[Client], reader: Reader) -> None:
        super().__init__()
        client.flushall()
        self.client = client
        self.reader = reader
        self.clock = Clock()
        self.clients = clients
        for one in clients:
            one.begin(self.clock)
        self.world = Topics()
        self.raw: dict[str, RawQueue] = {}
        #: Every delivery that anybody ever had: queue, place and token.
        self.seen: list[tuple[str, bytes, bytes]] = []
        #: The last settle of each client, for when its reply was lost.
        self.settled: list[tuple[Command, Callable[[bool], object]] | None] = [None] * CLIENTS
        #: Queues that a client made and died before it could enter them.
        self.unlisted: set[str] = set()
        #: The consumers that found nothing and wait for a wake-up.
        self.waiters: list[Waiter] = []
        self.bodies = 0
        #: The queues that are listed.
        self.registry: set[str] = set()
        #: How many flows have come to their call.
        self.applied = 0
        #: The queues whose options have changed in this operation; what sweeps of these let die: expired, over a limit.
        self.changed: set[str] = set()
        self.killed: dict[str, list[int]] = {}
        self.before: dict[str, Before] = {}
        #: What a client sends to a topic, and what became of it by place: refused by a queue for a limit, or stored.
        self.sending: list[Item] = []
        self.outcomes: dict[int, Msg | tuple[str, str]] = {}
        #: The queues where nothing waited before an operation, and those where a full queue has held up what waits.
        self.passing: set[str] = set()
        self.held: set[str] = set()

    # Acting

    def act(self, who: int, flow: Generator[Any, Any, T], script: str, apply: Callable[[], object], **how: bool) -> T:
        """Carry out a flow; `apply` does to the model what its call of `script` does, `follow` what other calls do.

        The flow must make that call, and the queues that it creates have the options of their policies at its end.
        `how` is as for `attempt`.
        """
        before, applied = set(self.world.queues), self.applied
        result = self.attempt(who, flow, script, apply, **how)
        assert self.applied > applied
        new = self.world.queues.keys() - before
        if how.get("deaf"):
            self.unlisted |= new
        else:
            assert all(self.world.queues[name].policies == self.world.version for name in new)
        return result

    def attempt(
        self,
        who: int,
        flow: Generator[Any, Any, T],
        script: str,
        apply: Callable[[], object],
        *,
        deaf: bool = False,
        again: bool = False,
    ) -> T:
        """Carry out a flow that perhaps does not come to its call of `script`; `again`: it may do so more than once."""
        broker = self.clients[who]
        waits = [apply]

        def hear(command: Command, reply: Reply) -> None:
            is_it = waits and command.script.name == script
            if is_it and (script != "update" or (command.word("declared") and not broker.depth)):
                self.applied += 1
                waits.pop()()
                if again:
                    waits.append(apply)
            else:
                self.follow(command, reply, counts=not broker.depth)
            if command.script.name == "sweep":
                self.arrive(command, reply)

        broker.clear_log()
        broker.deaf, broker.listener, broker.ahead, broker.refused = deaf, hear, self.look_ahead, self.refused
        self.changed, self.killed = set(), {}
        try:
            return broker.perform(flow)
        finally:
            broker.settle_down()

    def follow(self, command: Command, reply: Reply, *, counts: bool) -> None:
        """Do to the model what a call did that a client makes by itself. `killed` has what sweeps let die."""
        if command.script.name == "sweep":
            values: Any = command.script.read(reply)
            died = self.world.sweep(command.queue, self.clock.now)
            if command.queue not in self.raw or len(self.raw[command.queue].entries) < SWEEP:
                assert (values.expired, values.trimmed) == died, f"{command.queue}: died in a sweep"
            if counts and command.queue in self.changed:
                killed = self.killed.get(command.queue, [0, 0])
                self.killed[command.queue] = [before + more for before, more in zip(killed, died, strict=True)]
        elif command.script.name == "update":
            assert not command.word("declared"), "somebody declares what nobody asked for"
            self.world.apply_policies(command.queue, policies_of(command))
            self.changed.add(command.queue)

    def refused(self, command: Command, reply: Reply) -> None:
        """Do to the model what a call did that was refused."""

    def sends(self, batch: Sequence[Item]) -> None:
        """Somebody begins to send these, perhaps to a topic."""
        self.sending, self.outcomes = [*batch], {}

    @staticmethod
    def batch(command: Command) -> tuple[Any, ...]:
        """The words of a call that stores copies, without those of its queues."""
        return command.words[Machine.first(command) + WORDS * int(command.word("count")) :]

    @staticmethod
    def queues_of(command: Command) -> list[tuple[Any, ...]]:
        """The words of each queue that gets copies of a call."""
        first = Machine.first(command)
        return [
            command.words[at : at + WORDS] for at in range(first, first + WORDS * int(command.word("count")), WORDS)
        ]

    @staticmethod
    def first(command: Command) -> int:
        return 1 + int(command.words[0]) + len(command.script.args)

    def look_ahead(self, command: Command) -> None:
        """Read what the model of this call has to know."""
        if command.script.name == "publish":
            names = [name for name, *_ in self.queues_of(command)]
        else:
            names = [command.queue] * (command.script.name in LOOKED_AT)
        for name in names:
            key = self.clients[0].keyspace.key
            due: Any
            due, waits = self.client.hmget(key(name, "meta"), "due_at", "has_waiters")
            found: Any = self.client.zrange(key(name, "waiters"), 0, -1, withscores=True)
            wakeup: Any = self.client.lrange(key(name, "wakeup"), 0, -1)
            ends = [int(end) for _, end in found]
            self.before[name] = Before(int(due) if due else None, ends, wakeup, waits == b"2")

    def arrive(self, command: Command, reply: Reply) -> None:
        """Let the scheduled messages arrive that a sweep has let arrive. With other work left, it may leave them."""
        values: Any = command.script.read(reply)
        if values.activated or not values.more:
            now = self.clock.now
            arrived = self.world.activate(command.queue, now, free(self.before[command.queue].ends, now))
            assert values.activated == arrived, f"{command.queue}: arrived"

    def ran(self, who: int, script: str) -> Command:
        """The command that the client has just carried out."""
        return next(command for command, _ in self.clients[who].log if command.script.name == script)

    def free(self, name: str) -> int:
        """The number of consumers that wait, have no message under way, and may get one from this call."""
        before, now = self.before[name], self.clock.now
        return 0 if before.is_closed else min(free(before.ends, now), self.world.queues[name].room(now))

    def body(self, size: int) -> bytes:
        """Bodies differ, except for empty ones."""
        self.bodies += 1
        return (b"%d." % self.bodies).ljust(size, b".") if size else b""

    def deliveries(self, picks: Sequence[int], *, foreign: bool) -> tuple[str, list[Pair]]:
        """Deliveries ever seen, all of one queue: those that hold first, then from the latest on.

        A foreign one has the token of another.
        """
        latest = range(len(self.seen) - 1, -1, -1)
        recent = [self.seen[i] for i in sorted(latest, key=lambda i: self.is_over(self.seen[i]))]
        name = recent[picks[0] % len(recent)][0]
        own = [(seq, token) for queue, seq, token in recent if queue == name]
        pairs = [own[pick % len(own)] for pick in picks]
        if foreign:
            pairs[-1] = (pairs[-1][0], recent[(picks[0] + 1) % len(recent)][2])
        return name, list(dict.fromkeys(pairs))

    def is_over(self, delivery: tuple[str, bytes, bytes]) -> bool:
        name, seq, token = delivery
        q = self.world.queues.get(name)
        return q is None or not q.held(q.find(seq), token, self.clock.now)

    # Comparing

    def compare(self) -> None:
        earlier = self.raw
        self.raw, self.registry = self.reader.read()
        assert self.raw.keys() == self.world.queues.keys()
        assert self.registry >= self.world.queues.keys() - self.unlisted
        self.compare_policies()
        traces = {name: (found[b"last_id"], found[b"trimmed_upto"]) for name, found in self.reader.gone.items()}
        assert traces == self.world.gone
        for name, raw in self.raw.items():
            q = self.world.queues[name]
            self.compare_contents(q, raw)
            self.compare_indexes(q, raw)
            self.compare_facts(q, raw)
            self.compare_scheduled(q, raw)
            self.compare_options(q, raw, earlier.get(name))
            check_places(raw)
            check_marks(q, raw, earlier.get(name))
            self.check_limits(q, raw)
            self.check_passing(q, raw)
            self.check_hints(q, raw)

    @staticmethod
    def compare_contents(q: ModelQueue, raw: RawQueue) -> None:
        """The same messages in the same order, with all that is known of them."""
        assert list(raw.entries) == [m.seq for m in q.messages], f"{q.name}: contents or order"
        for m, (header, body) in zip(q.messages, raw.entries.values(), strict=True):
            unpacked: ParsedHeader = unpack_header(header)
            assert (body, unpacked.id, unpacked.deadline) == (m.body, m.id, m.own)
            assert dict(unpacked.headers) == m.headers
            if unpacked.deaths or m.deaths:
                assert list(unpacked.deaths) == [shown(d) for d in m.deaths if d.reason != "redriven"]

    @staticmethod
    def compare_indexes(q: ModelQueue, raw: RawQueue) -> None:
        """Compare the tokens of leases, the ends of delays, the deadlines and the numbers of failures."""
        leased = q.in_state("leased")
        assert raw.leases.keys() == {m.seq for m in leased}, f"{q.name}: leased"
        for m in leased:
            token = raw.leases[m.seq]
            if m.token is None:
                assert int(token) // 1000 == m.until
                m.token = token
            assert token == m.token
        assert raw.away == {m.seq: m.until for m in q.in_state("delayed")}, f"{q.name}: delayed"
        assert raw.expiry == {m.seq: m.own for m in q.ready if m.own is not None}, f"{q.name}: expiry"
        assert raw.failures == {m.seq: failures_of(m) for m in q.messages if m.failures}, f"{q.name}: redelivered"

    @staticmethod
    def compare_facts(q: ModelQueue, raw: RawQueue) -> None:
        """Counters and sizes; what went in has come out or is there; nothing can become due unnoticed."""
        counters = raw.counters
        assert +counters == +q.counters, f"{q.name}: counters"
        assert int(raw.meta[b"ready_bytes"]) == q.size, f"{q.name}: bytes"
        assert raw.meta[b"trimmed_upto"] == q.trimmed, f"{q.name}: trimmed"
        ended = counters["acked"] + counters["purged"] + counters["redriven"] - q.refused_deaths - q.never_arrived
        ended += q.gone_on
        ended += sum(n for name, n in counters.items() if name.startswith("deaths:"))
        assert counters["enqueued"] == len(raw.entries) + ended, f"{q.name}: messages came from or went nowhere"
        next_due = q.next_due()
        if next_due is not None:
            assert raw.due is not None, f"{q.name}: never due, should be {next_due}"
            assert raw.due <= next_due, f"{q.name}: due {raw.due}, should be {next_due}"
        assert raw.meta.get(b"fan_at", b"") == b" ".join([q.mark[0], q.mark[1].encode()]).strip(), f"{q.name}: mark"

    def compare_scheduled(self, q: ModelQueue, raw: RawQueue) -> None:
        """Scheduled messages are as they were sent, and no sweep is late for them."""
        assert raw.scheduled == {s.seq: s.due for s in q.scheduled}, f"{q.name}: scheduled"
        ids: dict[bytes, list[bytes]] = {}
        for s in q.scheduled:
            envelope, body = raw.upcoming[s.seq]
            sent, read = unpack_envelope(envelope)
            ttl = None if s.item.ttl is None else (b"+", s.item.ttl)
            assert sent == (ttl if s.item.at is None else (b"@", s.item.at))
            assert (body, read.id, dict(read.headers)) == (s.item.body, s.item.id, s.item.headers)
            if s.item.id:
                ids.setdefault(s.item.id.encode(), []).append(s.seq)
        assert raw.named == {id: sorted(seqs) for id, seqs in ids.items()}, f"{q.name}: ids"
        assert (raw.meta.get(b"arrival_at") or None) == (q.arrival_at and b"%d" % q.arrival_at), f"{q.name}: arrival"
        gone = q.counters["activated"] + q.counters["cancelled"] + q.never_arrived
        assert q.ever_scheduled == len(raw.scheduled) + gone, f"{q.name}: scheduled messages came from or went nowhere"
        if q.arrival_at is not None:
            # a call that may not let messages arrive asks for a sweep, and its client may die before that
            latest = max(q.arrival_at, self.clock.latest + 1_000) if q.arrival_at <= self.clock.latest else q.arrival_at
            assert raw.due is not None, f"{q.name}: never due, and a message has to arrive"
            assert raw.due <= latest, f"{q.name}: due too late for an arrival"

    @staticmethod
    def compare_options(q: ModelQueue, raw: RawQueue, earlier: RawQueue | None) -> None:
        """Options declared and in force, and whose they are. Others in force make another version of the record."""
        in_force, meta = QueueOptions(q.name, q.options, q.bindings), raw.meta  # type: ignore[arg-type]  # none is None
        words = [str(word).encode() for word in in_force.fields()]
        fields = dict(zip(words[::2], words[1::2], strict=True))
        assert {name: meta.get(name) for name in FIELDS} == {name: fields.get(name) for name in FIELDS}
        bindings = {} if q.bindings is None else {"bindings": q.bindings}
        assert json.loads(meta[b"options"]) == {**q.options, **bindings}, f"{q.name}: in force"
        assert json.loads(meta[b"declared"]) == {**q.declared, **bindings}, f"{q.name}: declared"
        assert (int(meta[b"policies"]), int(meta[b"explicit"])) == (q.policies, q.adopted), f"{q.name}: policies"
        if earlier is not None and earlier.meta[b"options"] != meta[b"options"]:
            assert earlier.meta[b"version"] != meta[b"version"], f"{q.name}: no client knows of its options"

    def compare_policies(self) -> None:
        """The stored set is the last one of the model."""
        fields = {policy.field.encode(): policy.as_json().encode() for policy in self.world.policies[-1]}
        stored = dict(self.reader.policies)
        assert int(stored.pop(b"version", b"0")) == self.world.version
        assert stored == fields, "policies"

    def check_passing(self, q: ModelQueue, raw: RawQueue) -> None:
        """What waits at a topic has somebody who looks soon."""
        if q.passes_on and q.ready:
            assert raw.due is not None, f"{q.name}: messages wait, and nobody knows"
            assert raw.due <= self.clock.latest + 2_000, f"{q.name}: messages wait, and nobody looks soon"

    def check_limits(self, q: ModelQueue, raw: RawQueue) -> None:
        """Never over under `drop-head`, except after a change that no call has acted on yet, and that is due."""
        if not q.is_over():
            q.may_exceed = False
        elif q.drops_head or q.letters_came:
            assert q.may_exceed or q.letters_came, f"{q.name}: over its limit"
            assert raw.due is not None, f"{q.name}: over its limit, and nobody knows"
            assert raw.due <= self.clock.latest, f"{q.name}: over its limit, and acted upon too late"

    def check_hints(self, q: ModelQueue, raw: RawQueue) -> None:
        """A consumer that waits beside a ready message has a hint. Every ticket is of this queue."""
        waits = q.passes_to is None and any(until > self.clock.now for until in raw.waiters.values())
        if waits and self.may_go(q, raw) and any(not q.expired(m, self.clock.now) for m in q.ready):
            assert raw.wakeup, f"{q.name}: a consumer sleeps beside a ready message"
        assert raw.wakeup.count(b"") <= 1 or q.was_passed_on

    def may_go(self, q: ModelQueue, raw: RawQueue) -> bool:
        """Whether somebody has to ring. Nobody has to before a sweep that is due, and while a consumer has the turn."""
        if not q.was_controlled:
            return True
        if q.room(self.clock.now) == 0 and ("rate" not in q.options or q.options.get("paused")):
            return False
        turn = int((raw.meta.get(b"rate_turn") or b"0").rpartition(b" ")[2])
        is_full = len(q.in_state("leased")) >= (q.number("max_leased") or 1_000_000)
        return not is_full and (raw.due is None or raw.due > self.clock.now) and turn + 5_000 <= self.clock.now


def check_marks(q: ModelQueue, raw: RawQueue, earlier: RawQueue | None) -> None:
    """Compare the marks with the letters that have arrived. `earlier` is the queue before the operation."""
    q.sizes.update({seq: len(header) + len(body) for seq, (header, body) in raw.entries.items()})
    assert int(raw.meta.get(b"letters", 0)) == len(q.letters), f"{q.name}: dead letters"
    places = {seq: (enqueued, number) for number, (seq, enqueued) in enumerate(q.letters, 1)}
    marked = []
    for member, score in raw.arrivals.items():
        seq, *words = member.split(b" ")
        enqueued, letters, size = map(int, words)
        assert places.get(seq) == (enqueued, letters), f"{q.name}: a mark is not true"
        assert score == int(seq[:13])
        check_bytes(q, letters, size)
        marked.append(seq)
    crossings = [seq for seq, enqueued in q.letters if enqueued % STEP == 0]
    for before, mark in pairwise([b"", *marked]):
        assert any(before < seq <= mark for seq in crossings), f"{q.name}: a mark too much"
    due = [seq for seq in crossings if places[seq][1] > q.unmarked]
    assert not due or (marked and marked[-1] >= due[-1]), f"{q.name}: a mark is missing"
    if marked and earlier is not None and earlier.entries and not raw.arrivals.keys() <= earlier.arrivals.keys():
        first = int(next(iter(earlier.entries))[:13])
        old = [mark for mark in marked if int(mark[:13]) < first]
        assert len(old) <= 1, f"{q.name}: marks before the first letter stay"


def check_bytes(q: ModelQueue, letters: int, size: int) -> None:
    """Compare the bytes of a mark with those of its letters. Nobody has seen letters that left in their operation."""
    known = [q.sizes.get(seq) for seq, _ in q.letters[:letters]]
    least = sum(one for one in known if one is not None)
    assert size == least or (None in known and size > least), f"{q.name}: a mark has other bytes than its letters"


def shown(record: DeathRecord) -> Death:
    first, last, enqueued = map(as_datetime, (record.first, record.last, record.enqueued))
    ends = None if record.expires is None else as_datetime(record.expires)
    told = first, last, enqueued, ends, record.deliveries, record.description
    return Death(record.queue, record.reason, record.times, *told)


def failures_of(m: Msg) -> bytes:
    """The failed deliveries of a message as the queue keeps them."""
    return b"%d" % m.failures + (b" " + m.description.encode() if m.description else b"")


def policies_of(command: Command) -> int:
    """The version of the policies that the options of a command come from."""
    return int(command.word("policies"))


def words_of(pairs: Sequence[Pair]) -> list[bytes]:
    return [word for pair in pairs for word in pair]
