"""A child of a worker: `python -m rqttl.worker.child SOCKET BOARD` runs handlers for a worker.

The arguments are two file descriptors: a socket for frames in both directions, and the memory of a board. The child
never talks to Redis. At the end of its socket the worker is dead. Then its messages are no longer leased to anybody, so
the child ends at once with all processes of its group.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rqttl import events as hook
from rqttl.options import QueueOptions
from rqttl.protocol.commands import QueueConfig
from rqttl.protocol.keys import Keyspace
from rqttl.runtime.memory import resident_bytes
from rqttl.worker import board as boards
from rqttl.worker import command, frames, groups, loading
from rqttl.worker.hands import LoopHands, Order, ThreadHands, hands_for
from rqttl.worker.loading import Handler, HandlerNotLoaded
from rqttl.worker.outcomes import Outcome
from rqttl.worker.reports import Reports

if TYPE_CHECKING:
    from rqttl.worker.board import Board

_CHUNK = 1 << 18
_PR_SET_PDEATHSIG = 1


class Link(Reports):
    """The reports of this child to the worker, as frames."""

    def __init__(self, sock: socket.socket, board: Board) -> None:
        super().__init__(board)
        #: Set by the message that reaches a limit. Messages that no handler has begun go back to the worker.
        self.retiring = threading.Event()
        self._sock = sock

    def send(self, frame: bytes = b"") -> None:
        """Send the successes that wait, and a frame."""
        with self._lock:
            keys = self._take()
            data = frames.pack(frames.SUCCEEDED, keys) + frame if keys else frame
            try:
                self._sock.sendall(data)
            except OSError:
                end_at_once()

    def leave(self) -> None:
        """See `Reports`. The worker sees the death of this child by the end of the socket, so no copy may hold it."""
        super().leave()
        self._sock.close()

    def _report(self) -> None:
        self.send()

    def ended(self, key: int, outcome: Outcome | None) -> None:
        """See `Reports`."""
        self.send(frames.pack(frames.ENDED, key, outcome))

    def settled(self, key: int, outcome: Outcome) -> None:
        """See `Reports`."""
        self.send(frames.pack(frames.SETTLED, key, outcome))

    def renewed(self, key: int, lease: int) -> None:
        """See `Reports`."""
        self.send(frames.pack(frames.RENEW, key, lease))


class Limits:
    """The limits of a child: after the message that reaches one, the child ends and another takes its place."""

    def __init__(self, messages: int | None, memory: int | None, age: float | None) -> None:
        self._messages = messages
        self._memory = memory
        self._ends_at = None if age is None else time.monotonic() + age
        self._handled = 0

    def reached(self) -> str:
        """Count a message. Returns the name of the limit that it reached, or an empty text."""
        self._handled += 1
        if self._messages is not None and self._handled >= self._messages:
            return "max_messages"
        if self._memory is not None and resident_bytes() > self._memory:
            return "max_memory"
        if self._ends_at is not None and time.monotonic() >= self._ends_at:
            return "max_age"
        return ""


class LimitedLink(Link):
    """A link that watches the limits of its child."""

    def __init__(self, sock: socket.socket, board: Board, limits: Limits) -> None:
        super().__init__(sock, board)
        self._limits = limits
        self.hands: ThreadHands | LoopHands | None = None

    def succeeded(self, key: int, now: float) -> None:
        """See `Reports`."""
        self._count()
        super().succeeded(key, now)

    def ended(self, key: int, outcome: Outcome | None) -> None:
        """See `Reports`."""
        self._count()
        super().ended(key, outcome)

    def _count(self) -> None:
        """Count a message. The one that reaches a limit gives back all messages that no handler has begun."""
        cause = self._limits.reached()
        if cause and not self.retiring.is_set() and self.hands is not None:
            self.retiring.set()
            self.send(frames.pack(frames.RETIRING, cause) + frames.pack(frames.UNSEEN, self.hands.recall()))


def end_at_once() -> None:
    """End this process, the commands that it runs, and all others of its group."""
    groups.end_commands()
    os.killpg(0, signal.SIGKILL)


class Child:
    """Reads frames in a thread of its own, so that it answers while handlers work."""

    def __init__(self, sock: socket.socket, board: Board) -> None:
        self._sock = sock
        self._board = board
        self._reader = frames.FrameReader()
        self._configs: dict[int, QueueConfig] = {}

    def run(self) -> None:
        """Handle messages until the worker ends this child."""
        setup, early = self._setup()
        limits = Limits(setup["max_messages"], setup["max_memory"], setup["max_age"])
        limited = any(setup[name] is not None for name in ("max_messages", "max_memory", "max_age"))
        link = LimitedLink(self._sock, self._board, limits) if limited else Link(self._sock, self._board)
        handler = loading.watched(load(setup), hook.observer_of_new(None))
        hands = hands_for(handler, setup["threads"], setup["asyncio"], link)
        if isinstance(link, LimitedLink):
            link.hands = hands
        reader = threading.Thread(target=self._read, args=[hands, link, early], daemon=True)
        link.send(frames.pack(frames.READY, hands.slots, hands.cancel_grace, handler.source))
        reader.start()
        hands.run()

    def _setup(self) -> tuple[Mapping[str, Any], list[tuple[Any, ...]]]:
        while data := self._sock.recv(_CHUNK):
            received = list(self._reader.feed(data))
            if received:
                return received[0][1], received[1:]
        end_at_once()
        raise SystemExit

    def _read(self, hands: ThreadHands | LoopHands, link: Link, early: list[tuple[Any, ...]]) -> None:
        self._take(early, hands, link)
        while True:
            try:
                data = self._sock.recv(_CHUNK)
            except OSError:
                data = b""
            if not data:
                end_at_once()
            self._take(self._reader.feed(data), hands, link)

    def _take(self, received: Any, hands: ThreadHands | LoopHands, link: Link) -> None:
        orders: list[Order] = []
        for kind, *content in received:
            if kind == frames.TASKS:
                number, tasks = content
                config = self._configs[number]
                orders += [(key, config, parcel) for key, parcel in tasks]
                continue
            if orders:
                _give(orders, hands, link)
                orders = []
            if kind == frames.QUEUE:
                number, name, text = content
                options = QueueOptions.from_json(name, text)
                self._configs[number] = QueueConfig(Keyspace(), name, b"", options, options)
            elif kind == frames.RECALL:
                link.send(frames.pack(frames.UNSEEN, hands.recall()))
            elif kind == frames.CANCEL:
                hands.cancel(content[0])
            elif kind == frames.QUIT:
                hands.stop()
        if orders:
            _give(orders, hands, link)


def _give(orders: Sequence[Order], hands: ThreadHands | LoopHands, link: Link) -> None:
    """Give messages to the handlers, or back to a worker that sent them before it knew that this child ends."""
    if link.retiring.is_set():
        link.send(frames.pack(frames.UNSEEN, [order[0] for order in orders]))
        return
    hands.put(orders)
    if link.retiring.is_set():  # a handler reached a limit meanwhile, perhaps before it could give these back
        link.send(frames.pack(frames.UNSEEN, hands.recall()))


def load(setup: Mapping[str, Any]) -> Handler:
    """Load the handler of a setup. Raises `HandlerNotLoaded`."""
    sys.path.extend(place for place in setup["path"] if place not in sys.path)
    if setup["exec"]:
        return command.handler(setup["exec"])
    handler = loading.load(setup["call"], with_delivery=setup["delivery"])
    if setup["reload"] and not handler.source:
        raise HandlerNotLoaded(f"reload: {setup['call']}, the function of `call`, has no source file")
    return handler


def wake_without_worker() -> None:
    """Let the system send SIGCONT to this process when its worker is dead. Only Linux does.

    A stopped process (SIGSTOP) would not see the end of its socket, and would go on when nobody expects it.
    """
    if sys.platform != "linux":
        return
    try:
        from ctypes import CDLL

        CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)
    except (ImportError, OSError, AttributeError):
        return  # this Python or this kernel has no such call


def main() -> None:
    """Run a child on the socket and the memory of its board, whose numbers are the arguments."""
    wake_without_worker()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the worker ends a handler that takes too long
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.setblocking(True)
    os.set_inheritable(sock.fileno(), False)  # commands of handlers must not hold the socket
    board = boards.mapped(int(sys.argv[2]))
    os.close(int(sys.argv[2]))
    try:
        Child(sock, board).run()
    except HandlerNotLoaded as error:
        sock.sendall(frames.pack(frames.BROKEN, str(error), error.trace))


if __name__ == "__main__":
    main()
