"""One queue in pure Python, written from the design alone: what `rqttl` on Redis is compared with after every step.

Time is an argument everywhere. A message is one object in the list of its queue, in the order in which it arrived;
where it stands (ready, leased, delayed) is a field of it, so here it cannot be in two places.
"""

from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, inf
from typing import Any, NamedTuple

from rqttl.options import written

#: The longest pause, and the two numbers that chance is made of, as the protocol says them.
LONGEST, PRIME, FACTOR = 315_360_000_000, 2**31 - 1, 48_271
#: How long a message that was handed to a waiting consumer is kept for it.
PICKUP = 5000

Options = dict[str, object]
#: A message's place and a lease token: what a delivery is known by.
Pair = tuple[bytes, bytes]


class DeathRecord(NamedTuple):
    """Deaths of one message in one queue for one reason."""

    queue: str
    reason: str
    times: int
    first: int
    last: int
    enqueued: int
    expires: int | None
    deliveries: int
    description: str | None


@dataclass
class Item:
    """A message as the sender gives it; `ttl` is relative, `at` absolute."""

    body: bytes
    id: str | None = None
    ttl: int | None = None
    at: int | None = None
    headers: dict[str, int] = field(default_factory=dict)
    #: Of a copy: the deaths of its message, and whether it has a TTL of its own, so none by an option of the topic.
    deaths: tuple[DeathRecord, ...] = ()
    has_own: bool = True


@dataclass(eq=False)
class Msg:
    """A message in a queue. `until` is the end of its lease or of its delay, `token` the right to settle it."""

    seq: bytes
    body: bytes
    id: str | None
    headers: dict[str, int]
    own: int | None
    deaths: tuple[DeathRecord, ...] = ()
    state: str = "ready"
    until: int = 0
    #: The end of retention as the queue knows it in a delay: from its beginning, or from the last sweep.
    capped: float = inf
    token: bytes | None = None
    failures: int = 0
    #: The last description that a failed delivery was given.
    description: str | None = None

    @property
    def known_back_at(self) -> int:
        """When the queue believes that a delayed message comes back, or dies."""
        return int(min(self.until, self.capped))

    @property
    def arrived(self) -> int:
        return int(self.seq[:13])


@dataclass
class Scheduled:
    """A message that has not arrived: its first place, and when it is due."""

    seq: bytes
    due: int
    item: Item


@dataclass
class Taken:
    """The expected result of a receive."""

    messages: list[Msg]
    lost: list[bytes]


