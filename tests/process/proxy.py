"""A bad line between a client and Redis: a proxy that loses replies, or never lets a request through."""

import select
import socket
import threading
from pathlib import Path
from typing import Any

import redis

from rqttl.protocol import scripts
from tests.waiting import PATIENCE, until


class Proxy:
    """Forwards between `port` of this machine and a Redis socket, faithfully until `spoil` is called.

    `executed` counts the script calls that went through to Redis. `silent` has the ports of the clients whose replies
    are swallowed.
    """

    def __init__(self, upstream: Path) -> None:
        self._upstream = str(upstream)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.executed = 0
        self.silent: set[int] = set()
        self._faults: list[bytes | str] = []
        self._marker = b""
        self._refusals = 0
        self._closing = threading.Event()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def spoil(self, *faults: bytes | str, script: str = "", command: str = "EVALSHA") -> None:
        """Set the faults of the next script calls (of one script, if it is named), or of calls of `command`, one each.

        `cut`: carried out, but the connection ends before the reply. `swallow`: carried out, and no reply ever comes,
        nor one to what follows on this connection.
        `refuse`: the next connections are closed at once. Bytes are answered instead of Redis.
        """
        self._marker = scripts.load(script).sha.encode() if script else command.encode()
        self._refusals += faults.count("refuse")
        self._faults += [fault for fault in faults if fault != "refuse"]

    def stop_listening(self) -> None:
        """From now on nobody answers at the port; connections that are open end."""
        self._closing.set()
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while not self._closing.is_set():
            if not select.select([self._listener], [], [], 0.05)[0]:
                continue
            client, (_, port) = self._listener.accept()
            if self._refusals:
                self._refusals -= 1
                client.close()
                continue
            thread = threading.Thread(target=self._serve, args=(client, port), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket, port: int) -> None:
        with client, socket.socket(socket.AF_UNIX) as server:
            server.connect(self._upstream)
            fault: bytes | str | None = None
            while not self._closing.is_set():
                for ready in select.select([client, server], [], [], 0.05)[0]:
                    try:
                        data = ready.recv(1 << 16)
                    except ConnectionResetError:
                        return
                    if not data or (ready is server and fault == "cut"):
                        return
                    if ready is client:
                        calls, marked = data.count(b"EVALSHA"), self._marker and self._marker in data
                        if (calls or marked) and not isinstance(fault, str):  # that one holds to the end of the line
                            fault = self._faults.pop(0) if self._faults and marked else None
                        if calls:
                            self.executed += calls * (not isinstance(fault, bytes))
                        if isinstance(fault, bytes):
                            client.sendall(fault)
                        else:
                            server.sendall(data)
                    elif fault == "swallow":
                        self.silent.add(port)
                    else:
                        client.sendall(data)


def client_of(proxy: Proxy, **options: Any) -> redis.Redis:
    """Return a client that waits long for a slow reply, and that gives up one which the proxy swallows."""

    class Line(redis.Connection):
        def read_response(self, *args: Any, **options: Any) -> Any:
            until(lambda: self._is_readable() or self._is_silent())
            if self._is_silent():
                self._socket().settimeout(0.05)
            return super().read_response(*args, **options)

        def _is_readable(self) -> bool:
            try:
                return self.can_read(0.01)
            except redis.ConnectionError:
                return True  # the read that follows meets it, too

        def _is_silent(self) -> bool:
            return self._socket().getsockname()[1] in proxy.silent

        def _socket(self) -> Any:
            return self._sock

    client = redis.Redis("127.0.0.1", proxy.port, socket_timeout=PATIENCE, **options)
    client.connection_pool.connection_class = Line
    return client
