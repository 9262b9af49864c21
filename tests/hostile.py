"""Hostile values for every argument of the public API, and the calls that take them.

`VALUES` makes each value anew. `CALLS` has one entry for each argument of a public call. `attempt` makes one call and
returns its outcome: None where it works, the typed error where it is refused. Every other exception is a fault of the
library and leaves `attempt` as it is. The one exception to that is an `Own` error from an iterable of the caller: it is
the caller's error and passes unchanged, as from `list()`.
"""

import array
import decimal
import fractions
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta, timezone
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

import redis

import rqttl
from rqttl import Broker, Delivery, Message, Queue, QueueOptions, RqttlError, units
from rqttl.events import Events
from rqttl.options import OPTIONS
from rqttl.reaper import Reaper
from rqttl.testing import Clock, FakeBroker, assert_depth, dead_letters, fake_broker, messages


class Own(Exception):  # the caller's, and no error of rqttl
    """The error that hostile values raise from their methods."""


def _fail(*_: object, **__: object) -> NoReturn:
    raise Own("a method of the value fails")


def _failing(kind: type, *names: str, **attributes: object) -> type:
    """A subclass of `kind` whose methods raise `Own`: those with these names, with spaces in between."""
    return type("Hostile", (kind,), {**dict.fromkeys(" ".join(names).split(), _fail), **attributes})


_METHODS = "__repr__ __str__ __eq__ __hash__ __len__ __iter__ __bool__ __format__ __getitem__"
_TEXT = "strip encode isprintable replace startswith partition format __contains__ __add__ __mod__ __getitem__ __ne__"
_FLOAT = "__lt__ __le__ __gt__ __ge__ __sub__ __add__ __int__ __index__ __truediv__ __radd__"
_INT = f"{_FLOAT} __rsub__ bit_length __mod__ __neg__"
_MAPPING = "items keys values get __contains__"


def _own_list() -> list[object]:
    endless: list[object] = []
    endless.append(endless)
    return endless


def _own_dict() -> dict[str, object]:
    endless: dict[str, object] = {}
    endless["self"] = endless
    return endless


def _released() -> memoryview:
    view = memoryview(b"gone")
    view.release()
    return view


def _generator() -> Iterator[object]:
    yield b"first"
    _fail()


_METHOD_VALUES = {f"object, {name} raises": _failing(object, name) for name in _METHODS.split()}

