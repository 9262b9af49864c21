"""Facts that a server gives about itself. A refusal is recorded and never an error: managed services hide a lot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from rqttl import flows
from rqttl.protocol import replies

if TYPE_CHECKING:
    from rqttl.store.driver import RedisDriver


class ServerInfo:
    """Fields of INFO, read once, and settings of the server, each read on demand."""

    def __init__(self, driver: RedisDriver) -> None:
        self.driver = driver
        #: Names of settings that could not be read.
        self.hidden: list[str] = []
        self.why_hidden = ""
        self.why_no_info = ""
        self._info: dict[str, int | float | str] = {}
        try:
            self._info = driver.perform(flows.execute(replies.info_fields, "INFO"))
        except ResponseError as error:
            self.why_no_info = str(error)

    def time(self) -> float:
        """The clock of the server, in seconds."""
        seconds, micros = self.driver.perform(flows.execute(replies.moment, "TIME"))
        return seconds + micros / 1e6

    def text(self, name: str) -> str:
        """A field of INFO; empty if it is missing."""
        return str(self._info.get(name, ""))

    def number(self, name: str) -> int | None:
        """A field of INFO that is a number."""
        value = self._info.get(name)
        return int(value) if isinstance(value, (int, float)) else None

    def ratio(self, name: str) -> float | None:
        """A field of INFO that is a fraction."""
        value = self._info.get(name)
        return float(value) if isinstance(value, (int, float)) else None

    def setting(self, name: str) -> str | None:
        """A setting of the server; `None` if it does not exist or is hidden."""
        try:
            settings = self.driver.perform(flows.execute(replies.pairs, "CONFIG", "GET", name))
        except ResponseError as error:
            self.hidden.append(name)
            self.why_hidden = str(error)
            return None
        value = settings.get(name.encode())
        return None if value is None else str(value.decode("utf-8", "replace"))

    def whole(self, name: str) -> int | None:
        """A setting that is a whole number."""
        value = self.setting(name)
        return int(value) if value is not None and value.lstrip("-").isdigit() else None
