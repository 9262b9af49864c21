"""Hints that a queue is due earlier than the reaper knows. A hint may be lost; full passes make up for that."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from enum import Enum
from queue import SimpleQueue
from typing import TYPE_CHECKING

from redis.exceptions import ConnectionError, RedisError, ResponseError

from rqttl.checks import check_queue_name
from rqttl.errors import InvalidName
from rqttl.reaper.report import log_event

if TYPE_CHECKING:
    import redis
    from redis.client import PubSub

#: Seconds of silence before a ping checks the connection.
QUIET = 15.0
FIRST_DELAY, LONGEST_DELAY = 0.1, 5.0
#: The number of hints that may wait to be read. A pass over all queues makes up for more.
HINTS = 10_000


class Wake(Enum):
    """What wakes a reaper besides a hint. Hints from before a subscription are lost, and those after a lost one."""

    STOP = "stop"
    LISTENING = "listening"
    LOST = "lost"


class HintSubscriber:
    """A thread that subscribes to one channel, and connects again whenever the connection is lost.

    It puts queue and due time of each hint into `inbox`, and `missed` is True after it had no room for one.
    """

    def __init__(self, client: redis.Redis, channel: str, inbox: SimpleQueue[Wake | tuple[str, int]]) -> None:
        self.missed = False
        self._client, self._channel, self._inbox = client, channel, inbox
        self._closed = threading.Event()
        client.pubsub()  # it connects nowhere, and raises on a fake broker, which has no subscriptions
        self._subscription: PubSub | None = None
        self._delay = FIRST_DELAY
        self._thread = threading.Thread(target=self._run, name="rqttl-reaper-hints", daemon=True)
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
            self._closed.wait(self._delay)
            self._delay = min(self._delay * 2, LONGEST_DELAY)

    def _complain(self, error: Exception) -> None:
        # the reaper reports a server that is away; a refused subscription is reported here, once
        refused, again = isinstance(error, ResponseError), self._delay > FIRST_DELAY
        if not again:
            self._inbox.put(Wake.LOST)
        log_event(
            logging.WARNING if refused and not again else logging.DEBUG,
            "subscribe_failed",
            f"cannot listen on {self._channel}: {error}; only full passes find work that becomes due earlier",
            error=type(error).__name__,
            message=str(error),
        )

    def _listen(self) -> None:
        subscription = self._client.pubsub()
        try:
            subscription.subscribe(self._channel)
            self._subscription = subscription
            asked = False
            while not self._closed.is_set():
                message = subscription.get_message(timeout=QUIET)
                if message is None:
                    if asked:
                        raise ConnectionError("no answer to a ping")
                    subscription.ping()
                elif message["type"] == "subscribe":
                    self._delay = FIRST_DELAY
                    self._inbox.put(Wake.LISTENING)
                elif message["type"] == "message" and (hint := read_hint(message["data"])):
                    if self._inbox.qsize() < HINTS:
                        self._inbox.put(hint)
                    else:
                        self.missed = True
                asked = message is None
        finally:
            self._subscription = None
            with suppress(RedisError, OSError):
                subscription.close()


def read_hint(data: bytes) -> tuple[str, int] | None:
    """Return queue and due time of a hint `<ms> <queue>`. Any program can publish: returns `None` for another text."""
    due, _, name = data.partition(b" ")
    try:
        return check_queue_name(name.decode("ascii")), int(due[:15])
    except (InvalidName, ValueError):
        return None