#: The name of each hostile value, and the function that makes it.
VALUES: Mapping[str, Callable[[], object]] = MappingProxyType(
    {
        "None": lambda: None,
        "True": lambda: True,
        "False": lambda: False,
        "0": lambda: 0,
        "-1": lambda: -1,
        "-0.0": lambda: -0.0,
        "0.5": lambda: 0.5,
        "2**31": lambda: 2**31,
        "2**63": lambda: 2**63,
        "2**64": lambda: 2**64,
        "5,000 digits": lambda: 10**5_000,
        "nan": lambda: float("nan"),
        "inf": lambda: float("inf"),
        "-inf": lambda: -float("inf"),
        "complex": lambda: 1j,
        "Decimal NaN": lambda: decimal.Decimal("NaN"),
        "Decimal 1E+999999": lambda: decimal.Decimal("1E+999999"),
        "Decimal 5": lambda: decimal.Decimal(5),
        "Fraction": lambda: fractions.Fraction(10**5_000, 3),
        "text: empty": lambda: "",
        "text: space": lambda: " ",
        "text: NUL": lambda: "a\0b",
        "text: line end": lambda: "a\nb",
        "text: surrogate": lambda: "\ud800",
        "text: undecodable": lambda: "caf\udce9",
        "text: wide digits": lambda: "\uff11\uff12s",
        "text: 5,000 digits": lambda: "9" * 5_000,
        "text: 5,000 digits and s": lambda: "9" * 5_000 + "s",
        "text: 1e5s": lambda: "1e5s",
        "text: template": lambda: "{queue}" * 40,
        "text: braces": lambda: "{0.__class__}",
        "text: embedded": lambda: "x:{y}",
        "text: date without zone": lambda: "2026-11-22 10:00",
        "text: hour 25": lambda: "2026-11-22 25:00Z",
        "text: offset of a day": lambda: "2026-11-22 10:00+24:00",
        "text subclass, methods raise": lambda: _failing(str, _TEXT, "removeprefix", _METHODS)("30s"),
        "text subclass, a time": lambda: _failing(str, _TEXT, "removeprefix", _METHODS)("2026-11-22T10:00Z"),
        "int subclass, methods raise": lambda: _failing(int, _INT, _METHODS)(5),
        "int subclass, a time": lambda: _failing(int, _INT, _METHODS)(1_800_000_000_000),
        "float subclass, methods raise": lambda: _failing(float, _FLOAT, _METHODS, "is_integer")(1.5),
        "bytes": lambda: b"\xff\0",
        "bytes subclass": lambda: _failing(bytes, _METHODS)(b"x"),
        "bytearray": lambda: bytearray(b"body"),
        "bytearray subclass": lambda: _failing(bytearray, _METHODS)(b"x"),
        "memoryview": lambda: memoryview(b"body"),
        "memoryview with steps": lambda: memoryview(b"abcdef")[::2],
        "memoryview of numbers": lambda: memoryview(array.array("d", [1.0])),
        "memoryview released": _released,
        "array": lambda: array.array("i", [1, 2]),
        "timedelta.min": lambda: timedelta.min,
        "timedelta.max": lambda: timedelta.max,
        "timedelta.resolution": lambda: timedelta.resolution,
        "timedelta subclass": lambda: _failing(timedelta, "__lt__", "__floordiv__", "__mod__", _METHODS)(seconds=5),
        "datetime naive": lambda: datetime(2026, 11, 22),  # noqa: DTZ001  # on purpose
        "datetime.min": lambda: datetime.min.replace(tzinfo=timezone.utc),
        "datetime.max": lambda: datetime.max.replace(tzinfo=timezone.utc),
        "datetime.max in the west": lambda: datetime.max.replace(tzinfo=timezone(timedelta(hours=-23))),
        "datetime.min in the east": lambda: datetime.min.replace(tzinfo=timezone(timedelta(hours=23))),
        "list": list,
        "list of None": lambda: [None],
        "list of hostile": lambda: [_failing(object, _METHODS)()],
        "list in itself": _own_list,
        "list of surrogates": lambda: ["\ud800"],
        "tuple": lambda: (1, 2),
        "set": lambda: {"a"},
        "pairs": lambda: [("a", "b")],
        "dict": dict,
        "dict in itself": _own_dict,
        "dict of None": lambda: {None: None},
        "dict of lists": lambda: {"a": []},
        "dict of NaN": lambda: {"a": float("nan")},
        "dict of surrogates": lambda: {"a": "\ud800", "\udc80": 1},
        "dict of a large number": lambda: {"a": 10**5_000},
        "dict subclass": lambda: _failing(dict, _MAPPING, _METHODS)(a=1),
        "dict of hostile": lambda: {"a": _failing(object, _METHODS)()},
        "dict with a hostile name": lambda: {_failing(str, _TEXT)("a"): 1},
        "generator that raises": _generator,
        "iterable whose __iter__ raises": _failing(list, "__iter__"),
        "sequence whose __len__ raises": lambda: _failing(tuple, _METHODS)((b"x",)),
        **_METHOD_VALUES,
        "object, all raise": _failing(object, _METHODS),
        "object": object,
        "class": lambda: dict,
        "class, __repr__ raises": lambda: _failing(type, "__repr__")("Kind", (), {}),
        "class of a strange module": _failing(object, _METHODS, __module__=5),
        "function": lambda: _fail,
        "Message": lambda: Message(b"x"),
        "Message of None": lambda: Message(None),
        "Message in a Message": lambda: Message(Message(b"x")),
        "Message, hostile id": lambda: Message(b"x", id=_failing(object, _METHODS)()),
    }
)


class Stage(NamedTuple):
    """The objects that calls are made on: a broker, its queue `q`, and a leased delivery of it."""

    broker: Broker
    queue: Queue
    delivery: Delivery


def set_stage(broker: Broker) -> Stage:
    """Declare the queue `q`, with two messages, one of which is leased."""
    queue = broker.declare_queue("q")
    queue.enqueue_many([b"1", b"2"])
    delivery = queue.receive(lease="10m")
    assert delivery is not None
    return Stage(broker, queue, delivery)


class Call(NamedTuple):
    """A call with one hostile argument. The message of a refusal begins with one of `names`, then a colon."""

    label: str
    make: Callable[[Stage, Any], object]
    names: tuple[str, ...]


def _call(label: str, make: Callable[[Stage, Any], object], *names: str) -> Call:
    return Call(label, make, names or (label.split("(")[1].rstrip(")"),))


