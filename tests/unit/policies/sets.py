"""Random and small sets of policies for tests."""

from collections.abc import Mapping, Sequence

from hypothesis import strategies as st

from rqttl import InvalidInput, Policy, QueueOptions
from rqttl.options import OPTIONS
from rqttl.policies import PolicySet

LONG = "x" * 60
#: Most of them match several patterns.
QUEUES = ("a", "b", "a.b", "a.b.cc", "b.b", "a.", "a..b", "EXP.a", "EXP.a.b", "EXP.EXP.a", "a.dead", "dead", "a.a")
PATTERNS = (
    *("#", "#", "a", "dead", "*", "a.#", "*.#", "a.*", "*.b", "*.*", "a.b", "a.*.cc", "*.b.cc"),
    *("a.b.#", "a.*.#", "*.*.#", "EXP.#", "*.a.#", "a.*.*"),
)
REGEXES = ("a", "^a", "b$", r"^a\.", "(?i)exp", r"a|b", ".", "(a+)+$", r"\.b\.", "^EXP[.]", "c{2}")
TARGETS = (
    "dead",
    "a",
    "a.b",
    "",
    "{queue}",
    "EXP.{queue}",
    "{queue}.dead",
    "{queue}/dead",
    "{queue}.{queue}",
    f"{LONG}.{{queue}}.{LONG}.xxxx",
)
VALUES: Mapping[str, Sequence[object]] = {
    "duration": ("1ms", "5s", "30s", "1h"),
    "size": (1, "5kB", "16MiB"),
    "count": (1, 5, 16 * 2**20),
    "number": (1,),
    "flag": (True, False),
    "choice": (),
    "target": TARGETS,
}
#: Options that act on each other. The policies of one case hold options of one of these groups.
GROUPS = (
    ("min_ttl", "max_ttl"),
    ("redelivery_delay", "redelivery_max_delay", "redelivery_jitter", "redelivery_multiplier"),
    ("dead_letter", "dead_letter_expired", "dead_letter_rejected"),
    ("max_length", "overflow", "never_expire"),
    ("message_ttl", "lease", "max_message_bytes", "on_expire"),
)

_words = st.lists(st.sampled_from(("a", "b", "cc", "*", "*")), max_size=3)
queues = st.sampled_from(QUEUES)
wildcards = st.sampled_from(PATTERNS)
wildcards |= st.builds(lambda words, end: ".".join([*words, end]), _words, st.sampled_from("#*a"))
groups = st.sampled_from(GROUPS)


def arguments(names: Sequence[str], nothing: Sequence[object]) -> st.SearchStrategy[dict[str, object]]:
    """Some of the options with random values. `nothing` are further values for each option."""
    each = {name: st.sampled_from([*(OPTIONS[name].choices or VALUES[OPTIONS[name].kind]), *nothing]) for name in names}
    return st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True).flatmap(
        lambda some: st.fixed_dictionaries({name: each[name] for name in some})
    )


@st.composite
def policies(draw: st.DrawFn, names: Sequence[str] = GROUPS[3]) -> Policy:
    """A policy of either kind and either syntax, with priorities and names that often tie."""
    syntax = draw(st.sampled_from(["wildcard", "wildcard", "wildcard", "regex"]))
    pattern = draw(wildcards if syntax == "wildcard" else st.sampled_from(REGEXES))
    while True:
        try:
            return Policy.read(
                draw(st.sampled_from("pqrstuvw")),
                pattern,
                draw(arguments(names, (None, "none"))),
                syntax=syntax,
                priority=draw(st.sampled_from([0, 0, 1])),
                operator=draw(st.sampled_from([False, False, True])),
            )
        except InvalidInput:
            continue


@st.composite
def declared(draw: st.DrawFn, names: Sequence[str] = GROUPS[3]) -> QueueOptions:
    """A queue with random declared options."""
    queue = draw(queues)
    while True:
        try:
            return QueueOptions.read(queue, draw(st.just({}) | arguments(names, ())))
        except InvalidInput:
            continue


def cases(*, max_size: int) -> st.SearchStrategy[tuple[QueueOptions, list[Policy]]]:
    """A queue and policies with options that act on each other. A later policy may replace an earlier one."""
    return groups.flatmap(lambda names: st.tuples(declared(names), st.lists(policies(names), max_size=max_size)))


def policy(name: str, pattern: str, operator: object = False, priority: object = 0, **definition: object) -> Policy:
    """A policy with a wildcard pattern."""
    return Policy.read(name, pattern, definition, operator=bool(operator), priority=priority)


def in_force(queue: str, *policies: Policy, **declared: object) -> dict[str, object]:
    """The options in force that differ from their defaults."""
    resolved = PolicySet(1, policies).resolve(QueueOptions.read(queue, declared)).options
    return {name: value for name, value in resolved.items() if value != OPTIONS[name].default}
