"""The topics of an import, with the filters of their bound queues."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from rqttl.errors import InvalidInput
from rqttl.filters import Filter, Rule, canonical_json, check_filter
from rqttl.imports.notes import Notes

#: The filter for what no other binding wants.
UNMATCHED = {"unmatched": True}


class Routes:
    """The bindings of the topics of a deployment."""

    def __init__(self, topics: Iterable[str]) -> None:
        self._bound: dict[str, dict[str, list[Rule]]] = {topic: {} for topic in topics}

    def bind(
        self, topic: str, queue: str, make: Callable[[], Filter], notes: Notes, setting: str, source: object = None
    ) -> None:
        """Bind a queue by the filter that `make` returns, also by a further one, and note it.

        An `InvalidInput` of `make` is the reason why it is not bound.
        """
        try:
            made = make()
            rules = check_filter(made)
            if rules == [UNMATCHED] and made is not UNMATCHED:
                raise InvalidInput("the header 'unmatched' means something else in a filter of rqttl")
        except InvalidInput as error:
            notes.lost(setting, source, f"it does not bind {queue!r} to {topic!r}: {error}")
            return
        self._bound[topic].setdefault(queue, []).extend(rules or [{}])
        how = f"by {canonical_json(rules)}" if rules else "for all messages"
        notes.translated(setting, source, f"{queue!r} is bound to topic {topic!r} {how}")
        if any("not" in condition for rule in rules for condition in rule.values() if isinstance(condition, dict)):
            notes.left_out(setting, source, "here 'not' holds for a message without the header, too")

    def deployed(self, queues: Mapping[str, Mapping[str, object]]) -> dict[str, Mapping[str, object]]:
        """The queues and topics, each topic with its bindings."""
        return {**queues} | {
            topic: {**queues.get(topic, {}), "bindings": {name: check_filter(rules) for name, rules in bound.items()}}
            for topic, bound in self._bound.items()
        }
