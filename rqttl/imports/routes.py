"""Where the messages of an import go on: bindings of topics with their filters, and forwards. No circle among them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from itertools import product

from rqttl.errors import InvalidInput
from rqttl.filters import MOST_BINDINGS, SUBJECT, Filter, Rule, canonical_json, check_filter
from rqttl.imports.notes import Notes
from rqttl.text import format_value

#: Headers that mean something else in a filter of rqttl.
_RESERVED = ("unmatched", "death.queue", "death.reason")
#: The most rules of a filter that conditions in parentheses may become.
_MOST_RULES = 100


class Routes:
    """The topics of a deployment with their bindings, and what forwards to what."""

    def __init__(self) -> None:
        self._bound: dict[str, dict[str, dict[str, Rule]]] = {}
        self._next: dict[str, set[str]] = defaultdict(set)

    def add_topic(self, name: str) -> None:
        """Make a queue a topic."""
        self._bound[name] = {}

    def deployed(self, queues: Mapping[str, Mapping[str, object]]) -> dict[str, Mapping[str, object]]:
        """The queues, with the bindings of those that are topics."""
        return {
            name: options
            if (bound := self._bound.get(name)) is None
            else {
                **options,
                "bindings": {queue: check_filter([*rules.values()]) for queue, rules in sorted(bound.items())},
            }
            for name, options in queues.items()
        }

    def bind(
        self, topic: str, queue: str, notes: Notes, setting: str, source: object, make: Callable[[], Filter]
    ) -> None:
        """Bind a queue by the filter that `make` returns, also by a further one, and note it.

        An `InvalidInput` of `make` is the reason why it is not bound. An empty list is a filter that never holds.
        """
        bound = self._bound.setdefault(topic, {})
        try:
            made = make()
            if made == []:
                raise InvalidInput("no message fits its condition")
            rules = check_filter(made)
            if queue not in bound and len(bound) >= MOST_BINDINGS:
                raise InvalidInput(f"{topic!r} has {MOST_BINDINGS:,} queues already, and takes no more")
            self._go_on(topic, queue)
        except InvalidInput as error:
            notes.lost(setting, source, f"it does not bind {queue!r} to {topic!r}: {error}")
            return
        bound.setdefault(queue, {}).update({canonical_json(rule): rule for rule in rules or [{}]})
        text = f"{queue!r} is bound to topic {topic!r} " + (
            f"by {canonical_json(rules)}" if rules else "for all messages"
        )
        if any("not" in condition for rule in rules for condition in rule.values() if isinstance(condition, dict)):
            text += "; 'not' holds for a message without the header, too"
        notes.translated(setting, source, text + _slots(topic, queue))

    def forward(self, queue: str, target: str, notes: Notes, setting: str, source: object) -> None:
        """Let all messages of a queue go on to a target, and note it."""
        try:
            self._go_on(queue, target)
        except InvalidInput as error:
            notes.lost(setting, source, f"{queue!r} does not forward to {target!r}: {error}")
            return
        notes.take("forward_to", target, setting, source, because=f"its messages go on{_slots(queue, target)}")

    def _go_on(self, source: str, target: str) -> None:
        reached: set[str] = set()
        more = [target]
        while more:
            name = more.pop()
            if name == source:
                raise InvalidInput(f"its messages would come back to {source!r}")
            if name not in reached:
                reached.add(name)
                more += self._next.get(name, ())
        self._next[source].add(target)


def _slots(one: str, other: str) -> str:
    tags = {name[1:].partition("}")[0] if name[0] == "{" else name.partition("/")[0] for name in (one, other)}
    return "" if len(tags) == 1 else f"; a cluster refuses this, because {one!r} and {other!r} are in different slots"


# Rules that a filter joins by OR


def one_of(name: str, values: Iterable[object], *, no: bool = False) -> Rule:
    """The rule that a header has exactly one of these values, or (`no`) none of them. Raises `InvalidInput`."""
    checked = list(values)
    if name in _RESERVED:
        raise InvalidInput(f"the header {name!r} means something else in a filter of rqttl")
    if wrong := [value for value in checked if not isinstance(value, (str, int, float))]:
        raise InvalidInput(f"header {name!r}: expected text, a number, true or false, got {format_value(wrong[0])}")
    texts = [value for value in checked if isinstance(value, str)] if name == SUBJECT else []
    if wild := [text for text in texts if not {"*", "#"}.isdisjoint(text.split("."))]:
        raise InvalidInput(f"'*' and '#' are wildcards in a subject of rqttl, and {wild[0]!r} has one as a word")
    return {name: {"not": checked} if no else checked}


def both(some: Iterable[Rule], others: Iterable[Rule]) -> list[Rule]:
    """The rules that hold if one of each does. Raises `InvalidInput` for two conditions that no rule says at once."""
    pairs = list(product(some, others))
    if len(pairs) > _MOST_RULES:
        raise InvalidInput(f"it has more than {_MOST_RULES} rules without parentheses")
    return [_merged(one, other) for one, other in pairs]


def _merged(one: Rule, other: Rule) -> Rule:
    merged = dict(one)
    for name, condition in other.items():
        merged[name] = _together(name, merged[name], condition) if name in merged else condition
    return merged


def _together(name: str, one: object, other: object) -> object:
    exists = {"exists": True}
    pair = (one, other)
    if one == other or (exists in pair and {"exists": False} not in pair):
        return other if one == exists else one
    if isinstance(one, Mapping) and isinstance(other, Mapping) and "not" in one and "not" in other:
        return {"not": [*one["not"], *other["not"]]}
    raise InvalidInput(f"header {name!r}: a rule of rqttl has one condition on a header")
