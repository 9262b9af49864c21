"""Families of prometheus-client and their text. It imports prometheus-client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from rqttl.metrics.table import BOUNDS, Histogram, Kind, Metric

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

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
        self._families: dict[str, Any] = {}
        for name, kind, labels, meaning in metrics:
            own_labels = () if kind == "info" else labels
            self._families[name] = _CLASSES[kind](name.removesuffix(_ENDS.get(kind, "")), meaning, labels=own_labels)

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


class Sources(Collector):
    """The families of several sources as one collector."""

    def __init__(self, *sources: Callable[[], Iterable[Family]]) -> None:
        self._sources = sources

    def collect(self) -> Iterator[Family]:
        """Collect from each source."""
        for source in self._sources:
            yield from source()


def as_text(*sources: Callable[[], Iterable[Family]]) -> str:
    """The families of all sources in the text format of Prometheus."""
    return generate_latest(Sources(*sources)).decode()
