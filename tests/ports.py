"""Ports of this machine for the programs of tests."""

import socket
from collections import deque

#: The newest ports are kept: a program has its port long before so many further ones are asked for.
KEPT = 100
_kept: deque[socket.socket] = deque()


def free_port() -> int:
    """Return a port at which nobody listens, and which no other program gets by chance.

    A socket that does not listen keeps the port. Only a program that names the port, and sets SO_REUSEADDR as servers
    do, can listen there.
    """
    probe = socket.socket()
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    probe.bind(("127.0.0.1", 0))
    _kept.append(probe)
    if len(_kept) > KEPT:
        _kept.popleft().close()
    port: int = probe.getsockname()[1]
    return port