def _calls(label: str, arguments: Iterable[str], make: Callable[[Stage, Any], object], *others: str) -> list[Call]:
    """A call for each of these keyword arguments, which `make` is given as a mapping."""

    def with_argument(name: str) -> Callable[[Stage, Any], object]:
        return lambda stage, value: make(stage, {name: value})

    return [_call(f"{label}({name})", with_argument(name), name, *others) for name in arguments]


def _halted() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


def _consumed(stage: Stage, **arguments: Any) -> None:
    with stage.queue.consume(**{"wait": 0, **arguments}) as deliveries:
        deliveries.stop()


def _run(stage: Stage, **arguments: Any) -> None:
    stage.queue.run(**{"handler": str, "wait": 0, "stop": _halted(), **arguments})


#: The queues of a call that takes several.
_ONE: dict[str, Any] = {"queues": ["q"]}
_NAME, _NAMESPACE, _IDS = "queue name", "namespace", ("id", "deliveries")
#: Options that contradict another one are named instead of it.
_OTHERS = ("dead_letter", "redelivery_delay", "min_ttl")
#: All that a sender says of a message, but its body.
_PARTS = ("ttl", "expires_at", "headers", "id", "content_type", "delay", "deliver_at", "subject")

_BROKER = (
    _call("connect(url)", lambda _, v: rqttl.connect(v).close()),
    _call("connect(namespace)", lambda _, v: rqttl.connect("unix:///none", namespace=v).close()),
    _call("Broker(client)", lambda _, v: Broker(v), "client"),
    _call("Broker(namespace)", lambda _, v: Broker(redis.Redis(), v), _NAMESPACE),
    _call("declare_queue(name)", lambda s, v: s.broker.declare_queue(v), _NAME),
    _call("queue(name)", lambda s, v: s.broker.queue(v), _NAME),
    _call("stats(names)", lambda s, v: s.broker.stats(v), "names", _NAME),
    _call("options(names)", lambda s, v: s.broker.options(v), "names", _NAME),
    *_calls("declare_queue", OPTIONS, lambda s, given: s.broker.declare_queue("new", **given), *_OTHERS),
    *_calls("update", OPTIONS, lambda s, given: s.queue.update(**given), *_OTHERS),
    _call("explain(name)", lambda s, v: s.broker.explain(v), _NAME),
    _call("explain(ttl)", lambda s, v: s.broker.explain("q", v)),
    _call("preview_update(max_length)", lambda s, v: s.queue.preview_update(max_length=v)),
    _call("QueueOptions.read(queue)", lambda _, v: QueueOptions.read(v, {}), _NAME),
    _call("QueueOptions.read(arguments)", lambda _, v: QueueOptions.read("q", v), "arguments", ""),
    _call("QueueOptions.changed(changes)", lambda _, v: QueueOptions("q", {}).changed(v), "changes", "arguments", ""),
)

_SENDING = (
    _call("enqueue(body)", lambda s, v: s.queue.enqueue(v), "body", "id"),
    *_calls("enqueue", _PARTS, lambda s, given: s.queue.enqueue(b"x", **given)),
    *_calls("Message", ("body", *_PARTS), lambda s, given: s.queue.enqueue(Message(**{"body": b"x", **given}))),
    _call("enqueue_many(messages)", lambda s, v: s.queue.enqueue_many(v), "messages", "body", "id"),
    _call("enqueue_many(duplicate_window)", lambda s, v: s.queue.enqueue_many([b"x"], duplicate_window=v)),
)

_SCHEDULED = (
    _call("cancel(id)", lambda s, v: s.queue.cancel(v)),
    _call("reschedule(id)", lambda s, v: s.queue.reschedule(v, delay="1s")),
    *_calls("reschedule", ("delay", "deliver_at"), lambda s, given: s.queue.reschedule("x", **given), "delay"),
    *_calls("scheduled", ("limit", "after"), lambda s, given: s.queue.scheduled(**given)),
    _call("purge(state)", lambda s, v: s.queue.purge(v)),
)

_SINGLE = (
    *_calls("message", ("id", "scan"), lambda s, given: s.queue.message(**{"id": "x", **given})),
    *_calls("move", ("id", "to"), lambda s, given: s.queue.move(**{"id": "x", "to": "q", **given}), "to"),
    *_calls("dead_letter", ("id", "description"), lambda s, given: s.queue.dead_letter(**{"id": "x", **given})),
)

