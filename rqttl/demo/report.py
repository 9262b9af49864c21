"""The dead letters by carrier and hour, as Spark counts them in a process of its own.

The process is `spark_connectors.demo_report`. Its name is a text, because rqttl does not import the data source.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from rqttl.demo.accounts import Counts
from rqttl.demo.children import Child, ChildFailed
from rqttl.demo.names import NAMESPACE, dead_letters
from rqttl.embedded.folder import SCHEME, folder_of
from rqttl.embedded.server import find

#: The letters of a carrier, by the hour of the day for which the flights were scheduled.
Hours = Mapping[int, int]
#: The dead-letter queues of all carriers.
PATTERN = dead_letters("*")


@dataclass(frozen=True)
class Report:
    """The counts of Spark, or the name of a missing package."""

    carriers: Mapping[str, Hours] = field(default_factory=dict)
    missing: str = ""
    seconds: float = 0.0

    def problems(self, counts: Mapping[str, Counts]) -> list[str]:
        """A line for each carrier whose dead letters Spark and the queue count differently."""
        if self.missing:
            return []
        return [
            f"{carrier}: dead letters, by the queue and by Spark: {row.dead_lettered:,} is not {counted:,}"
            for carrier, row in counts.items()
            if row.dead_lettered != (counted := sum(self.carriers.get(carrier, {}).values()))
        ]


def ask_spark(url: str | None) -> Report:
    """Let Spark count the dead letters of the demo on this server. Raises `ChildFailed` if it fails.

    An embedded server must be running already.
    """
    options = {"url": _address(url), "namespace": NAMESPACE, "queuePattern": PATTERN}
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rqttl-demo-", ignore_cleanup_errors=True) as folder:
        task = {"options": options, "folder": folder}
        with Child("the Spark report", task, "spark_connectors.demo_report") as child:
            result = child.result()
    if "failed" in result:
        raise ChildFailed(f"the Spark report failed: {result['failed']}")
    counts: Mapping[str, Mapping[str, int]] = result.get("counts", {})
    carriers = {carrier: {int(hour): n for hour, n in hours.items()} for carrier, hours in counts.items()}
    return Report(carriers, result.get("missing", ""), time.monotonic() - started)


def _address(url: str | None) -> str:
    """The URL of the server of `rqttl.connect(url)`."""
    url = url or os.environ.get("RQTTL_URL") or "embedded://"
    if not url.startswith(SCHEME):
        return url
    return find(folder_of(url)) or url
