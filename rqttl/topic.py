"""The public interface of one topic: a queue whose messages go on to the queues that are bound to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rqttl.flows import bindings
from rqttl.queue import Queue

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from rqttl.filters import Filter
    from rqttl.options import OptionArguments


class Topic(Queue):
    """A handle on one topic. It is sent to like a queue: each bound queue gets a copy of each message that it wants.

    One step stores the copies in all these queues, or none: a queue that is full under `reject-publish` refuses the
    message for all, by its name (`QueueFull`). All copies have one id. A copy lives for the shortest of the TTLs of
    message, topic and queue. A message that no queue wants is counted as `unrouted` in `stats`, and dropped.

    A *filter* says which messages a queue gets: `None` is all of them; text is a pattern of the words of the subject,
    where `*` is one word and `#` any number (`"orders.*.created"`, `"orders.#"`); a mapping has conditions on headers,
    which must all hold; a list has filters, of which one must match. A condition is a value, a list of values, or one
    of `{"not": …}`, `{"exists": True}`, `{"prefix": "inv-"}`, `{"pattern": "a.*"}`. `{"unmatched": True}` alone is for
    the messages that no other queue gets.

    A change of bindings acts on all calls that begin after it has returned. Messages that are stored stay where they
    are. Queues and topic are in one slot of a cluster. `receive`, `consume` and `run` raise `QueueForwards`.
    """

    def subscribe(self, name: str, filter: Filter = None, **options: Unpack[OptionArguments]) -> Queue:
        """Declare the queue `<topic>/<name>`, and bind it. Returns the queue; receive from it.

        The call can be repeated: see `bind` and `declare_queue`. Without a lifetime of its own (`expires`,
        `auto_delete_on_idle`; `None` for none) a new subscription gets the `auto_delete_on_idle` of the topic. At most
        1,000 queues are bound to one topic. Raises also `QueueNotFound` for a missing topic.
        """
        flow = bindings.subscribe(self._driver.keyspace, self.name, name, filter, options)
        return Queue(self._driver, *self._driver.perform(flow))

    def unsubscribe(self, name: str) -> int:
        """Unbind the subscription `name`, and delete its queue with all messages. Returns the number of ready ones."""
        return self._driver.perform(bindings.unsubscribe(self._driver.keyspace, self.name, name))

    def bind(self, queue: str, filter: Filter = None) -> None:
        """Let a queue that exists get copies. Any queue can be bound that is in the slot of the topic.

        With the filter that it is bound with already, nothing changes; with another one the call raises
        `QueueMismatch`. A queue that is deleted is unbound. Raises `InvalidInput`, `QueueNotFound`.
        """
        self._driver.perform(bindings.bind(self._driver.keyspace, self.name, queue, filter))

    def unbind(self, queue: str) -> bool:
        """Let a queue get no more copies; those that it has stay there. Returns False if it was not bound."""
        return self._driver.perform(bindings.unbind(self._driver.keyspace, self.name, queue))

    def set_filter(self, name: str, filter: Filter) -> None:
        """Give a bound queue, or the subscription `name`, another filter. Raises `InvalidInput` for any other name."""
        self._driver.perform(bindings.set_filter(self._driver.keyspace, self.name, name, filter))

    def bindings(self) -> dict[str, list[dict[str, Any]]]:
        """The bound queues with their filters, which can be given again. The call only reads."""
        return self._driver.perform(bindings.bindings(self._driver.keyspace, self.name))
