"""A line between clients and Redis that loses, delays and cuts at random while a nemesis asks for it."""

import random
import selectors
import socket
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

#: The faults of a line. `reply lost`: the request is carried out, and the connection ends before the reply.
#: `request cut`: Redis gets the beginning of a request, and the connection ends. `frozen`: nothing goes through for a
#: while, then the connection ends. `slow`: what comes waits for a moment. `drip`: it comes in small pieces.
#: Those of `SLOW` leave the connection whole.
SLOW = ("slow", "drip")
FAULTS = ("reply lost", "request cut", "frozen", *SLOW)
_SIZE = 1 << 16


@dataclass(eq=False)
class _Line:
    """One connection of a client with its connection to Redis."""

    client: socket.socket
    redis: socket.socket
    losing: bool = False
    held_until: float = 0.0
    dies_at: float | None = None
    held: list[tuple[socket.socket, bytes]] = field(default_factory=list)

    def close(self) -> None:
        self.client.close()
        self.redis.close()


class Wire:
    """Forwards between `port` of this machine and a unix socket.

    `rate` is the share of chunks that a fault befalls; `faults` counts them. One thread does all the work.
    """

    def __init__(self, upstream: Path, seed: str) -> None:
        self._upstream = str(upstream)
        self._random = random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self.rate = 0.0
        self.faults: Counter[str] = Counter()
        self._lines: set[_Line] = set()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="wire", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End all connections, and listen no more."""
        self._closing.set()
        self._thread.join()
        for line in self._lines:
            line.close()
        self._listener.close()

    def _work(self) -> None:
        with selectors.DefaultSelector() as self._selector:
            self._selector.register(self._listener, selectors.EVENT_READ)
            while not self._closing.is_set():
                for key, _ in self._selector.select(0.005):
                    if key.data is None:
                        self._accept()
                    elif key.data in self._lines:
                        self._forward(key.data, key.fileobj)
                self._tick(time.monotonic())

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:
            return
        redis = socket.socket(socket.AF_UNIX)
        try:
            redis.connect(self._upstream)
        except OSError:  # the server is down: so is the line
            client.close()
            redis.close()
            return
        line = _Line(client, redis)
        self._lines.add(line)
        for end in (client, redis):
            self._selector.register(end, selectors.EVENT_READ, line)

    def _forward(self, line: _Line, end: object) -> None:
        source, goal = (line.client, line.redis) if end is line.client else (line.redis, line.client)
        try:
            data = source.recv(_SIZE)
            if not data or (line.losing and source is line.redis):
                self._end(line)
            elif line.held_until:
                line.held.append((goal, data))
            else:
                self._pass_on(line, source, goal, data)
        except OSError:
            self._end(line)

    def _pass_on(self, line: _Line, source: socket.socket, goal: socket.socket, data: bytes) -> None:
        if self._random.random() >= self.rate:
            goal.sendall(data)
            return
        fault = self._random.choice(FAULTS)
        self.faults[fault] += 1
        now = time.monotonic()
        if fault == "reply lost" and source is line.client:
            goal.sendall(data)
            line.losing = True
        elif fault in ("request cut", "reply lost"):
            goal.sendall(data[: len(data) // 2])
            self._end(line)
        elif fault == "drip":
            for start in range(0, len(data), 1 + len(data) // 7):
                goal.sendall(data[start : start + 1 + len(data) // 7])
        else:
            line.held.append((goal, data))
            line.held_until = now + self._random.random() * 0.3
            line.dies_at = line.held_until if fault == "frozen" else None

    def _tick(self, now: float) -> None:
        """Send the bytes that were held long enough, and end frozen connections."""
        for line in [one for one in self._lines if one.held_until and now >= one.held_until]:
            if line.dies_at is not None:
                self._end(line)
                continue
            try:
                for goal, data in line.held:
                    goal.sendall(data)
            except OSError:
                self._end(line)
            line.held, line.held_until = [], 0.0

    def _end(self, line: _Line) -> None:
        if line in self._lines:
            self._lines.discard(line)
            self._selector.unregister(line.client)
            self._selector.unregister(line.redis)
            line.close()
