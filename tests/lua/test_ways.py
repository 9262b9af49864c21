"""Rules that hold on all ways of all scripts: one call of every kind, each on the state that makes it go its way.

While Redis has no memory left, producers are refused and consumers go on: Redis judges memory only until the first
write of a script. And every key that a script touches is among its KEYS, shown by a user who may touch nothing else.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis

from rqttl import Broker, Message, OptionArguments, QueueOptions
from rqttl.protocol import commands
from rqttl.protocol.commands import Command, Presence, Word
from tests.encoded import enqueue_encoded
from tests.lua.states import NOW, Lab, State, at, enqueue, place, plain, plain_options, token
from tests.servers import Server


@dataclass(frozen=True)
class Scenario:
    """A call, and the queue `orders` that it meets. `target` says whether the queue `dead` exists."""

    call: Callable[[Lab], Command]
    options: Mapping[str, Any] = field(default_factory=dict)
    parts: Mapping[str, Any] = field(default_factory=dict)
    target: bool = True

    def prepare(self, lab: Lab) -> Command:
        """Put the state into Redis and return the call."""
        if self.target:
            lab.seed("dead", options={"max_length": 1}, waiters={"w": NOW + 9}, log=plain(place(-99)))
        lab.seed("source", **_MIXED)
        lab.seed(options=self.options, **self.parts)
        return self.call(lab)


def _enqueue(*messages: object) -> Callable[[Lab], Command]:
    return lambda lab: enqueue(lab, *messages)


def _publish(message: Message) -> Callable[[Lab], Command]:
    """A call that stores copies in `orders` and in another queue."""

    def call(lab: Lab) -> Command:
        lab.seed("other")
        lab.seed("topic", {"duplicate_window": 9})
        return commands.publish(
            lab.known("topic"),
            [(lab.known(name), []) for name in ("other", "orders")],
            [commands.pack(message)],
            now=NOW,
        )

    return call


def _pass_on(mark: str = "") -> Callable[[Lab], Command]:
    """A call that stores copies of a message of `topic` in `orders`, and with a `mark` leaves the message there."""

    def call(lab: Lab) -> Command:
        dead = (b";1;44;xfar expired 1 1700000000000 1700000000000 - 1 0 \x92", b"a")
        log = {place(-9): (at(5), b"a")} if mark else {place(-9): (at(5), b"a"), place(-8): dead}
        lab.seed("topic", log=log, expiry={place(-9): NOW + 5}, failures={place(-9): 1})
        return commands.pass_on(lab.known("topic"), [(lab.known(), [])], [*log], mark=mark, now=NOW)

    return call


def _receive(count: int = 10, **words: Any) -> Callable[[Lab], Command]:
    return lambda lab: commands.receive(lab.known(), count, 1000, now=NOW, **words)


def _schedule(due: bytes = b"+5", **words: Any) -> Callable[[Lab], Command]:
    packed = [(due, *commands.pack(Message(b"a", id="id", ttl="9ms")))]
    return lambda lab: commands.schedule(lab.known(), packed, now=NOW, **words)


def _reschedule(id: str) -> Callable[[Lab], Command]:
    return lambda lab: commands.reschedule(lab.keyspace, "orders", id, b"+3", now=NOW)


def _nack(**words: Any) -> Callable[[Lab], Command]:
    return lambda lab: commands.nack(lab.known(), _HELD, now=NOW, **words)


def _preview(options: Mapping[str, Any]) -> Callable[[Lab], Command]:
    after = QueueOptions.read_stored("orders", options)
    return lambda lab: commands.preview(lab.known(), after, commands.Walk(), now=NOW)


def _intervene(what: str) -> Callable[[Lab], Command]:
    places = [place(-9), place(-8, 1), place(-6), place(-5)]
    return lambda lab: commands.intervene(lab.known(), what, places, description=b"why", now=NOW)


def _move(*places: str, dry: bool = False) -> Callable[[Lab], Command]:
    return lambda lab: commands.move(lab.known(), "source", [*places], dry=dry, now=NOW)


_HELD: list[Word] = [place(-9), token(50), place(-8, 1), token(50)]
#: Calls without a choice.
_CALLS: dict[str, Callable[[Lab], Command]] = {
    "reject": lambda lab: commands.reject(lab.known(), _HELD, now=NOW, description=b"no"),
    "redrive": lambda lab: commands.redrive(lab.known(), "dead", [place(-99), place(-98)], now=NOW),
    "redrive_in": lambda lab: commands.redrive_in(
        lab.known(), "far", [place(-9), b"", b"x"], number=1, token="t", now=NOW
    ),
    "ack": lambda lab: commands.ack(lab.keyspace, "orders", _HELD, now=NOW),
    "renew": lambda lab: commands.renew(lab.keyspace, "orders", _HELD, lease=1000, now=NOW),
    "sweep": lambda lab: commands.sweep(lab.known(), now=NOW),
    "stats": lambda lab: commands.stats(lab.known(), now=NOW),
    "purge": lambda lab: commands.purge(lab.keyspace, "orders", ""),
    "purge_these": lambda lab: commands.purge(lab.keyspace, "orders", "", [place(-9), place(-8, 1), place(-7)]),
    "discard": lambda lab: commands.discard(lab.keyspace, "orders", NOW, place(-99), place(-8)),
    "peek": lambda lab: commands.peek(lab.keyspace, "orders", after="", limit=10, now=NOW),
    "touch": lambda lab: commands.touch(lab.keyspace, "orders", now=NOW),
    "delete": lambda lab: commands.delete(lab.keyspace, "orders", if_unused=True, if_empty=False, now=NOW),
}
_DEAD = {"dead_letter": "dead"}
_COMING: dict[str, Any] = {
    "scheduled": {place(-6): NOW, place(-5): NOW + 5},
    "upcoming": {place(-6): (b"+9;2;;id", b"x"), place(-5): (b";2;;id", b"y")},
    "scheduled_ids": {"id": f"{place(-6)} {place(-5)}"},
}
_WAITING = {"waiters": {"w": NOW + 9}}
#: Two consumers wait at a queue that is full, and the first message in it is theirs.
_FULL = {"max_length": 1, "overflow": "reject-publish"}
_PRESSED = {"log": plain(place(-9), place(-8)), "waiters": {"v": NOW + 9, "w": NOW + 9}}
_READY = {"log": plain(place(-9), place(-8, 1))}
_RETURNED = {"detached": plain(place(-9)), "requeued": {place(-9): NOW - 9}, "failures": {place(-9): 1}}
_OVER = {"log": {place(-9): (at(0), b"x"), **plain(place(-8))}, "expiry": {place(-9): NOW}}
_LEASED = {
    "log": plain(place(-9), place(-8, 1), place(-7)),
    "leases": {place(-9): token(50), place(-8, 1): token(50)},
    "failures": {place(-9): 1},
}
_LATE = {"log": plain(place(-9), place(-7)), "leases": {place(-9): token(0)}, "failures": {place(-9): 1}}
_DELAYED = {"log": plain(place(-9)), "delayed": {place(-9): NOW}}
_HANDED: dict[str, Any] = {
    "log": plain(place(-9)),
    "leases": {place(-9): token(50)},
    "wakeup": [f"{place(-9)} {token(50)}"],
}
_TAKEN = {"log": _HANDED["log"], "leases": _HANDED["leases"]}
#: A log of 75 nodes, of messages that the record calls small: as if most had gone from the middle.
_SURVIVORS = {"log": {place(-9, i): (b"", b"x" * 3500) for i in range(150)}, "meta": {"ready_bytes": 150}}
#: A retention that is new to messages which are away for longer.
_UNCAPPED = {"log": plain(place(-9)), "delayed": {place(-9): NOW + 50}, "meta": {"due_at": 0}}
_MORTAL = {"expires": 5, "auto_delete_on_idle": 9}
_PASSES: dict[str, Any] = {"meta": {"passes_on": 1, "option_set": "custom"}}
_PAST = {"meta": {"last_used_at": NOW - 5, "last_active_at": NOW - 5}}

#: A ready message, a delayed one that was returned before, and scheduled ones.
_MIXED: dict[str, Any] = {
    **_COMING,
    "log": plain(place(-9), place(-8, 1)),
    "delayed": {place(-8, 1): NOW + 50},
    "failures": {place(-8, 1): "1 why"},
}

#: Ways through `enqueue`.
PRODUCERS = {
    "stored": Scenario(_enqueue(b"a")),
    "stored with a deadline": Scenario(_enqueue(Message(b"a", ttl="5ms"))),
    "stored where there is a lifetime": Scenario(_enqueue(b"a"), _MORTAL, {"meta": {"last_active_at": NOW - 1}}),
    "stored where duplicates are known": Scenario(
        _enqueue(Message(b"a", id="new"), Message(b"b", id="old")),
        {"duplicate_window": 9},
        {"dedup": {";3;;old": NOW - 8, ";1;;x": NOW - 9}},
    ),
    "a duplicate only": Scenario(
        _enqueue(Message(b"b", id="old")), {"duplicate_window": 9}, {"dedup": {";3;;old": NOW}}
    ),
    "stored where the call knows duplicates": Scenario(
        lambda lab: enqueue_encoded(lab.known(), [(b";3;;new", b"a"), (b";3;;old", b"b")], window=9, now=NOW),
        parts={"dedup": {";1;;x": NOW - 9}, "dedup_ids": [";3;;old"], "dedup_windows": {";3;;old": NOW + 8}},
    ),
    "stored, with a wake-up": Scenario(_enqueue(b"a"), parts=_WAITING),
    "dead on arrival, no target": Scenario(_enqueue(Message(b"a", ttl=0))),
    "dead on arrival": Scenario(_enqueue(Message(b"a", ttl=0)), _DEAD),
    "dead on arrival, target to be made": Scenario(_enqueue(Message(b"a", ttl=0)), _DEAD, target=False),
    "handed over": Scenario(_enqueue(Message(b"a", ttl=0)), parts=_WAITING),
    "handed over past a limit": Scenario(_enqueue(b"a"), {"max_length": 0}, _WAITING),
    "head dropped": Scenario(_enqueue(b"a"), {"max_length": 1}, _READY),
    "head dead-lettered": Scenario(_enqueue(b"a"), {"max_length": 1, **_DEAD}, _READY),
    "returned head dead-lettered": Scenario(_enqueue(b"a"), {"max_length": 1, **_DEAD}, _RETURNED),
    "own end kept": Scenario(_enqueue(b"a", b"b"), {"max_length": 1, **_DEAD}),
    "refused": Scenario(_enqueue(b"a"), {"max_length": 1, "overflow": "reject-publish"}, _READY),
    "refused and dead-lettered": Scenario(
        _enqueue(b"a"), {"max_length": 1, "overflow": "reject-publish-dlx", **_DEAD}, _READY
    ),
    "published": Scenario(_publish(Message(b"a", id="x", ttl="5ms")), parts=_WAITING),
    "published, dead on arrival": Scenario(_publish(Message(b"a", ttl=0)), _DEAD, target=False),
    "published and handed over": Scenario(_publish(Message(b"a", ttl=0)), parts=_WAITING),
    "published where duplicates are known": Scenario(
        _publish(Message(b"a", id="x")), {"duplicate_window": 9}, {"dedup": {";1;;x": NOW, ";1;;y": NOW - 9}}
    ),
    "published, head dead-lettered": Scenario(_publish(Message(b"a")), {"max_length": 1, **_DEAD}, _READY),
    "published where two consumers wait at a queue that drops": Scenario(
        _publish(Message(b"a")), {"max_length": 2}, _PRESSED
    ),
    "passed on": Scenario(_pass_on(), parts=_WAITING),
    "passed on in a step": Scenario(_pass_on(mark=f"{place(-9)} orders")),
    "passed on where it is passed on again": Scenario(_pass_on(), parts=_PASSES),
    "passed on, head dead-lettered": Scenario(_pass_on(), {"max_length": 1, **_DEAD}, _READY),
    "passed on, dead on arrival": Scenario(_pass_on(), {"max_ttl": 0, **_DEAD}, target=False),
    "scheduled": Scenario(_schedule(), parts=_WAITING),
    "scheduled for now": Scenario(_schedule(b"@0")),
    "scheduled where there is a lifetime": Scenario(_schedule(), _MORTAL, {"meta": {"last_active_at": NOW - 1}}),
    "scheduled where duplicates are known": Scenario(
        _schedule(window=9), {"duplicate_window": 9}, {"dedup": {";1;;x": NOW - 9}}
    ),
    "scheduled, a duplicate only": Scenario(_schedule(), {"duplicate_window": 9}, {"dedup": {";2;;id": NOW}}),
    "redriven": Scenario(_CALLS["redrive"]),
    "redriven where there is a lifetime": Scenario(_CALLS["redrive"], _MORTAL, {"meta": {"last_active_at": NOW - 1}}),
    "redriven, with a wake-up": Scenario(_CALLS["redrive"], {"max_ttl": 9}, _WAITING),
    "redriven and handed over": Scenario(_CALLS["redrive"], {"message_ttl": 0}, _WAITING),
    "redriven, dead again, no target": Scenario(_CALLS["redrive"], {"default_ttl": 0}),
    "redriven, dead again": Scenario(_CALLS["redrive"], {"default_ttl": 0, **_DEAD}),
    "redriven, the head dropped": Scenario(_CALLS["redrive"], {"max_length": 1}, _READY),
    "redriven, the head in exchange": Scenario(_CALLS["redrive"], {"max_length": 1, **_DEAD}, _READY),
    "redriven, the returned head elsewhere": Scenario(
        _CALLS["redrive"], {"max_length": 0, "dead_letter": "more"}, _RETURNED
    ),
    "moved": Scenario(_move(place(-9), place(-8, 1), place(-6), place(-5)), parts=_WAITING),
    "moved where two consumers wait at a full queue": Scenario(_move(place(-9)), _FULL, _PRESSED),
    "redriven where two consumers wait at a full queue": Scenario(_CALLS["redrive"], _FULL, _PRESSED),
    "redriven between slots where two consumers wait at a full queue": Scenario(_CALLS["redrive_in"], _FULL, _PRESSED),
    "stored where two consumers wait at a full queue": Scenario(_enqueue(b"a", b"b"), _FULL, _PRESSED),
    "stored where two consumers wait at a queue that drops": Scenario(
        _enqueue(b"a", b"b"), {"max_length": 2}, _PRESSED
    ),
    "moved, the head in exchange": Scenario(_move(place(-9)), {"max_length": 1, **_DEAD}, _READY),
    "redriven in vain": Scenario(
        _CALLS["redrive"], {"max_length": 1, "overflow": "reject-publish-dlx", **_DEAD}, _READY
    ),
    "room made by the expired": Scenario(
        _enqueue(b"a"), {"max_length": 2, "overflow": "reject-publish", **_DEAD}, _OVER
    ),
}

#: Ways through all that settles, looks, sweeps or removes.
CONSUMERS = {
    "ack": Scenario(_CALLS["ack"], parts=_LEASED),
    "redrive of what is gone": Scenario(
        lambda lab: commands.redrive(lab.known(), "dead", [place(-98)], now=NOW), {"max_length": 1, **_DEAD}, _READY
    ),
    "redrive from a queue that is gone": Scenario(
        lambda lab: commands.redrive(lab.known(), "nobody", [place(-98)], now=NOW).as_replay(), parts=_READY
    ),
    "ack of what is lost": Scenario(_CALLS["ack"], parts=_READY),
    "nack": Scenario(_nack(), parts=_LEASED),
    "nack, with a wake-up": Scenario(_nack(), parts={**_LEASED, **_WAITING}),
    "nack with a delay": Scenario(_nack(delay=5), parts=_LEASED),
    "nack with a description": Scenario(_nack(description=b"why"), parts=_LEASED),
    "nack with a pause": Scenario(_nack(description=b"why"), {"redelivery_delay": "5ms"}, _LEASED),
    "nack of the last delivery, described before": Scenario(
        _nack(), {"max_deliveries": 2, **_DEAD}, {**_LEASED, "failures": {place(-9): "1 why"}}
    ),
    "nack of what is lost": Scenario(_nack(), parts=_READY),
    "nack beyond a limit": Scenario(_nack(), {"max_length": 1, **_DEAD}, _LEASED),
    "nack of the last delivery": Scenario(_nack(), {"max_deliveries": 1, **_DEAD}, _LEASED),
    "nack after the deadline": Scenario(_nack(), {"message_ttl": 8, **_DEAD}, _LEASED, target=False),
    "reject": Scenario(_CALLS["reject"], _DEAD, _LEASED),
    "reject, target to be made": Scenario(_CALLS["reject"], _DEAD, _LEASED, target=False),
    "reject without a target": Scenario(_CALLS["reject"], {}, _LEASED),
    "reject into itself": Scenario(_CALLS["reject"], {"dead_letter_rejected": "{queue}"}, {**_LEASED, **_WAITING}),
    "reject of what is lost": Scenario(_CALLS["reject"], _DEAD, _READY),
    "renew": Scenario(_CALLS["renew"], parts=_LEASED),
    "renew of what is lost": Scenario(_CALLS["renew"], parts=_READY),
    "receive": Scenario(_receive(), parts=_READY),
    "receive, others wait": Scenario(_receive(1), parts={**_READY, **_WAITING}),
    "receive what was returned": Scenario(_receive(), parts=_RETURNED),
    "receive for good": Scenario(_receive(auto_ack=True), parts=_RETURNED),
    "receive nothing": Scenario(_receive()),
    "receive nothing from a queue that is looked at for nothing": Scenario(_receive(), parts={"meta": {"due_at": 0}}),
    "receive nothing, and wait": Scenario(_receive(presence=Presence("me", 99, 99))),
    "receive nothing, and wait no longer": Scenario(_receive(presence=Presence("me")), parts=_WAITING),
    "receive what was handed over": Scenario(
        _receive(1, presence=Presence("me", 9, 9, _HANDED["wakeup"][0].encode())), parts=_TAKEN
    ),
    "receive what was handed over meanwhile": Scenario(_receive(1, presence=Presence("me")), parts=_HANDED),
    "receive past the expired": Scenario(_receive(), _DEAD, _OVER),
    "receive past the expired that are not due": Scenario(
        _receive(), _DEAD, {**_OVER, "meta": {"due_at": ""}}, target=False
    ),
    "receive what a lost lease gives back": Scenario(_receive(), parts=_LATE),
    "finish and receive": Scenario(_receive(finished=_HELD), parts=_LEASED),
    "finish only": Scenario(_receive(0, finished=_HELD, presence=Presence("me", -1, 99)), parts=_LEASED),
    "receive where there is a lifetime": Scenario(_receive(), _MORTAL, {**_READY, "consumers": {"c": NOW + 3}}),
    "peek where there is a lifetime": Scenario(
        _CALLS["peek"], _MORTAL, {**_READY, "meta": {"last_active_at": NOW - 1}}
    ),
    "cancel": Scenario(
        lambda lab: commands.cancel(lab.keyspace, "orders", "id", now=NOW),
        {"duplicate_window": 9},
        {**_COMING, "dedup": {";2;;id": NOW}},
    ),
    "cancel nothing": Scenario(lambda lab: commands.cancel(lab.keyspace, "orders", "none", now=NOW), _MORTAL),
    "reschedule": Scenario(_reschedule("id"), _MORTAL, {**_COMING, **_WAITING}),
    "reschedule nothing": Scenario(_reschedule("none"), parts=_COMING),
    "receive where a message has to arrive": Scenario(_receive(), parts=_COMING),
    "stats where a message has to arrive": Scenario(_CALLS["stats"], parts=_COMING),
    "sweep that lets arrive": Scenario(_CALLS["sweep"], parts={**_COMING, **_WAITING}),
    "sweep that lets arrive past a limit": Scenario(
        _CALLS["sweep"], {"max_length": 2, **_DEAD}, {**_COMING, **_READY}, target=False
    ),
    "sweep where messages are passed on": Scenario(_CALLS["sweep"], parts={**_READY, **_PASSES}),
    "sweep that lets arrive what is passed on": Scenario(_CALLS["sweep"], parts={**_COMING, **_PASSES}),
    "reject into a queue that passes on": Scenario(
        _CALLS["reject"], {"dead_letter_rejected": "{queue}"}, {**_LEASED, **_PASSES}
    ),
    "sweep that lets die what arrives too late": Scenario(
        _CALLS["sweep"], _DEAD, {**_COMING, "scheduled": {place(-6): NOW - 9, place(-5): NOW}}, target=False
    ),
    "sweep that holds back what has to arrive": Scenario(
        _CALLS["sweep"], {"max_length": 2, "overflow": "reject-publish"}, {**_COMING, **_READY}
    ),
    "sweep that lets arrive where two consumers wait at a full queue": Scenario(
        _CALLS["sweep"], _FULL, {**_COMING, **_PRESSED}
    ),
    "sweep of half a message": Scenario(_CALLS["sweep"], parts={"scheduled": _COMING["scheduled"]}),
    "sweep that retires, dead-lettering the scheduled": Scenario(
        _CALLS["sweep"], {**_MORTAL, "on_expire": "dead-letter", **_DEAD}, {**_COMING, **_PAST}
    ),
    "delete of chosen ones": Scenario(_intervene("delete"), {"duplicate_window": 9}, _MIXED),
    "expiry of chosen ones": Scenario(_intervene("expired"), _DEAD, _MIXED, target=False),
    "rejection of chosen ones into itself": Scenario(
        _intervene("rejected"), {"dead_letter_rejected": "{queue}"}, {**_MIXED, **_WAITING}
    ),
    "redelivery": Scenario(_intervene("redeliver"), parts={**_MIXED, **_WAITING}),
    "redelivery beyond a limit": Scenario(_intervene("redeliver"), {"max_length": 1, **_DEAD}, _MIXED, target=False),
    "move without room": Scenario(_move(place(-9)), _FULL, _READY),
    "move without room, where two consumers wait": Scenario(_move(place(-9), place(-8, 1)), _FULL, _PRESSED),
    "dry move where two consumers wait": Scenario(_move(place(-9), dry=True), _FULL, _PRESSED),
    "touch": Scenario(_CALLS["touch"]),
    "touch where there is a lifetime": Scenario(_CALLS["touch"], _MORTAL, {"meta": {"last_used_at": NOW - 4}}),
    "sweep that retires": Scenario(_CALLS["sweep"], _MORTAL, {**_LEASED, **_PAST}),
    "sweep that retires, dead-lettering the ready": Scenario(
        _CALLS["sweep"], {**_MORTAL, "on_expire": "dead-letter", **_DEAD}, {**_READY, **_PAST}, target=False
    ),
    "sweep that retires, dead-lettering the leased": Scenario(
        _CALLS["sweep"],
        {**_MORTAL, "on_expire": "dead-letter", **_DEAD},
        {"log": plain(place(-9)), "leases": {place(-9): token(50)}, **_PAST},
    ),
    "sweep that retires, dead-lettering the delayed": Scenario(
        _CALLS["sweep"], {**_MORTAL, "on_expire": "dead-letter", **_DEAD}, {**_DELAYED, **_PAST}
    ),
    "sweep that forgets": Scenario(
        _CALLS["sweep"], {"duplicate_window": 9}, {"dedup": {";3;;old": NOW - 9, ";3;;new": NOW}}
    ),
    "sweep that forgets what calls have remembered": Scenario(
        _CALLS["sweep"], {}, {"dedup_ids": ["a", "b", "c"], "dedup_windows": {"a\nb": NOW, "c": NOW + 1}}
    ),
    "sweep that keeps": Scenario(_CALLS["sweep"], {**_MORTAL, "on_expire": "keep"}, {**_READY, **_PAST}),
    "sweep of nothing": Scenario(_CALLS["sweep"], parts={"meta": {"due_at": 0}}),
    "sweep that reclaims": Scenario(_CALLS["sweep"], parts={**_LATE, **_WAITING}),
    "sweep that reclaims, with a pause": Scenario(
        _CALLS["sweep"],
        {"redelivery_delay": "5ms", "redelivery_jitter": 0.5},
        {**_LATE, "failures": {place(-9): "1 why"}},
    ),
    "sweep that reclaims the spent": Scenario(_CALLS["sweep"], {"max_deliveries": 2, **_DEAD}, _LATE),
    "sweep that promotes": Scenario(_CALLS["sweep"], parts={**_DELAYED, **_WAITING}),
    "sweep that promotes the expired": Scenario(_CALLS["sweep"], {"message_ttl": 9, **_DEAD}, _DELAYED),
    "sweep that expires": Scenario(_CALLS["sweep"], _DEAD, _OVER),
    "sweep that expires into a new queue": Scenario(_CALLS["sweep"], _DEAD, _OVER, target=False),
    "sweep that expires by retention": Scenario(_CALLS["sweep"], {"message_ttl": 8, **_DEAD}, _READY),
    "sweep that trims": Scenario(_CALLS["sweep"], {"max_length": 1, **_DEAD}, _READY),
    "sweep that compacts": Scenario(_CALLS["sweep"], parts=_SURVIVORS),
    "sweep after a shorter retention": Scenario(_CALLS["sweep"], {"message_ttl": 20}, _UNCAPPED),
    "receive after a shorter retention": Scenario(_receive(), {"message_ttl": 20}, _UNCAPPED),
    "stats after a shorter retention": Scenario(_CALLS["stats"], {"message_ttl": 20}, _UNCAPPED),
    "nack with a delay beyond retention": Scenario(_nack(delay=5000), {"message_ttl": 1000}, _LEASED),
    "stats": Scenario(_CALLS["stats"], parts=_LEASED),
    "stats of a queue that is looked at for nothing": Scenario(_CALLS["stats"], parts={"meta": {"due_at": 0}}),
    "stats with a wake-up": Scenario(_CALLS["stats"], parts={**_READY, **_WAITING}),
    "stats that expires": Scenario(_CALLS["stats"], _DEAD, _OVER, target=False),
    "stats that reclaims": Scenario(_CALLS["stats"], parts={**_LATE, **_WAITING}),
    "peek": Scenario(_CALLS["peek"], parts={**_LEASED, **_RETURNED}),
    "purge": Scenario(_CALLS["purge"], parts={**_READY, **_RETURNED}),
    "purge with some out": Scenario(_CALLS["purge"], parts=_LEASED),
    "purge of nothing": Scenario(_CALLS["purge"]),
    "purge of nothing with some out": Scenario(_CALLS["purge"], parts=_DELAYED),
    "purge of the chosen": Scenario(_CALLS["purge_these"], parts=_LEASED),
    "purge of the chosen that were returned": Scenario(_CALLS["purge_these"], parts=_RETURNED),
    "purge of the chosen that have a deadline": Scenario(_CALLS["purge_these"], parts=_OVER),
    "purge of the chosen that are gone": Scenario(_CALLS["purge_these"], parts=_DELAYED),
    "discard": Scenario(_CALLS["discard"], parts=_READY),
    "discard of what was returned": Scenario(_CALLS["discard"], parts=_RETURNED),
    "discard with some out": Scenario(_CALLS["discard"], parts=_LEASED),
    "discard of nothing": Scenario(_CALLS["discard"]),
    "delete": Scenario(_CALLS["delete"], parts=_LEASED),
    "lookup": Scenario(lambda lab: commands.lookup(lab.keyspace, "orders")),
    "preview of a shorter retention": Scenario(_preview({"message_ttl": "8ms"}), parts={**_READY, **_RETURNED}),
    "preview of a lower limit": Scenario(_preview({"max_length": 0, "max_length_bytes": 1}), parts=_READY),
    "preview of nothing": Scenario(_preview({}), parts=_LEASED),
    "update": Scenario(lambda lab: commands.update(lab.known(), plain_options()), {"max_length": 5}),
}

#: What makes a queue.
MAKERS = {
    "declare": Scenario(lambda lab: commands.declare(lab.keyspace, plain_options("new", max_length=5))),
    "declare again": Scenario(lambda lab: commands.declare(lab.keyspace, plain_options(), now=NOW)),
    "declare again, mortal": Scenario(
        lambda lab: commands.declare(lab.keyspace, plain_options(expires="1h"), now=NOW + 5),
        options={"expires": 3_600_000},
    ),
    "adopt": Scenario(
        lambda lab: commands.declare(lab.keyspace, plain_options(max_length=5)), parts={"meta": {"explicit": 0}}
    ),
}
WAYS: dict[str, Scenario] = {**PRODUCERS, **CONSUMERS, **MAKERS}


Full = Callable[[], AbstractContextManager[None]]


@pytest.mark.parametrize("way", [*PRODUCERS, "declare"])
@pytest.mark.spec("TE-22")
def test_what_stores_a_message_or_makes_a_queue_is_refused_and_leaves_no_trace(
    lab: Lab, full_memory: Full, way: str
) -> None:
    command = WAYS[way].prepare(lab)
    before = lab.dump()

    with full_memory(), pytest.raises(redis.ResponseError) as refusal:
        lab.run(command)

    assert "OOM" in str(refusal.value) or isinstance(refusal.value, redis.exceptions.OutOfMemoryError)
    assert lab.dump() == before


def without_version(state: State) -> State:
    for queue in state.values():
        queue.get("meta", {}).pop("version", None)  # of a queue that was deleted only its trace is left
    return state


def run_with_and_without_memory(lab: Lab, full_memory: Full, scenario: Scenario) -> tuple[Any, Any]:
    """The replies to a command with free memory and without. It has to leave the same in both cases."""
    expected = lab.run(scenario.prepare(lab))
    after = without_version(lab.snapshot())

    lab.client.flushall()
    command = scenario.prepare(lab)
    with full_memory():
        reply = lab.run(command)

    assert without_version(lab.snapshot()) == after
    return expected, reply


@pytest.mark.parametrize("way", CONSUMERS)
def test_settles_looks_sweeps_and_removals_go_on_as_ever(lab: Lab, full_memory: Full, way: str) -> None:
    expected, reply = run_with_and_without_memory(lab, full_memory, CONSUMERS[way])

    assert reply[0] == b"ok"
    assert reply == expected


@pytest.mark.parametrize("way", ["declare again", "declare again, mortal", "adopt"])
def test_a_queue_that_is_there_is_declared_all_the_same(lab: Lab, full_memory: Full, way: str) -> None:
    expected, reply = run_with_and_without_memory(lab, full_memory, MAKERS[way])

    assert reply[:3] == expected[:3]


@pytest.mark.parametrize("options", [{}, {"expires": "1h"}, {"auto_delete_on_idle": "1h", "max_length": 5}])
def test_a_program_that_starts_anew_declares_its_queue_and_works_on(
    client: redis.Redis, full_memory: Full, options: OptionArguments
) -> None:
    Broker(client).declare_queue("q", **options).enqueue_many([b"1", b"2"])

    with full_memory():
        queue = Broker(client).declare_queue("q", **options)
        with queue.consume(wait="0s") as deliveries:
            for delivery in deliveries:
                delivery.ack()

    assert queue.declared == "existing"
    assert queue.stats().acked == 2


def test_a_new_queue_is_in_no_list_after_its_declaration_was_refused(client: redis.Redis, full_memory: Full) -> None:
    broker = Broker(client)

    with full_memory(), pytest.raises(redis.ResponseError):
        broker.declare_queue("q")

    assert (broker.queues(), client.keys("*")) == ([], [])


#: Around a plan in a script: what `record.save` would write is the same after it.
WATCHED = """
local function watched(plan)
  return function(q, ...)
    local before = {}
    for name in pairs(q.was) do before[name] = q[name] or '' end
    local planned = plan(q, ...)
    for name in pairs(q.was) do
      if (q[name] or '') ~= before[name] then error('the plan changed ' .. name) end
    end
    return planned
  end