class ModelQueue:
    """A queue as a dead letter makes it: nobody has declared it, and no policy has given it options."""

    def __init__(self, name: str) -> None:
        self.name = name
        #: The options that somebody declared, those in force, and the version of the policies that these come from.
        self.declared: Options = {}
        self.options: Options = {}
        self.policies = 0
        self.adopted = False
        #: The filter of each queue that is bound to a topic.
        self.bindings: dict[str, list[dict[str, Any]]] | None = None
        #: The message that has gone on to a part of its queues, and the last one of these. It may be gone by now.
        self.mark = (b"", "")
        #: The consumers that waited were sent away.
        self.was_passed_on = False
        #: How many messages have left because they went on.
        self.gone_on = 0
        self.messages: list[Msg] = []
        #: In the order of their first places.
        self.scheduled: list[Scheduled] = []
        #: The time from which a sweep looks for messages that are due.
        self.arrival_at: int | None = None
        self.is_held_back = False
        #: How many messages were ever scheduled, and how many of them died or moved before they arrived.
        self.ever_scheduled = self.never_arrived = 0
        self.counters: Counter[str] = Counter()
        self.last = (0, 0)
        #: The highest place of which nobody has handled the message.
        self.trimmed = b"0-0"
        #: Deaths of messages that were refused: they never were in the queue.
        self.refused_deaths = 0
        #: The dead letters from other queues, each with the number of arrivals up to it.
        self.letters: list[tuple[bytes, int]] = []
        #: So many of them had arrived when a purge of all messages took the marks with it.
        self.unmarked = 0
        #: The bytes of header and body of all messages that anybody has seen here.
        self.sizes: dict[bytes, int] = {}
        #: When the next message would go that used nothing of the burst.
        self.was_controlled = False
        self.next_by_rate = self.parts = Fraction(0)
        #: Over its limits until the next sweep: the options have changed, or the client that should sweep died.
        self.may_exceed = False
        #: Dead letters have come beyond a limit that refuses senders, until the next sweep.
        self.letters_came = False

    def _burst(self) -> tuple[int, Fraction]:
        """The messages that the rate lets go at once, and the ms for each."""
        n, per = map(int, str(self.options["rate"]).split("/"))
        return self.number("burst") or max(1, n * 1000 // per), Fraction(per, n)

    def _used(self, now: int) -> Fraction:
        """The ms of the rate that are used up."""
        burst, each = self._burst()
        return min(max(Fraction(0), self.next_by_rate - now), burst * each)

    def room(self, now: int) -> int:
        """How many messages may go to consumers."""
        room = 1_000_000
        if self.number("max_leased") is not None:
            room = (self.number("max_leased") or 0) - len(self.in_state("leased"))
        if "rate" in self.options:
            burst, each = self._burst()
            room = min(room, burst - ceil(self._used(now) / each))
        return 0 if self.options.get("paused") else max(0, room)

    def charge(self, now: int, count: int, *, looks: bool = False) -> None:
        """So many messages went to consumers. One that looks takes off what another rate or clock had used."""
        if "rate" in self.options:
            burst, each = self._burst()
            if count or (looks and self.next_by_rate - now > burst * each):
                self.next_by_rate = now + self._used(now) + count * each

    def number(self, option: str) -> int | None:
        value = self.options.get(option)
        assert value is None or isinstance(value, int)
        return value

    @property
    def passes_to(self) -> dict[str, list[dict[str, Any]]] | None:
        """The queues to which messages go on, with the filter of each."""
        return {str(self.options["forward_to"]): []} if "forward_to" in self.options else self.bindings

    @property
    def passes_on(self) -> bool:
        """Whether messages go on from here at once."""
        return self.passes_to is not None and not self.options.get("paused")

    @property
    def everything(self) -> list[Msg | Scheduled]:
        """All messages, those that have not arrived last."""
        return [*self.messages, *self.scheduled]

    def in_state(self, state: str) -> list[Msg]:
        return [m for m in self.messages if m.state == state]

    @property
    def ready(self) -> list[Msg]:
        return self.in_state("ready")

    @property
    def size(self) -> int:
        return sum(len(m.body) for m in self.ready)

    @property
    def drops_head(self) -> bool:
        return self.options.get("overflow", "drop-head") == "drop-head"

    def note_letters(self) -> None:
        """Dead letters have come: the next sweep trims for them. Their script does not know what is away."""
        self.may_exceed = True
        self.letters_came |= not self.drops_head and self.over(len(self.messages), self.size) is not None

    def over(self, count: int, size: int) -> str | None:
        """The limit that `count` messages of `size` bytes exceed."""
        for limit, value in (("max_length", count), ("max_length_bytes", size)):
            most = self.number(limit)
            if most is not None and value > most:
                return limit
        return None

    @property
    def holds_arrivals(self) -> bool:
        """Whether a message without room stays scheduled: nobody would hear of it if it were refused."""
        return not self.drops_head and not (self.options["overflow"] == "reject-publish-dlx" and self.target("maxlen"))

    def named(self, id: str) -> list[Scheduled]:
        """The scheduled messages with this id, or else the one with this first place."""
        return [s for s in self.scheduled if s.item.id == id] or [s for s in self.scheduled if s.seq.decode() == id]

    def expect(self, at: int) -> None:
        self.arrival_at = at if self.arrival_at is None else min(self.arrival_at, at)

    def is_over(self) -> bool:
        return self.over(len(self.ready), self.size) is not None

    def deadline(self, m: Msg) -> int | None:
        retention = self.number("message_ttl")
        ends = [at for at in (m.own, None if retention is None else m.arrived + retention) if at is not None]
        return min(ends) if ends else None

    def is_mortal(self, m: Msg, now: int) -> bool:
        """Return True if a message that arrives now is dead, unless a waiting consumer gets it."""
        return (m.own is not None and m.own <= now) or self.number("message_ttl") == 0

    def expired(self, m: Msg, now: int) -> bool:
        deadline = self.deadline(m)
        return deadline is not None and now >= deadline

    def overdue(self, now: int) -> list[Msg]:
        """Ready messages past their deadline, and between them delayed ones that are due, in deadline order."""
        ready = [m for m in self.ready if self.expired(m, now)]
        away = [m for m in self.in_state("delayed") if m.known_back_at <= now and self.expired(m, now)]
        return sorted(ready + away if ready else [], key=lambda m: (self.deadline(m), m.seq))

    def retained(self, m: Msg) -> float:
        retention = self.number("message_ttl")
        return inf if retention is None else m.arrived + retention

    def back_at(self, m: Msg) -> int:
        """When a delayed message comes back, or dies."""
        deadline = self.deadline(m)
        return m.until if deadline is None else min(m.until, deadline)

    def next_due(self, *, known: bool = False) -> int | None:
        """The earliest time at which something is to happen without anybody's doing; `known`: as the queue knows it."""
        times = [m.until for m in self.messages if m.state == "leased"]
        times += [m.known_back_at if known else self.back_at(m) for m in self.in_state("delayed")]
        times += [at for m in self.ready if (at := self.deadline(m)) is not None]
        return min(times, default=None)

    def pause(self, m: Msg, at: int) -> int:
        """Return the pause of a message after one more failure, at `at`; 0 if the queue makes no pause."""
        first = self.number("redelivery_delay")
        if first is None:
            return 0
        factor, jitter = self.options.get("redelivery_multiplier", 1), self.options.get("redelivery_jitter", 0)
        assert isinstance(factor, int | float)
        assert isinstance(jitter, int | float)
        chance = 1
        for word in (m.arrived, int(m.seq[14:]), m.failures + 1, at, 0):
            chance = (chance + word) * FACTOR % PRIME
        pause = min(self.number("redelivery_max_delay") or LONGEST, first * factor**m.failures)
        return max(1, int(pause * (1 - jitter * (chance / PRIME))))

    def next_seq(self, now: int) -> bytes:
        """Places rise, even if the clock steps back."""
        ms, serial = self.last
        self.last = (now, 100_000) if now > ms else (ms, serial + 1)
        return b"%013d-%06d" % self.last

    def own_ttl(self, item: Item, now: int) -> int | None:
        """The table of the design, row by row."""
        ttl = item.ttl if item.at is None else item.at - now
        if self.options.get("never_expire"):
            return None
        if (default := self.number("default_ttl")) is not None:
            return default if ttl is None else ttl
        low, high = self.number("min_ttl"), self.number("max_ttl")
        if ttl is None:
            return low if high is None else high
        if low is not None:
            ttl = max(ttl, low)
        return ttl if high is None else min(ttl, high)

    def target(self, reason: str) -> str:
        target = self.options.get(f"dead_letter_{reason}", self.options.get("dead_letter", ""))
        return str(target).replace("{queue}", self.name)

    def find(self, seq: bytes) -> Msg | None:
        return next((m for m in self.messages if m.seq == seq), None)

    def held(self, m: Msg | None, token: bytes, now: int) -> bool:
        return m is not None and m.state == "leased" and m.token == token and m.until > now


def as_written(options: Options) -> dict[str, Any]:
    """Options as a user writes them: the model counts in ms."""
    return {name: written(name, value) for name, value in options.items()}


def consistent(name: str, options: Options) -> bool:
    """Return True if declared options fit together.

    A floor above the ceiling does not, nor a queue as its own target for a reason but `rejected`, nor what shapes a
    pause where there is none, nor a longest pause below the first.
    """
    probe = ModelQueue(name)
    probe.options = options
    low, high = probe.number("min_ttl"), probe.number("max_ttl")
    if low is not None and high is not None and low > high:
        return False
    first, longest = probe.number("redelivery_delay"), probe.number("redelivery_max_delay")
    if first is None and any(option.startswith("redelivery_") for option in options):
        return False
    if first is not None and longest is not None and longest < first:
        return False
    if "burst" in options and "rate" not in options:
        return False
    if options.get("forward_to") == name:
        return False
    return all(probe.target(reason) != name for reason in ("expired", "maxlen", "delivery_limit"))
