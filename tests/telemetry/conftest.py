"""Spans and points of a test, in memory."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from rqttl import telemetry


class Recording:
    """Providers of spans and metrics whose exporters keep them."""

    def __init__(self) -> None:
        self._exporter, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.meters = MeterProvider([self._reader])

    def instrument(self, broker: Any, **options: Any) -> Any:
        """Instrument a broker with these providers."""
        return telemetry.instrument(broker, tracer_provider=self.tracers, meter_provider=self.meters, **options)

    def spans(self, *names: str) -> Sequence[ReadableSpan]:
        """The ended spans, in the order of their ends; with names, those."""
        ended = self._exporter.get_finished_spans()
        return [span for span in ended if not names or span.name in names]

    def one(self, name: str) -> ReadableSpan:
        """The only span of a name."""
        (span,) = self.spans(name)
        return span

    def points(self, metric: str) -> list[Any]:
        """The points of a metric."""
        data = self._reader.get_metrics_data()
        if data is None:
            return []
        return [
            point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for found in scope.metrics
            if found.name == metric
            for point in found.data.data_points
        ]


def place(span: ReadableSpan) -> tuple[int, int]:
    """The ids of the trace and of a span."""
    return span.context.trace_id, span.context.span_id


def parent(span: ReadableSpan) -> tuple[int, int] | None:
    """The ids of the trace and of the parent of a span; `None` for a root."""
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)


def links(span: ReadableSpan) -> list[tuple[int, int]]:
    """The ids of the traces and of the spans that a span is linked to."""
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def attributes(span: ReadableSpan) -> dict[str, Any]:
    """The attributes of a span."""
    return dict(span.attributes or {})


@pytest.fixture
def recording() -> Iterator[Recording]:
    """Providers whose exporters keep spans and points."""
    recording = Recording()
    yield recording
    recording.tracers.shutdown()
    recording.meters.shutdown()
