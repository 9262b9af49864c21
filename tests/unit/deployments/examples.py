"""Deployments for tests: the files of this folder, and random ones."""

from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from rqttl.deployments import Deployment
from rqttl.filters import check_filter
from rqttl.options import OPTIONS, QueueOptions
from rqttl.policies import Policy

FOLDER = Path(__file__).with_name("files")
FILES = sorted(path.name for path in FOLDER.iterdir())

_NAMES = st.sampled_from(["a", "b", "orders", "orders/dead", "EXP.a", "no", "1", "null"])
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "message_ttl": st.sampled_from(["1s", "5m", "1500ms", 0]),
    "min_ttl": st.sampled_from(["1s", "2s"]),
    "max_ttl": st.sampled_from(["3s", "1h"]),
    "never_expire": st.booleans(),
    "max_length": st.integers(0, 5),
    "overflow": st.sampled_from(OPTIONS["overflow"].choices),
    "dead_letter": st.sampled_from(["letters", "{queue}/letters"]),
    "dead_letter_expired": st.sampled_from(["", "EXP.{queue}"]),
    "max_deliveries": st.integers(1, 3),
    "redelivery_delay": st.just("1s"),
    "on_expire": st.sampled_from(OPTIONS["on_expire"].choices),
}
#: Topics, each with names that may be bound to it. No other queue is one.
_TOPICS = {"news": ["a", "b", "no", "news/all", "later"], "later": ["a", "1", "null"]}
_FILTERS = st.sampled_from(
    [None, "orders.*.#", {"size": 1}, {"size": True}, {"size": [1.5, -3e300, "\x85 é"], "b": {"not": "no"}}, ["a", {}]]
)


def _definitions() -> st.SearchStrategy[dict[str, Any]]:
    values = {name: st.one_of(st.just("none"), value) for name, value in _VALUES.items()}
    return st.fixed_dictionaries({"max_length": values.pop("max_length")}, optional=values)


@st.composite
def deployments(draw: st.DrawFn) -> Deployment:
    """Any deployment with a few names, so that two of them share some."""
    queues = draw(st.dictionaries(_NAMES, st.fixed_dictionaries({}, optional=_VALUES), max_size=4))
    declared = [QueueOptions.read(name, options) for name, options in queues.items()]
    for topic, names in _TOPICS.items() if draw(st.booleans()) else ():
        bindings = draw(st.dictionaries(st.sampled_from(names), _FILTERS.map(check_filter), max_size=3))
        declared.append(QueueOptions(topic, draw(st.sampled_from([{}, {"max_length": 3}])), bindings))
    bound = {name for options in declared for name in options.bindings or ()}
    declared += [QueueOptions(name, {}) for name in sorted(bound - {options.queue for options in declared})]
    policies = [
        Policy.read(
            name, draw(st.sampled_from(["#", "a", "orders.#"])), definition, priority=priority, operator=operator
        )
        for operator in (False, True)
        for name, (definition, priority) in draw(
            st.dictionaries(_NAMES, st.tuples(_definitions(), st.integers(-1, 1)), max_size=3)
        ).items()
    ]
    return Deployment.of(declared, policies)
