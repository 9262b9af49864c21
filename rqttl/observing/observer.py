"""The interface of observers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Protocol

from rqttl.errors import QueueFull
from rqttl.types import Death, Header, Message, Receipt, SweepResult


class Received(Protocol):
    """The attributes of a delivery for an observer. See `Delivery`."""

    @property
    def id(self) -> str: ...  # noqa: D102  # of `Delivery`
    @property
    def queue(self) -> str: ...  # noqa: D102  # of `Delivery`
    @property
    def headers(self) -> Mapping[str, Header]: ...  # noqa: D102  # of `Delivery`
    @property
    def delivery_count(self) -> int: ...  # noqa: D102  # of `Delivery`
    @property
    def deaths(self) -> tuple[Death, ...]: ...  # noqa: D102  # of `Delivery`
    @property
    def body(self) -> bytes: ...  # noqa: D102  # of `Delivery`


class Sending:
    """One call that sends messages. It is a context manager around the call."""

    def __init__(self, messages: Sequence[Message | object]) -> None:
        self.messages = messages

    def __enter__(self) -> Sequence[Message | object]:
        """Begin the call. Returns the messages to send: one for each of the given messages, in their order."""
        return self.messages

    def stored(self, results: Sequence[Receipt | QueueFull]) -> None:
        """See the result of each message, before the end of the call."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the call."""


class Observer:
    """Sees the calls of a broker about messages. A subclass overrides the methods that it needs.

    Each method is called once for each call of the broker, in the thread or task of the call. The context managers
    enclose the call and see its exception. They cannot stop it: an exception that they raise is logged.
    """

    def sending(self, queue: str, messages: Sequence[Message | object]) -> Sending:
        """Return the context manager of a call that sends messages. It may send other messages in their places."""
        return Sending(messages)

    def received(self, queue: str, deliveries: Sequence[Received], seconds: float) -> None:
        """See the messages of one call that has received some. `seconds` is the time of the call, with its wait."""

    def handling(self, delivery: Received) -> AbstractContextManager[object]:
        """Return the context manager around the handler of one message: a function, or a block `with delivery:`."""
        return nullcontext()

    def settling(self, queue: str, how: str, deliveries: Sequence[Received]) -> AbstractContextManager[object]:
        """Return the context manager around a call that settles: `ack`, `nack`, `reject`, `release` or `redrive`.

        A consumer and a worker collect acks. For them the call is that of the handler, and Redis gets the ack later. A
        redrive has no deliveries.
        """
        return nullcontext()

    def swept(self, queue: str, swept: SweepResult) -> None:
        """See the result of one bounded sweep of a reaper."""
