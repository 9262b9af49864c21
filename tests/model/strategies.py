"""Strategies of the model test: options, messages, times."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hypothesis import strategies as st

from rqttl import InvalidInput, Policy
from tests.model.clients import CLIENTS
from tests.model.queues import Options, as_written


class Said(NamedTuple):
    """A message to send: body size, relative TTL, or else absolute deadline from now, with an id, with a header."""

    size: int
    ttl: int | None = None
    at: int | None = None
    named: bool = False
    headed: bool = False


def maybe(*values: object) -> st.SearchStrategy[object]:
    return st.sampled_from((None, *values))


TARGETS = maybe("a", "b", "dead", "a.late", "", "t")
OPTIONS = {
    "message_ttl": maybe(50, 100, 1000, 10, 0),
    "default_ttl": maybe(30, 0),
    "min_ttl": maybe(20, 0),
    "max_ttl": maybe(40, 10),
    "never_expire": maybe(True),
    "max_length": maybe(3, 2, 1, 5, 0),
    "max_length_bytes": maybe(12, 30, 5, 0),
    "overflow": maybe("reject-publish", "reject-publish-dlx"),
    "dead_letter": maybe("a", "b", "dead", "a.late", "t"),
    "dead_letter_expired": TARGETS,
    "dead_letter_maxlen": TARGETS,
    "dead_letter_rejected": maybe("a", "b", "dead", "a.late", "", "{queue}"),
    "dead_letter_delivery_limit": TARGETS,
    "max_deliveries": maybe(1, 2, 3),
    "max_leased": maybe(1, 2, 3),
}
#: The options of a pause, which mean little one without the other. The last ones fit only to a queue that has a pause.
PAUSES: tuple[dict[str, object], ...] = (
    {"redelivery_delay": 20},
    {"redelivery_delay": 5, "redelivery_multiplier": 2},
    {"redelivery_delay": 10, "redelivery_multiplier": 2.5, "redelivery_max_delay": 30},
    {"redelivery_delay": 30, "redelivery_jitter": 0.5},
    {"redelivery_delay": 10, "redelivery_multiplier": 2**53 - 1, "redelivery_max_delay": 100, "redelivery_jitter": 1},
    {"redelivery_delay": None, "redelivery_multiplier": None, "redelivery_max_delay": None, "redelivery_jitter": None},
    {"redelivery_multiplier": 1.5},
    {"redelivery_max_delay": 12},
)
RATES: tuple[dict[str, object], ...] = (
    {"rate": "1/20", "burst": 1},
    {"rate": "3/50", "burst": 2},
    {"rate": "2/1000"},
    {"rate": "7/30", "burst": 3},
    {"rate": None, "burst": None},
    {"burst": 2},
)
#: The options that do the most come up the most.
_LIKELY = (
    "max_length",
    "max_length_bytes",
    "overflow",
    "dead_letter",
    "dead_letter",
    "message_ttl",
    "max_deliveries",
    "pauses",
    "pauses",
    "rates",
)
clients = st.integers(0, CLIENTS - 1)
names = st.sampled_from(("a", "a", "a", "a", "b", "b", "dead", "a.late", "t", "t"))


def _with_pauses(drawn: dict[str, object]) -> dict[str, object]:
    pauses, rates = drawn.pop("pauses", {}), drawn.pop("rates", {})
    assert isinstance(pauses, dict)
    assert isinstance(rates, dict)
    return drawn | pauses | rates


def _some(values: Mapping[str, st.SearchStrategy[object]], least: int, most: int) -> st.SearchStrategy[Options]:
    chosen = st.lists(st.sampled_from((*_LIKELY, *OPTIONS)), min_size=least, max_size=most, unique=True)
    return chosen.flatmap(
        lambda chosen: st.fixed_dictionaries(
            {o: values.get(o, st.sampled_from(PAUSES if o == "pauses" else RATES)) for o in chosen}
        )
    ).map(_with_pauses)


some_options = _some(OPTIONS, 0, 5)
#: Policies may also ask for a default. Nothing is `none`.
DEFINITIONS = OPTIONS | {
    "never_expire": maybe(True, False),
    "paused": maybe(True, False),
    "overflow": maybe("drop-head", "reject-publish", "reject-publish-dlx"),
    "dead_letter_expired": maybe("a", "b", "dead", "a.late", "", "{queue}"),
}
#: Targets that are made from the name of a queue. Only the patterns for these match no queue but `a` and `a.late`.
MADE = OPTIONS | dict.fromkeys(("dead_letter", "dead_letter_expired", "dead_letter_maxlen"), st.just("{queue}.late"))
FOR_MADE = (("a", "wildcard"), ("a.#", "wildcard"), ("^a($|[.])", "regex"))
PATTERNS = (
    ("#", "wildcard"),
    ("#", "wildcard"),
    ("*", "wildcard"),
    ("a", "wildcard"),
    ("a", "wildcard"),
    ("a.#", "wildcard"),
    ("*.late", "wildcard"),
    ("dead", "wildcard"),
    ("a", "regex"),
    ("^[ab]$", "regex"),
    ("c", "regex"),
)


def _policy(name: str, pattern: tuple[str, str], definition: Options, priority: int, operator: bool) -> Policy | None:
    """A policy, unless its options contradict each other."""
    text, syntax = pattern
    try:
        return Policy.read(name, text, as_written(definition), priority=priority, syntax=syntax, operator=operator)
    except InvalidInput:
        return None


def _policies(
    patterns: Sequence[tuple[str, str]], values: Mapping[str, st.SearchStrategy[object]]
) -> st.SearchStrategy[Policy | None]:
    return st.builds(
        _policy,
        st.sampled_from(("p", "q", "r")),
        st.sampled_from(patterns),
        _some(values, 1, 3),
        st.sampled_from((0, 0, 1, -1)),
        st.sampled_from((False, False, True)),
    )


policies = (_policies(PATTERNS, DEFINITIONS) | _policies(PATTERNS, DEFINITIONS) | _policies(FOR_MADE, MADE)).filter(
    lambda policy: policy is not None
)
items = st.lists(
    st.builds(
        Said,
        st.sampled_from((4, 6, 10, 0)),
        maybe(None, None, 20, 50, 100, 1000, 5, 1, 0),
        maybe(None, None, 30, 1, 0, -1, -1000),
        st.booleans(),
        st.booleans(),
    ),
    min_size=1,
    max_size=4,
)
#: Scheduled messages: what is said of each, one id of a few, and when it is due; as an instant, if it may have passed.
comings = st.lists(
    st.tuples(items.map(lambda said: said[0]), maybe("x", "y"), st.sampled_from((5, 20, 20, 50, 200, 1, 0, -1, -60))),
    min_size=1,
    max_size=4,
)
#: Messages for a consumer that waits: some die at once unless it takes them.
sudden = st.lists(st.sampled_from((Said(4), Said(10), Said(4, 0), Said(10, 0), Said(4, 100))), min_size=1, max_size=2)
picks = st.lists(st.integers(0, 9), min_size=1, max_size=3)
rarely = st.sampled_from((False, False, False, True))
#: After how many calls a client dies.
lives = st.sampled_from((None, None, None, None, 1, 2, 3))
leases = st.sampled_from((50, 400, 10, 1))
actions = st.sampled_from(("ack", "nack", "nack", "reject", "reject", "renew"))
delays = st.sampled_from((None, None, None, None, 0, 5, 30, 200))
descriptions = maybe("no good", "é 1 2", " ")
#: What may happen between a delivery and its settling: others fill the queue, also with messages that expire unnoticed;
#: a client sweeps; the deadline comes; milliseconds pass.
MEANWHILE = ("fade", "fade", "fill", "sweep", "sweep", "deadline", 1, 20)
