"""The metrics of a reaper as families of prometheus-client."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rqttl.metrics.table import REAPER
from rqttl.reaper.report import DUTIES

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

    from rqttl.reaper.vitals import ReaperSnapshot


def families(snapshot: ReaperSnapshot) -> Iterable[Family]:
    """The metrics of a reaper."""
    from rqttl.metrics.families import Families

    result, totals = Families(REAPER), snapshot.totals
    for duty in DUTIES:
        result.add("rqttl_reaper_swept_total", getattr(totals, duty), duty)
    result.add("rqttl_reaper_sweeps_total", totals.sweeps)
    result.add_histogram("rqttl_reaper_lag_seconds", snapshot.lags)
    result.add("rqttl_reaper_queues", snapshot.queues)
    result.add("rqttl_reaper_queues_expired_total", totals.retired)
    result.add("rqttl_reaper_failures_total", totals.failed)
    if snapshot.last_pass is not None:
        result.add("rqttl_reaper_last_pass_timestamp_seconds", snapshot.last_pass)
    return result
