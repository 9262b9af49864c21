"""Metrics as families of prometheus-client. It imports prometheus-client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily

from rqttl.runtime.histogram import BOUNDS, Histogram

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

    from rqttl.metrics.table import Kind, Metric

#: The words that a class of prometheus-client adds to a name.
_ENDS: dict[Kind, str] = {"counter": "_total", "info": "_info"}
_CLASSES: dict[Kind, Any] = {
    "gauge": GaugeMetricFamily,
    "counter": CounterMetricFamily,
    "histogram": HistogramMetricFamily,
    "info": InfoMetricFamily,
}


class Families:
    """The families of some metrics, without samples at first."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._families = {metric.name: _family(metric) for metric in metrics}

    def add(self, name: str, value: float, *labels: str) -> None:
        """Add a sample of a gauge or a counter."""
        self._families[name].add_metric(labels, value)

    def add_histogram(self, name: str, histogram: Histogram, *labels: str) -> None:
        """Add the samples of a histogram."""
        bounds = [*map(str, BOUNDS), "+Inf"]
        buckets = list(zip(bounds, accumulate(histogram.counts), strict=True))
        self._families[name].add_metric(labels, buckets, histogram.total)

    def add_info(self, name: str, **labels: str) -> None:
        """Add the sample of an info."""
        self._families[name].add_metric((), labels)

    def __iter__(self) -> Iterator[Family]:
        return iter(self._families.values())


def _family(metric: Metric) -> Any:
    name = metric.name.removesuffix(_ENDS.get(metric.kind, ""))
    labels = () if metric.kind == "info" else metric.labels
    return _CLASSES[metric.kind](name, metric.meaning, labels=labels)
