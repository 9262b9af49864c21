"""All queues of the model, and what each script call does to them.

Only what is dead leaves a queue by itself, and only when a call comes by: a sweep, a receive or a statistic takes
everything that is due; an arrival or a return that meets a limit takes what is expired before it drops anything else.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rqttl import Policy
from rqttl.options import CONTROLS
from rqttl.types import Declared
from tests.model.queues import PICKUP, DeathRecord, Item, ModelQueue, Msg, Options, Pair, Scheduled, Taken, consistent
from tests.unit.policies import reference


class World:
    """All queues, and every set of policies that there ever was. Every method is one script call."""

    def __init__(self) -> None:
        self.queues: dict[str, ModelQueue] = {}
        #: Of queues that were deleted, the last ones with a loss: the highest place in them, and what they had trimmed.
        self.gone: dict[str, tuple[bytes, bytes]] = {}
        #: The set of policies of each version.
        self.policies: list[tuple[Policy, ...]] = [()]
        #: Of the last settle, the places of which nobody knows whether an earlier try settled them.
        self.unknown: list[bytes] = []

    # Declared options, those in force, and the policies between them

    @property
    def version(self) -> int:
        """The version of the policies that are stored now."""
        return len(self.policies) - 1

    def in_force(self, name: str, declared: Options, version: int | None = None) -> Options:
        """The options that follow from declared ones and from the policies of a version, or from those of now."""
        policies = self.policies[-1 if version is None else version]
        return {**reference.in_force(name, declared, policies)}  # type: ignore[arg-type]  # no declared value is None

    def outdated(self) -> set[str]:
        """The queues whose options in force are not those that follow now."""
        return {name for name, q in self.queues.items() if q.options != self.in_force(name, q.declared)}

    def found(self, name: str, now: int) -> ModelQueue:
        """The queue, made if need be: its places lie beyond those that a deleted queue of this name has lost now."""
        if name not in self.queues:
            q = self.queues[name] = ModelQueue(name)
            highest = max(self.gone.get(name, (b"", b"")))
            if highest >= b"%013d-" % now:
                q.last = (int(highest[:13]), int(highest[14:]))
        return self.queues[name]

    def declare(self, name: str, declared: Options, now: int, version: int, *, is_topic: bool = False) -> Declared:
        """Declare a queue that is new, that nobody has declared, or that has the same declared options."""
        made: Declared = "adopted" if name in self.queues else "created"
        q = self.found(name, now)
        if q.adopted:
            assert (q.bindings is not None) == is_topic
            assert {**q.declared, "paused": None} == {**declared, "paused": None}
            return "existing"
        q.bindings = {} if is_topic else None
        self._declared(q, declared, version)
        return made

    def update(self, name: str, changes: Options, version: int) -> None:
        """Declare other options that fit together."""
        q = self.queues[name]
        declared = {option: value for option, value in {**q.declared, **changes}.items() if value is not None}
        assert consistent(name, declared)
        self._declared(q, declared, version)

    def _declared(self, q: ModelQueue, declared: Options, version: int) -> None:
        q.declared = declared
        self._put(q, self.in_force(q.name, declared, version))
        q.adopted, q.policies, q.may_exceed = True, version, True

    @staticmethod
    def _put(q: ModelQueue, options: Options) -> None:
        """Put options in force. A part of a ms is kept in parts of the rate, whatever they are."""
        if "rate" in q.options:
            q.parts = (q.next_by_rate % 1) * int(str(q.options["rate"]).partition("/")[0])
        q.options = options
        q.was_passed_on |= "forward_to" in options
        q.was_controlled |= bool(options.keys() & set(CONTROLS))
        if "rate" in options:
            q.next_by_rate = q.next_by_rate // 1 + q.parts / int(str(options["rate"]).partition("/")[0])

    def apply_policies(self, name: str, version: int) -> None:
        """Put the options in force that follow from the policies of a version. Older policies never come back."""
        q = self.queues[name]
        assert version >= q.policies, f"{name}: policies {version} in the place of {q.policies}"
        options = self.in_force(name, q.declared, version)
        if options != q.options:
            self._put(q, options)
            q.may_exceed = True
        q.policies = version

    def change_policies(self, stored: Sequence[Policy], removed: Sequence[Policy]) -> None:
        """Make the next version of the set of policies."""
        touched = {(policy.operator, policy.name) for policy in (*stored, *removed)}
        kept = [policy for policy in self.policies[-1] if (policy.operator, policy.name) not in touched]
        self.policies.append((*kept, *stored))

    # Deaths

    def bury(
        self,
        q: ModelQueue,
        now: int,
        reason: str,
        dead: Iterable[Msg],
        *,
        cause: int = 0,
        description: str | None = None,
    ) -> None:
        """Messages die. `cause` is 1 if they die of the current delivery."""
        goals: dict[str, ModelQueue] = {}
        for m in dead:
            if m in q.messages:
                q.messages.remove(m)
                if reason in ("expired", "maxlen"):
                    q.trimmed = max(q.trimmed, m.seq)
            q.counters[f"deaths:{reason}"] += 1
            target = q.target(reason)
            if not target:
                q.counters[f"dropped:{reason}"] += 1
                continue
            goal = self.found(target, now)
            if self._in_circle(target, q.name, reason, m.deaths):
                q.counters["dropped:cycle"] += 1
                continue
            same = [d for d in m.deaths if (d.queue, d.reason) == (q.name, reason)]
            why = description or (m.description if reason == "delivery_limit" else None)
            record = DeathRecord(
                q.name,
                reason,
                1 + sum(d.times for d in same),
                same[0].first if same else now,
                now,
                m.arrived,
                q.deadline(m),
                m.failures + cause,
                why,
            )
            deaths = (record, *(d for d in m.deaths if d not in same))
            letter = Msg(goal.next_seq(now), m.body, m.id or m.seq.decode(), m.headers, None, deaths)
            goal.messages.append(letter)
            goal.counters["enqueued"] += 1
            if goal is not q:
                goal.letters.append((letter.seq, goal.counters["enqueued"]))
            goals[target] = goal
        for goal in goals.values():
            goal.note_letters()

    @staticmethod
    def _in_circle(target: str, queue: str, reason: str, deaths: Sequence[DeathRecord]) -> bool:
        """The target is in the history, and nobody has rejected the message or sent it back since."""
        for at, why in [(queue, reason), *((d.queue, d.reason) for d in deaths)]:
            if why in ("rejected", "redriven"):
                return False
            if at == target:
                return True
        return False

    def _trim(self, q: ModelQueue, now: int, *, sweeps: bool = False) -> int:
        """The oldest go until the limits hold. Returns how many."""
        victims = []
        ready, size = q.ready, q.size
        while (q.drops_head or (sweeps and q.letters_came)) and ready and q.over(len(ready), size):
            victims.append(ready.pop(0))
            size -= len(victims[-1].body)
        self.bury(q, now, "maxlen", victims)
        q.may_exceed = False
        return len(victims)

    def _give_back(
        self,
        q: ModelQueue,
        now: int,
        messages: list[Msg],
        *,
        failed: bool,
        delay: int | None = None,
        description: str | None = None,
        ran_out: bool = False,
    ) -> int:
        """Leased or delayed messages return: spent, dead of their deadline (their number), or back in their place.

        A lease that ran out failed at its end, and without a `delay` the queue's pause begins there.
        """
        most = q.number("max_deliveries")
        spent = [m for m in messages if failed and most is not None and m.failures + 1 >= most]
        dead = [m for m in messages if m not in spent and q.expired(m, now)]
        dead.sort(key=lambda m: (q.deadline(m), m.seq))
        for m in messages:
            if m not in spent and m not in dead:
                at = m.until if ran_out else now
                ends = at + q.pause(m, at) if failed and delay is None else now + (delay or 0)
                if failed:
                    m.failures, m.description = m.failures + 1, description or m.description
                m.token = None
                m.state, m.until = "ready", 0
                if ends > now:
                    m.state, m.until = "delayed", ends if m.own is None else min(ends, m.own)
                    m.capped = q.retained(m)
        self.bury(q, now, "delivery_limit", spent, cause=1, description=description)
        self.bury(q, now, "expired", dead, cause=int(failed))
        return len(dead)

    def _return(self, q: ModelQueue, now: int, messages: list[Msg], **how: Any) -> None:
        """Messages return by a call. Under a limit those that are overdue go before, and the oldest afterwards."""
        if messages and q.drops_head and (q.number("max_length"), q.number("max_length_bytes")) != (None, None):
            self.bury(q, now, "expired", q.overdue(now))
        self._give_back(q, now, messages, **how)
        if messages:
            self._trim(q, now)

    def sweep(self, name: str, now: int) -> tuple[int, int]:
        """Overdue messages go first, then those over a limit. Then others return, and make room for themselves.

        Returns how many were overdue, also among those that return, and how many a limit has pushed out.
        """
        q = self.queues[name]
        for m in q.in_state("delayed"):  # after a change of options only a sweep looks at them
            m.capped = q.retained(m)
        overdue = q.overdue(now)
        self.bury(q, now, "expired", overdue)
        died = len(overdue)
        trimmed = self._trim(q, now, sweeps=True)
        lapsed = sorted((m for m in q.in_state("leased") if m.until <= now), key=lambda m: (int(m.token or 0), m.seq))
        died += self._give_back(q, now, lapsed, failed=True, ran_out=True)
        trimmed += self._trim(q, now, sweeps=True)
        due = sorted((m for m in q.in_state("delayed") if q.back_at(m) <= now), key=lambda m: (q.back_at(m), m.seq))
        died += self._give_back(q, now, due, failed=False)
        trimmed += self._trim(q, now, sweeps=True)
        q.letters_came = False
        return died, trimmed

    # Commands

    def enqueue(self, name: str, now: int, items: Sequence[Item], waiting: int) -> list[Msg | str]:
        """Returns for each item the message, or the limit that refused it. `waiting` consumers have not been woken."""
        q = self.queues[name]
        fresh: list[Msg] = []
        late: list[Msg] = []
        for item in items:
            own = q.own_ttl(item, now)
            seq = q.next_seq(now)
            fresh.append(Msg(seq, item.body, item.id, item.headers, None if own is None else now + own))
            if item.at is not None and own is not None and own <= 0:
                late.append(fresh[-1])
        return self._arrive(q, now, fresh, late, waiting)

    def schedule(self, name: str, now: int, items: Sequence[tuple[Item, int]]) -> list[tuple[Scheduled, int | None]]:
        """Messages with their due times. Returns the deadline of each, too, by the options of now."""
        q = self.queues[name]
        told = []
        for item, due in items:
            q.scheduled.append(Scheduled(q.next_seq(now), due, item))
            q.expect(due)
            told.append((q.scheduled[-1], self._ends(q, item, due)))
        q.ever_scheduled += len(told)
        return told

    @staticmethod
    def _ends(q: ModelQueue, item: Item, due: int) -> int | None:
        own, retention = q.own_ttl(item, due), q.number("message_ttl")
        return min([due + ttl for ttl in (own, retention) if ttl is not None], default=None)

    def cancel(self, name: str, id: str) -> int:
        q = self.queues[name]
        gone = q.named(id)
        q.scheduled = [s for s in q.scheduled if s not in gone]
        q.counters["cancelled"] += len(gone)
        return len(gone)

    def reschedule(self, name: str, id: str, due: int) -> int:
        q = self.queues[name]
        moved = q.named(id)
        for s in moved:
            s.due = due
            q.expect(due)
        return len(moved)

    def activate(self, name: str, now: int, waiting: int) -> int:
        """Due messages arrive, those without room perhaps not. Returns their number."""
        q = self.queues.get(name)
        if q is None or q.arrival_at is None or now < q.arrival_at <= (now + 1_000 if q.is_held_back else q.arrival_at):
            return 0
        waiting = min(waiting, q.room(now))
        due = sorted((s for s in q.scheduled if s.due <= now), key=lambda s: (s.due, s.seq))
        fresh, late = [], []
        retention = q.number("message_ttl")
        for s in due:
            own = q.own_ttl(s.item, s.due)
            ends = self._early(q, s, now)
            m = Msg(b"", s.item.body, s.item.id or s.seq.decode(), s.item.headers, ends)
            fresh.append(m)
            at_once = retention == 0 or (own is not None and own <= 0)
            if (own is not None and own <= 0 and s.item.at is not None) or (not at_once and (ends or now + 1) <= now):
                late.append(m)
        told = self._arrive(q, now, fresh, late, waiting, scheduled=True) if fresh else []
        held = [s for s, m in zip(due, fresh, strict=True) if len(told) < len(due) and m not in told]
        q.scheduled = [s for s in q.scheduled if s not in due or s in held]
        q.counters["activated"] += len(told)
        q.is_held_back = bool(held)
        q.arrival_at = now + 1_000 if held else min((s.due for s in q.scheduled), default=None)
        return len(told)

    def redrive(
        self, source: str, name: str, now: int, chosen: Sequence[bytes], waiting: int
    ) -> list[Msg | str | None]:
        """Returns for each of the chosen the message that it has become, the limit that refused it, or nothing."""
        q, d = self.queues[name], self.queues[source]
        letters = [m for seq in chosen if (m := d.find(seq)) and m.state == "ready" and not d.expired(m, now)]
        if not letters:
            return [None] * len(chosen)
        fresh = [self._sent_on(q, d, m, now, None) for m in letters]
        told = self._arrive(q, now, fresh, [], waiting, letters=dict(zip(fresh, letters, strict=True)), d=d)
        became = {m.seq: one for m, one in zip(letters, told, strict=True)}
        return [became.get(seq) for seq in chosen]

    @staticmethod
    def _sent_on(q: ModelQueue, d: ModelQueue, m: Msg, now: int, ends: int | None) -> Msg:
        """A message of `d` as it arrives in another queue, with this deadline of its own."""
        same = [r for r in m.deaths if (r.queue, r.reason) == (d.name, "redriven")]
        mark = DeathRecord(d.name, "redriven", 1, now, now, m.arrived, None, 0, None)
        deaths = (mark, *(r for r in m.deaths if r not in same))
        own = q.own_ttl(Item(b"", at=ends), now)
        ends = None if own is None else now + own
        return Msg(q.next_seq(now), m.body, m.id or m.seq.decode(), m.headers, ends, deaths)

    # Single messages

    @staticmethod
    def _chosen(q: ModelQueue, now: int, chosen: Sequence[bytes]) -> tuple[list[Msg], list[Scheduled], bytes]:
        """Those that have arrived, ready ones first, those that have not, and the place of a leased one."""
        arrived = [m for seq in chosen if (m := q.find(seq))]
        found = sorted((m for m in arrived if not q.expired(m, now)), key=lambda m: m.state == "delayed")
        leased = next((m.seq for m in arrived if m.state == "leased"), b"")
        return found, [s for seq in chosen for s in q.scheduled if s.seq == seq], leased

    def intervene(self, name: str, now: int, what: str, chosen: Sequence[bytes], description: str) -> tuple[int, bytes]:
        """Returns the number of messages, or the place of a leased one: then nothing happens."""
        q = self.queues[name]
        found, waiting, leased = self._chosen(q, now, chosen)
        if leased:
            return 0, leased
        if what == "redeliver":
            self._return(q, now, [m for m in found if m.state == "delayed"], failed=False, delay=0)
            for s in waiting:
                s.due = now
                q.expect(now)
            return len(found) + len(waiting), b""
        q.messages = [m for m in q.messages if m not in found]
        q.scheduled = [s for s in q.scheduled if s not in waiting]
        if what == "delete":
            q.counters.update(purged=len(found), cancelled=len(waiting))
        else:
            q.never_arrived += len(waiting)
            early = [Msg(s.seq, s.item.body, s.item.id, s.item.headers, self._early(q, s, now)) for s in waiting]
            self.bury(q, now, what, [*found, *early], description=description)
        return len(found) + len(waiting), b""

    def _early(self, q: ModelQueue, s: Scheduled, now: int) -> int | None:
        """The deadline of a scheduled message that ends before it has arrived."""
        own = q.own_ttl(s.item, s.due)
        return self._ends(q, s.item, s.due) if s.due < now else None if own is None else s.due + own

    def move(self, source: str, name: str, now: int, chosen: Sequence[bytes], waiting: int) -> tuple[int, bytes, str]:
        """Returns the number of messages; or the place of a leased one, or the limit that leaves no room."""
        q, d = self.queues[name], self.queues[source]
        found, later, leased = self._chosen(d, now, chosen)
        last = q.last
        fresh = [] if leased else [self._sent_on(q, d, m, now, m.own) for m in found]
        limit = self._no_room(q, now, fresh, waiting)
        if leased or limit:
            q.last = last
            return 0, leased, limit
        for s in later:
            item = Item(s.item.body, s.item.id or s.seq.decode(), s.item.ttl, s.item.at, s.item.headers)
            q.scheduled.append(Scheduled(q.next_seq(now), s.due, item))
            q.expect(s.due)
        q.ever_scheduled += len(later)
        d.scheduled = [s for s in d.scheduled if s not in later]
        d.never_arrived += len(later)
        d.counters["redriven"] += len(later)
        if fresh:
            self._arrive(q, now, fresh, [], waiting, letters=dict(zip(fresh, found, strict=True)), d=d)
        return len(found) + len(later), b"", ""

    def _no_room(self, q: ModelQueue, now: int, fresh: list[Msg], waiting: int) -> str:
        """The limit that leaves no room for one of the messages. What is decided is as in `_arrive`."""
        if q.drops_head:
            return ""
        must_wait, refused = self._plan(q, now, fresh, [], waiting)
        if must_wait:
            self.make_room(q, now)
            return self._no_room(q, now, fresh, waiting)
        return next(iter(refused.values()), "")

    def _plan(
        self, q: ModelQueue, now: int, fresh: list[Msg], late: list[Msg], waiting: int
    ) -> tuple[bool, dict[Msg, str]]:
        """Whether others must leave before messages arrive, and the messages without room."""
        live = [m for m in q.ready if not q.expired(m, now)]
        if waiting and q.drops_head and q.over(len(live), sum(len(m.body) for m in live)):
            return True, {}
        overdue = [m for m in q.overdue(now) if m.state == "ready"]
        mortal = [m for m in fresh if q.is_mortal(m, now)]
        vital = [m for m in fresh if m not in mortal]
        pressed = q.over(len(q.ready) + len(vital), q.size + sum(len(m.body) for m in vital)) is not None
        older, handed = self._handed(q, [m for m in fresh if m not in late], mortal, overdue, waiting, pressed=pressed)
        if older and overdue:
            return True, {}
        return False, self._refused(q, [m for m in vital if m not in handed], [*overdue, *older])

    def make_room(self, q: ModelQueue, now: int) -> None:
        """What is expired goes, and what a limit pushes out: that goes to no consumer."""
        self.bury(q, now, "expired", q.overdue(now))
        if q.drops_head:
            self._trim(q, now)

    def _arrive(
        self,
        q: ModelQueue,
        now: int,
        fresh: list[Msg],
        late: list[Msg],
        waiting: int,
        *,
        letters: Mapping[Msg, Msg] | None = None,
        d: ModelQueue | None = None,
        scheduled: bool = False,
    ) -> list[Msg | str]:
        """Messages arrive; where they were letters of `d`, those that find room leave it.

        Scheduled ones may be held back, from the first one without room on, but for those that come too late: then the
        result has fewer of them.
        """
        if self._plan(q, now, fresh, late, waiting)[0]:
            self.make_room(q, now)
        mortal = [m for m in fresh if q.is_mortal(m, now)]
        vital = [m for m in fresh if m not in mortal]
        pressed = q.over(len(q.ready) + len(vital), q.size + sum(len(m.body) for m in vital)) is not None
        dying = q.overdue(now) if pressed or mortal or d is not None else []
        overdue = [m for m in dying if m.state == "ready"]
        older, handed = self._handed(q, [m for m in fresh if m not in late], mortal, overdue, waiting, pressed=pressed)
        q.charge(now, len(older) + len(handed))
        for m in [*older, *handed]:
            m.state, m.until = "leased", now + PICKUP
        dead = [m for m in mortal if m not in handed]
        refused = self._refused(q, [m for m in vital if m not in handed], overdue)
        if scheduled:
            if refused and q.holds_arrivals:
                first = fresh.index(next(iter(refused)))
                fresh = [m for i, m in enumerate(fresh) if i < first or m in late]
                dead, refused = [m for m in dead if m in fresh], {}
            for m in fresh:
                m.seq = q.next_seq(now)

        q.messages += [m for m in fresh if m not in dead and m not in refused]
        q.counters["enqueued"] += len(fresh) - len(refused)
        q.counters["refused"] += len(refused)
        if d is not None and letters is not None:
            gone = [letters[m] for m in fresh if m not in refused]
            d.messages = [m for m in d.messages if m not in gone]
            d.counters["redriven"] += len(gone)
        self.bury(q, now, "expired", dead)
        if d is None and q.options.get("overflow") == "reject-publish-dlx" and q.target("maxlen"):
            self.bury(q, now, "maxlen", refused)
            q.refused_deaths += len(refused)
        self.bury(q, now, "expired", dying)
        if pressed:
            self._trim(q, now)
        return [refused.get(m, m) for m in fresh]

    @staticmethod
    def _handed(
        q: ModelQueue, timely: list[Msg], mortal: list[Msg], overdue: list[Msg], waiting: int, *, pressed: bool
    ) -> tuple[list[Msg], list[Msg]]:
        """The ready and the arriving messages that go to consumers that wait, in the order of the queue."""
        ready = [m for m in q.ready if m not in overdue]
        reached = timely[: max(0, waiting - len(ready))]
        if pressed:
            return ready[:waiting], reached
        handed = timely[: max((timely.index(m) + 1 for m in reached if m in mortal), default=0)]
        return ready if handed else [], handed

    @staticmethod
    def _refused(q: ModelQueue, arriving: list[Msg], overdue: list[Msg]) -> dict[Msg, str]:
        """Return the messages without room, each with the limit that it meets."""
        refused: dict[Msg, str] = {}
        count = len(q.ready) - len(overdue)
        size = q.size - sum(len(m.body) for m in overdue)
        for m in [] if q.drops_head else arriving:
            limit = q.over(count + 1, size + len(m.body))
            if limit:
                refused[m] = limit
            else:
                count, size = count + 1, size + len(m.body)
        return refused

    def receive(
        self,
        name: str,
        now: int,
        count: int,
        lease: int,
        *,
        auto: bool,
        finished: Sequence[Pair],
        again: bool,
        due: int | None,
        ticket: bytes = b"",
        late: Sequence[bytes] = (),
        others: int = 0,
    ) -> Taken:
        """`due` is when the queue believes to be due.

        For a consumer that leaves, `late` has the wake-up list, and `others` is the number of those that still wait.
        """
        q = self.queues[name]
        lost = self.ack(name, now, finished, again=again)
        if due is not None and due <= now:
            self.sweep(name, now)
        taken = self._shown(q, now, ticket, late, others, leaves=not count)
        handed = len(taken)
        taken += [m for m in q.ready if not q.expired(m, now)][: min(count - handed, q.room(now))]
        q.charge(now, len(taken) - handed, looks=True)
        q.counters["delivered"] += len(taken)
        q.counters["redelivered"] += sum(m.failures > 0 for m in taken)
        for m in taken:
            m.state, m.until, m.token = "leased", now + lease, None
            if auto:
                q.messages.remove(m)
                q.counters["acked"] += 1
        return Taken(taken, lost)

    def _shown(
        self, q: ModelQueue, now: int, ticket: bytes, late: Sequence[bytes], others: int, *, leaves: bool
    ) -> list[Msg]:
        """The message of the first ticket that holds, unless the consumer `leaves`.

        It goes back if its time has ended on the way (a TTL of 0 had ended before), in a pause, and if it is nobody's.
        """
        taken: list[Msg] = []
        back: list[Msg] = []

        def show(ticket: bytes, *, is_spare: bool) -> None:
            seq, _, token = ticket.partition(b" ")
            m = q.find(seq)
            if m is not None and m.state == "leased" and m.token is None:
                m.token = token  # it was handed over in this operation
            if m is not None and q.held(m, token, now):
                over = q.expired(m, now) and not q.expired(m, int(seq[:13]))
                (back if is_spare or over or q.options.get("paused") else taken).append(m)

        show(ticket, is_spare=leaves)
        rest = list(late)
        for _ in range(0 if leaves else 10):
            if not taken and rest:
                show(rest.pop(0), is_spare=False)
        rest = [one for one in rest if one]
        for _ in range(min(10, len(rest) - others)):
            show(rest.pop(), is_spare=True)
        self._return(q, now, back, failed=False)
        return taken

    def _split(
        self, q: ModelQueue, now: int, pairs: Sequence[Pair], *, again: bool, gives_back: bool = False
    ) -> tuple[list[Msg], list[bytes]]:
        """Deliveries that may be settled, and those whose lease is lost.

        After a lost reply, what is gone is neither; what is back is neither where it was to be given back. Of those
        nobody knows their end if the lease is over: they are noted in `unknown`.
        """
        held: list[Msg] = []
        lost: list[bytes] = []
        self.unknown = []
        for seq, token in pairs:
            m = q.find(seq)
            if m is not None and q.held(m, token, now):
                held.append(m)
            elif not again or (m is not None and (m.state == "leased" or not gives_back)):
                lost.append(seq)
            elif int(token) // 1000 <= now:
                self.unknown.append(seq)
        return held, lost

    def ack(self, name: str, now: int, pairs: Sequence[Pair], *, again: bool) -> list[bytes]:
        q = self.queues[name]
        held, lost = self._split(q, now, pairs, again=again)
        q.messages = [m for m in q.messages if m not in held]
        q.counters["acked"] += len(held)
        return lost

    def nack(
        self,
        name: str,
        now: int,
        pairs: Sequence[Pair],
        *,
        again: bool,
        delay: int | None,
        counted: bool,
        description: str | None,
    ) -> list[bytes]:
        q = self.queues[name]
        held, lost = self._split(q, now, pairs, again=again, gives_back=True)
        self._return(q, now, held, failed=counted, delay=delay, description=description if counted else None)
        return lost

    def reject(
        self, name: str, now: int, pairs: Sequence[Pair], *, again: bool, description: str | None
    ) -> list[bytes]:
        q = self.queues[name]
        held, lost = self._split(q, now, pairs, again=again)
        self.bury(q, now, "rejected", held, cause=1, description=description)
        return lost

    def renew(self, name: str, now: int, pairs: Sequence[Pair], lease: int) -> tuple[list[Msg], list[bytes]]:
        held, lost = self._split(self.queues[name], now, pairs, again=False)
        for m in held:
            m.until, m.token = now + lease, None
        return held, lost

    def purge(self, name: str, chosen: Iterable[bytes] | None = None) -> int:
        """All ready messages go unread, or the chosen ones of them by a decision."""
        q = self.queues[name]
        gone = [m for m in q.ready if chosen is None or m.seq in chosen]
        q.messages = [m for m in q.messages if m not in gone]
        q.counters["purged"] += len(gone)
        if chosen is None:
            q.unmarked = len(q.letters)
            q.trimmed = max([q.trimmed, *[m.seq for m in gone]])
        return len(gone)

    def delete(self, name: str) -> int:
        """The queue is gone, and its trace stays, with the lost messages. Returns the number of ready messages."""
        q = self.queues.pop(name)
        held = max([m.seq for m in q.messages], default=b"0-0")
        if max(held, q.trimmed) > b"0-0":
            self.gone[name] = (held, q.trimmed)
        self.gone.setdefault(name, (b"0-0", b"0-0"))
        return len(q.ready)
