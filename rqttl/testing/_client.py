"""The client of a fake broker. No other module imports fakeredis."""

from __future__ import annotations

from typing import Any, NoReturn

import fakeredis
import lupa  # noqa: F401  # what runs the scripts; without it fakeredis would call EVALSHA an unknown command
from redis.exceptions import ResponseError

from rqttl.testing.errors import NotSupportedByFake


class _Scripts(dict[bytes, bytes]):
    """The scripts of a fake server, by their hashes.

    fakeredis compiles the text of a script at each call, which takes several times as long as the run. So the first
    call keeps the compiled script in the table `redis` of the interpreter, and each later call has a text of one line.
    """

    def __init__(self) -> None:
        super().__init__()
        self._compiled: set[bytes] = set()

    def __setitem__(self, sha: bytes, text: bytes) -> None:
        self._compiled.discard(sha)
        super().__setitem__(sha, text)

    def __getitem__(self, sha: bytes) -> bytes:
        text = super().__getitem__(sha)
        call = b"return redis['%b']()" % sha
        if sha in self._compiled:
            return call
        self._compiled.add(sha)
        return b"redis['%b'] = function() %b\nend %b" % (sha, text, call)


def _new_server() -> fakeredis.FakeServer:
    server = fakeredis.FakeServer()
    server.script_cache = _Scripts()
    return server


class FakeClient(fakeredis.FakeRedis):
    """A redis-py client of a Redis within this process: of a new one, or of the one that `beside` uses."""

    def __init__(self, beside: FakeClient | None = None) -> None:
        self.fake_server: fakeredis.FakeServer = _new_server() if beside is None else beside.fake_server
        super().__init__(server=self.fake_server)

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Execute a command as redis-py does. Raises `NotSupportedByFake` if fakeredis does not know it."""
        try:
            return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]  # redis-py's own
        except ResponseError as error:
            if "unknown command" in str(error):
                raise NotSupportedByFake(f"the Redis command {args[0]}") from None
            raise


class BrokerClient(FakeClient):
    """The client of a fake broker, whose time stands still: a reaper that subscribes to hints would sleep for ever."""

    def pubsub(self, **_: Any) -> NoReturn:
        """Raise `NotSupportedByFake`."""
        raise NotSupportedByFake("Reaper.run")