end
"""
PLAN = re.compile(r"^function admission_plan(\(.*?^end\n)", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("way", [way for way in WAYS if "where two consumers wait" in way])
def test_a_plan_changes_nothing(lab: Lab, way: str) -> None:
    command = WAYS[way].prepare(lab)
    text, plans = PLAN.subn(r"admission_plan = watched(function\1)\n", command.script.text)
    before = lab.dump()

    reply: Any = lab.client.execute_command("EVAL", WATCHED + text, *command.words)

    assert (plans, reply[0]) == (1, b"ok")
    if way in CONSUMERS and command.script.name == "move":
        assert lab.dump() == before


@pytest.fixture
def confined(lab: Lab, server: Server) -> Iterator[Lab]:
    """A laboratory of a user who may do everything, but to no key and only on the channel for reapers."""
    lab.client.execute_command(
        "ACL", "SETUSER", "lint", "reset", "on", "nopass", "+@all", "resetchannels", "&rqttl:due"
    )
    with server.client(username="lint") as client:
        yield Lab(client)
    lab.client.execute_command("ACL", "DELUSER", "lint")


def keys_of(command: Command) -> list[str]:
    return [str(word) for word in command.words[1 : 1 + int(command.words[0])]]


@pytest.mark.parametrize("way", WAYS)
def test_a_command_touches_only_the_keys_it_names(lab: Lab, confined: Lab, way: str) -> None:
    command = WAYS[way].prepare(lab)
    lab.client.execute_command("ACL", "SETUSER", "lint", *[f"~{key}" for key in keys_of(command)])

    assert confined.run(command)[0] == b"ok"


@pytest.mark.parametrize("way", WAYS)
def test_all_keys_of_a_command_belong_to_the_queue_or_to_a_target(lab: Lab, way: str) -> None:
    command = WAYS[way].prepare(lab)

    keys = keys_of(command)
    assert len(set(keys)) == len(keys)
    further = {"{orders}", "{other}"} if command.script.copies else set()
    targets = {"{dead}", "{more}", "{nobody}", "{source}"}
    assert {key.split(":")[1] for key in keys} <= {f"{{{command.queue}}}"} | targets | further