_TAKING = (
    *_calls("receive", ("wait", "lease"), lambda s, given: s.queue.receive(**given)),
    *_calls("receive_many", ("count", "wait", "lease"), lambda s, given: s.queue.receive_many(**{"count": 1, **given})),
    *_calls("consume", ("prefetch", "lease", "wait"), lambda s, given: _consumed(s, **given)),
    *_calls("Broker.receive", ("max", "wait", "lease"), lambda s, given: s.broker.receive(**_ONE | given)),
    *_calls(
        "Broker.consume",
        ("queues", "weights", "prefetch", "lease", "wait"),
        lambda s, given: s.broker.consume(**_ONE | given),
    ),
    *_calls("run", ("handler", "threads", "prefetch", "lease", "wait", "stop"), lambda s, given: _run(s, **given)),
    _call("Consumer.release(delivery)", lambda s, v: s.queue.consume().release(v), *_IDS, "delivery"),
)

_SETTLING = (
    *_calls("nack", ("delay", "description"), lambda s, given: s.delivery.nack(**given)),
    _call("reject(description)", lambda s, v: s.delivery.reject(v)),
    _call("renew(lease)", lambda s, v: s.delivery.renew(v)),
    _call("ack_many(deliveries)", lambda s, v: s.queue.ack_many(v)),
    _call("nack_many(deliveries)", lambda s, v: s.queue.nack_many(v)),
    _call("reject_many(deliveries)", lambda s, v: s.queue.reject_many(v)),
    _call("renew_many(deliveries)", lambda s, v: s.queue.renew_many(v)),
    _call("nack_many(delay)", lambda s, v: s.queue.nack_many([], v)),
    _call("nack_many(description)", lambda s, v: s.queue.nack_many([s.delivery], description=v, counted=False)),
    _call("reject_many(description)", lambda s, v: s.queue.reject_many([], v)),
    _call("renew_many(lease)", lambda s, v: s.queue.renew_many([], v)),
)

_LOOKING = (
    *_calls("peek", ("limit", "after", "state"), lambda s, given: s.queue.peek(**given)),
    _call("purge_many(sequences)", lambda s, v: s.queue.purge_many(v)),
    *_calls("redrive", ("limit", "reason", "source", "to"), lambda s, given: s.queue.redrive(**given)),
    _call("redrive_many(letters)", lambda s, v: s.queue.redrive_many(v), "letters"),
    _call("Reaper(broker)", lambda s, v: Reaper(v), "broker"),
    _call("Reaper(scan_period)", lambda s, v: Reaper(s.broker, scan_period=v)),
    *_calls("subscribe", ("listener", "kind"), lambda _, given: Events().subscribe(**{"listener": print, **given})),
    _call("units.duration(value)", lambda _, v: units.duration(v, "value")),
    _call("units.instant(value)", lambda _, v: units.instant(v, "value")),
    _call("units.milliseconds(value)", lambda _, v: units.milliseconds(v, "value")),
)

_TESTING = (
    *_calls("fake_broker", ("namespace", "start"), lambda _, given: fake_broker(**given).close()),
    _call("FakeBroker.connect(namespace)", lambda _, v: FakeBroker().connect(namespace=v).close()),
    _call("Clock(start)", lambda _, v: Clock(v)),
    _call("Clock.advance(duration)", lambda _, v: Clock(1_700_000_000_000).advance(v)),
    _call("Clock.set(now)", lambda _, v: Clock().set(v)),
    *_calls("messages", ("queue", "state"), lambda s, given: messages(**{"queue": s.queue, **given})),
    *_calls("dead_letters", ("queue", "reason"), lambda s, given: dead_letters(**{"queue": s.queue, **given})),
    *_calls(
        "assert_depth", ("queue", "state"), lambda s, given: assert_depth(**{"queue": s.queue, "depth": 1, **given})
    ),
)

#: Every argument of a public call.
CALLS: tuple[Call, ...] = (*_BROKER, *_SENDING, *_SCHEDULED, *_SINGLE, *_TAKING, *_SETTLING, *_LOOKING, *_TESTING)
#: Arguments that are iterated over: an error of the caller's own iterable passes unchanged.
ITERATED = (
    *("names", "messages", "headers", "sequences", "letters", "deliveries", "arguments", "changes"),
    *("queues", "weights"),
)


def attempt(call: Call, stage: Stage, value: str) -> RqttlError | None:
    """Make a call with the value of this name. Returns the typed error of a refusal, None where the call works."""
    try:
        call.make(stage, VALUES[value]())
    except RqttlError as error:
        return error
    except Own:
        if not any(name in ITERATED for name in call.names):
            raise
    return None
