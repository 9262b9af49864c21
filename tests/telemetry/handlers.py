"""Handlers of workers with telemetry. Each process writes its spans into a file of the folder of the test."""

import os
from pathlib import Path

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from rqttl import telemetry


def configure() -> None:
    """Configure OpenTelemetry in this process, as an application does."""
    file = (Path(os.environ["RQTTL_TEST_HOME"]) / f"spans-{os.getpid()}").open("a", buffering=1)
    provider = TracerProvider()
    provider.add_span_processor(
        SimpleSpanProcessor(ConsoleSpanExporter(out=file, formatter=lambda span: span.to_json(indent=None) + "\n"))
    )
    trace.set_tracer_provider(provider)


if os.environ.get("RQTTL_TEST_TELEMETRY") == "module":
    configure()
    telemetry.instrument()

tracer = trace.get_tracer("shop")


def work(value: bytes) -> None:
    """Make a span, and fail for one value."""
    with tracer.start_as_current_span("work"):
        if value == b"bad":
            raise ValueError(value)


async def work_async(value: bytes) -> None:
    """Make a span."""
    with tracer.start_as_current_span("work"):
        pass
