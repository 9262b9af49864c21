"""A Sentinel that says what a test wants."""

import socketserver
import threading
from collections.abc import Callable
from typing import Any


class StubSentinel(socketserver.ThreadingTCPServer):
    """Answers `SENTINEL GET-MASTER-ADDR-BY-NAME` with the port that `primary(service)` returns; `None`: unknown.

    `tell` sends a message to all that subscribe.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, primary: Callable[[str], int | None]) -> None:
        super().__init__(("127.0.0.1", 0), _Client)
        self.primary = primary
        self.port: int = self.server_address[1]
        #: The services that clients have asked for.
        self.asked: list[str] = []
        self.listeners: list[Any] = []
        threading.Thread(target=self.serve_forever, args=[0.01], daemon=True).start()

    def tell(self, channel: str, text: str) -> None:
        for listener in self.listeners:
            listener.write(_bulks("message", channel, text))

    def end(self) -> None:
        self.shutdown()
        self.server_close()


class _Client(socketserver.StreamRequestHandler):
    server: StubSentinel

    def handle(self) -> None:
        while first := self.rfile.readline():
            words = []
            for _ in range(int(first[1:])):
                length = int(self.rfile.readline()[1:])
                words.append(self.rfile.read(length + 2)[:-2].decode())
            if words[0] == "SENTINEL":
                self.server.asked.append(words[2])
                port = self.server.primary(words[2])
                self.wfile.write(b"*-1\r\n" if port is None else _bulks("127.0.0.1", str(port)))
            elif words[0] == "SUBSCRIBE":
                for number, channel in enumerate(words[1:], 1):
                    head = _bulks("subscribe", channel).replace(b"*2", b"*3", 1)
                    self.wfile.write(head + b":%d\r\n" % number)
                self.server.listeners.append(self.wfile)
            else:
                self.wfile.write(b"-ERR unknown command\r\n")


def _bulks(*words: str) -> bytes:
    parts = [b"$%d\r\n%s\r\n" % (len(word.encode()), word.encode()) for word in words]
    return b"*%d\r\n" % len(words) + b"".join(parts)
