"""Hints that a queue is due earlier than the reaper knows. A hint may be lost; full passes make up for that."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from redis.exceptions import ConnectionError, RedisError, ResponseError

from rqttl.errors import InvalidName
from rqttl.names import check_queue_name
from rqttl.reaper.report import log_event

if TYPE_CHECKING:
    import redis
    from redis.client import PubSub

#: Seconds of silence before a ping checks the connection.
QUIET = 15.0
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0


class HintSubscriber:
    """A thread that subscribes to one channel, and connects again whenever the connection is lost.

    It calls `on_hint(queue, due)` for each hint, `on_listening()` after each subscription (hints before may be lost),
    and `on_lost()` when a connection is lost.
    """

    def __init__(
        self,
        client: redis.Redis,
        channel: str,
        on_hint: Callable[[str, int], None],
        on_listening: Callable[[], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._client = client
        self._channel = channel
        self._on_hint = on_hint
        self._on_listening = on_listening
        self._on_lost = on_lost
        self._closed = threading.Event()
        self._next = client.pubsub()  # not connected yet
        self._subscription: PubSub | None = None
        self._pause = FIRST_PAUSE
        self._thread = threading.Thread(target=self._run, name="rqttl-reaper-hints", daemon=True)

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._closed.set()
        subscription = self._subscription
        if subscription is not None:
            with suppress(RedisError, OSError, AttributeError):  # the thread may be closing it at this moment
                subscription.unsubscribe(self._channel)  # its confirmation ends the wait of the thread
        self._thread.join(timeout=2.0)

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self._listen()
            except Exception as error:  # noqa: BLE001  # a connection that is closed meanwhile gives all kinds of errors
                if not self._closed.is_set():
                    self._complain(error)
            self._closed.wait(self._pause)
            self._pause = min(self._pause * 2, LONGEST_PAUSE)

    def _complain(self, error: Exception) -> None:
        # the reaper reports a server that is away; a refused subscription is reported here, once
        refused, again = isinstance(error, ResponseError), self._pause > FIRST_PAUSE
        if not again:
            self._on_lost()
        log_event(
            logging.WARNING if refused and not again else logging.DEBUG,
            "subscribe_failed",
            f"cannot listen on {self._channel}: {error}; only full passes find work that becomes due earlier",
            error=type(error).__name__,
            message=str(error),
        )

    def _listen(self) -> None:
        subscription, self._next = self._next, self._client.pubsub()
        try:
            subscription.subscribe(self._channel)
            self._subscription = subscription
            asked = False
            while not self._closed.is_set():
                message = subscription.get_message(timeout=QUIET)
                if message is not None:
                    asked = False
                    self._take(message)
                elif asked:
                    raise ConnectionError("no answer to a ping")
                else:
                    subscription.ping()
                    asked = True
        finally:
            self._subscription = None
            with suppress(RedisError, OSError):
                subscription.close()

    def _take(self, message: dict[str, Any]) -> None:
        if message["type"] == "subscribe":
            self._pause = FIRST_PAUSE
            self._on_listening()
        elif message["type"] == "message":
            hint = read_hint(message["data"])
            if hint is not None:
                self._on_hint(*hint)


def read_hint(data: bytes) -> tuple[str, int] | None:
    """Return queue and due time of a hint `<ms> <queue>`. Any program can publish: returns `None` for another text."""
    due, _, name = data.partition(b" ")
    try:
        return check_queue_name(name.decode("ascii")), int(due[:15])
    except (InvalidName, ValueError):
        return None
