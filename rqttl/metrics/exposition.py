"""Families as text, in the two formats of Prometheus. It imports prometheus-client.

prometheus-client writes the head of each family. The lines of samples are ours: prometheus-client checks and escapes
the names of metrics and labels anew in each line, which took half of the time of a scrape of 1,000 queues. Our names
need neither. A test compares the bytes of both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder, gzip_accepted
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

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


__all__ = ["OPENMETRICS", "TEXT", "Format", "accepted", "as_text", "gzip_accepted"]


class Format(NamedTuple):
    """A text format: its type, the function of prometheus-client that writes it, and the end of each text."""

    content_type: str
    write: Callable[[Collector], bytes]
    end: str = ""


TEXT = Format("text/plain; version=0.0.4; charset=utf-8", generate_latest)
OPENMETRICS = Format(
    "application/openmetrics-text; version=1.0.0; charset=utf-8", openmetrics.generate_latest, "# EOF\n"
)


def accepted(accept: str) -> Format:
    """The format for a request with this header `Accept`, as prometheus-client chooses it."""
    return OPENMETRICS if choose_encoder(accept)[1].startswith("application/openmetrics-text") else TEXT


def as_text(*sources: Callable[[], Iterable[Family]], form: Format = TEXT) -> str:
    """The families of all sources as text. They are metrics of rqttl, whose samples have no time and no exemplar."""
    parts = []
    for collect in sources:
        for family in collect():
            parts.append(_head(family.name, family.documentation, family.type, form))
            parts += [_line(sample[0], sample[1], sample[2]) for sample in family.samples]
    return "".join([*parts, form.end])


class _Empty(Collector):
    """A family without samples."""

    def __init__(self, family: Family) -> None:
        self._family = family

    def collect(self) -> Iterable[Family]:
        return [self._family]


@lru_cache(256)
def _head(name: str, meaning: str, kind: str, form: Format) -> str:
    """The lines above the samples of a family."""
    return form.write(_Empty(Family(name, meaning, kind))).decode().removesuffix(form.end)


def _line(name: str, labels: Mapping[str, str], value: float) -> str:
    if not labels:
        return f"{name} {_number(value)}\n"
    pairs = ",".join([f'{label}="{_escaped(labels[label])}"' for label in sorted(labels)])
    return f"{name}{{{pairs}}} {_number(value)}\n"


@lru_cache(4096)
def _escaped(text: str) -> str:
    """The value of a label, as it stands between quotes."""
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


#: The text of a number. Most samples are 0 or small.
_number = lru_cache(4096)(floatToGoString)
