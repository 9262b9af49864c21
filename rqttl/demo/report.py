"""The dead letters by carrier and hour, as Spark counts them in a process of its own.

The process is `spark_connectors.demo_report`, named as text: rqttl itself does not need the data source.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from rqttl import embedded
from rqttl.demo.accounts import Counts
from rqttl.demo.children import Child, ChildFailed
from rqttl.demo.names import NAMESPACE, missed

#: The letters of a carrier, by the hour of the day for which the flights were scheduled.
Hours = Mapping[int, int]
#: What is read: the dead-letter queues of all carriers.
PATTERN = missed("*")


@dataclass(frozen=True)
class Report:
    """What Spark has counted, or what has to be installed before it can."""

    carriers: Mapping[str, Hours] = field(default_factory=dict)
    missing: str = ""
    seconds: float = 0.0

    def problems(self, counts: Mapping[str, Counts]) -> list[str]:
        """Each carrier whose dead letters Spark has not counted as its queue has."""
        if self.missing:
            return []
        return [
            f"{carrier}: dead letters, by the queue and by Spark: {one.dead_lettered:,} is not {seen:,}"
            for carrier, one in counts.items()
            if one.dead_lettered != (seen := sum(self.carriers.get(carrier, {}).values()))
        ]


def ask_spark(url: str | None) -> Report:
    """Have Spark read the dead letters of the demo on this server. Raises `ChildFailed` if it cannot, though it could.

    An embedded server must be running already.
    """
    options = {"url": _address(url), "namespace": NAMESPACE, "queuePattern": PATTERN}
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rqttl-demo-", ignore_cleanup_errors=True) as folder:
        part = {"options": options, "folder": folder}
        with Child("the Spark report", part, "spark_connectors.demo_report") as child:
            told = child.result()
    if "failed" in told:
        raise ChildFailed(f"the Spark report failed: {told['failed']}")
    counts: Mapping[str, Mapping[str, int]] = told.get("counts", {})
    carriers = {carrier: {int(hour): n for hour, n in hours.items()} for carrier, hours in counts.items()}
    return Report(carriers, told.get("missing", ""), time.monotonic() - started)


def _address(url: str | None) -> str:
    """The URL of the server that `rqttl.connect(url)` uses."""
    url = url or os.environ.get("RQTTL_URL") or "embedded://"
    if not url.startswith(embedded.SCHEME):
        return url
    return embedded.find(embedded.folder_of(url)) or url
