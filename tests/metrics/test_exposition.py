"""The text of metrics: the bytes of prometheus-client, in both formats."""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable, Iterable
from email.message import Message
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from prometheus_client import generate_latest
from prometheus_client.core import Metric as Family
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from rqttl.metrics.exposition import OPENMETRICS, TEXT, Families, as_text
from rqttl.metrics.table import QUEUES, REAPER, WORKER, Metric
from rqttl.runtime.histogram import Histogram
from rqttl.worker.metrics import answer

pytestmark = pytest.mark.once

METRICS = (*QUEUES, *WORKER, *REAPER)
#: Values of labels, also such that no queue has: they are escaped.
LABELS = some.one_of(some.text(max_size=9), some.text('"\\\n{},= #', max_size=9))
# -0.0 is no value of a metric: the text of a number is remembered, and -0.0 equals 0.0
VALUES = some.one_of(some.integers(0, 2**53), some.floats().filter(lambda value: value or math.copysign(1, value) > 0))


class Kept(Collector):
    """A registry of some families."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        return self._families


def filled(draw: Callable[..., Any], metric: Metric) -> Families:
    """A family with some samples."""
    families = Families([metric])
    for _ in range(draw(some.integers(0, 3))):
        labels = [draw(LABELS) for _ in metric.labels]
        if metric.kind == "histogram":
            histogram = Histogram()
            histogram.add_all(draw(some.lists(some.floats(0, 1e5))))
            families.add_histogram(metric.name, histogram, *labels)
        elif metric.kind == "info":
            families.add_info(metric.name, **dict(zip(metric.labels, labels, strict=True)))
        else:
            families.add(metric.name, draw(VALUES), *labels)
    return families


@pytest.mark.parametrize(
    "form, write", [(TEXT, generate_latest), (OPENMETRICS, openmetrics.generate_latest)], ids=["text", "OpenMetrics"]
)
@given(data=some.data())
def test_the_bytes_are_those_of_prometheus_client(form: Any, write: Callable[[Collector], bytes], data: Any) -> None:
    families = [family for metric in METRICS for family in filled(data.draw, metric)]

    assert as_text(lambda: families[:5], lambda: families[5:], form=form).encode() == write(Kept(families))


def requested(**headers: str) -> Message:
    """The headers of a request."""
    message = Message()
    for name, value in headers.items():
        message[name.replace("_", "-")] = value
    return message


@pytest.mark.parametrize(
    "accept, form",
    [
        ("", TEXT),
        ("*/*", TEXT),
        ("text/html,application/xhtml+xml;q=0.9", TEXT),
        ("text/plain;version=0.0.4;q=1,*/*;q=0.1", TEXT),
        ("application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", OPENMETRICS),
        ("application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6", OPENMETRICS),
        ("application/openmetrics-text", OPENMETRICS),
        ("application/openmetrics-text;version=0.0.1", TEXT),
    ],
)
def test_a_client_gets_the_format_that_it_names(accept: str, form: Any) -> None:
    families = Families(QUEUES)
    families.add("rqttl_up", 1)

    reply = answer(requested(Accept=accept), lambda: families)

    assert (reply.status, reply.content_type, reply.encoding) == (200, form.content_type, "")
    assert reply.body.decode() == as_text(lambda: families, form=form)


def test_a_client_that_takes_gzip_gets_gzip() -> None:
    families = Families(QUEUES)
    families.add("rqttl_up", 1)

    packed = answer(requested(Accept_Encoding="deflate, gzip"), lambda: families)
    plain = answer(requested(Accept_Encoding="deflate"), lambda: families)

    assert (packed.encoding, plain.encoding) == ("gzip", "")
    assert gzip.decompress(packed.body) == plain.body
