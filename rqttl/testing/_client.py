"""The client of a fake broker. The one module that imports fakeredis."""

from __future__ import annotations

from typing import Any

import fakeredis
import lupa  # noqa: F401  # what runs the scripts; without it fakeredis would call EVALSHA an unknown command
from redis.exceptions import ResponseError

from rqttl.testing.errors import NotOnFake


class FakeClient(fakeredis.FakeRedis):
    """A redis-py client of a Redis within this process that nobody else shares."""

    def __init__(self) -> None:
        super().__init__(server=fakeredis.FakeServer())

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """As redis-py does. Raises `NotOnFake` for a command that fakeredis does not know."""
        try:
            return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]  # redis-py's own
        except ResponseError as error:
            if "unknown command" in str(error):
                raise NotOnFake(f"the Redis command {args[0]}") from None
            raise
