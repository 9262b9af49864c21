"""A broker of two nodes: two real servers, each with a clock of its own. Their queues are split by name."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rqttl.flows.steps import Pipeline, Read, ReadEachNode, Step
from rqttl.protocol.commands import Command
from rqttl.store.connections import RedisNode
from rqttl.store.driver import RedisDriver
from rqttl.store.topology import OneServer
from tests.servers import Server


class Halves(OneServer[RedisNode]):
    """A topology: queues whose names begin with b are on the second node, all other keys on the first."""

    def __init__(self, first: RedisNode, second: RedisNode) -> None:
        super().__init__(first)
        self.nodes = self.made = (first, second)

    def node_of(self, key: object) -> RedisNode:
        return self.nodes[str(key).startswith("rqttl:{b")]

    def slot_of(self, key: object) -> RedisNode:
        return self.node_of(key)

    def name_of(self, node: Any) -> str:
        return str(node.address.place)


class TwoNodeDriver(RedisDriver):
    """A driver on two servers. `clock` is the time in ms, and the clock of each node is `ahead` of it by so many ms."""

    def __init__(
        self, first: Server, second: Server, clock: Callable[[], int] = lambda: time.time_ns() // 10**6, **options: Any
    ) -> None:
        self.clients = first.client(**options), second.client(**options)
        super().__init__(self.clients[0], "rqttl", topology=Halves(*map(RedisNode, self.clients)))
        self.ahead = [0, 0]
        self._clock = clock

    def now(self, node: object) -> int:
        """The time of a node."""
        return self._clock() + self.ahead[self.store.topology.nodes.index(node)]

    def step(self, step: Step) -> Any:
        """Carry out one step of a flow, at the times of the nodes."""
        if isinstance(step, Command):
            return super().step(self._timed(step))
        if isinstance(step, Pipeline):
            return super().step(replace(step, commands=[self._timed(command) for command in step.commands]))
        answer = super().step(step)
        if isinstance(step, ReadEachNode):
            return {node: self._at(node, step.calls, replies) for node, replies in answer.items()}
        if not isinstance(step, Read):
            return answer
        if step.timed:
            nodes = [self.store.topology.node_of(call[1]) for call in step.calls]
            return answer[0], [time and self.now(node) for node, time in zip(nodes, answer[1], strict=True)]
        node = self.store.topology.nodes[0] if step.node is None else step.node
        return self._at(node, [*step.calls, *step.then], answer)

    def _timed(self, command: Command) -> Command:
        node = self.store.topology.node_of(command.words[1])
        return command.with_word("now", self.now(node)) if "now" in command.script.args else command

    def _at(self, node: object, calls: Sequence[tuple[Any, ...]], replies: list[Any]) -> list[Any]:
        now = list(divmod(self.now(node) * 1000, 1_000_000))
        pairs = zip(calls, replies, strict=True)
        return [now if call[0] == "TIME" and not isinstance(reply, Exception) else reply for call, reply in pairs]

    def close(self) -> None:
        """Close the connections."""
        super().close()
        for client in self.clients:
            client.close()
