"""The metrics of the semantic conventions."""

from __future__ import annotations

from opentelemetry.metrics import Meter

from rqttl.telemetry import names


class Instruments:
    """The counters and histograms of one meter."""

    def __init__(self, meter: Meter) -> None:
        self.sent = meter.create_counter(
            names.SENT_MESSAGES, "{message}", "Number of messages producer attempted to send to the broker."
        )
        self.consumed = meter.create_counter(
            names.CONSUMED_MESSAGES, "{message}", "Number of messages that were delivered to the application."
        )
        bounds = list(names.BOUNDARIES)
        self.operation = meter.create_histogram(
            names.OPERATION_DURATION,
            "s",
            "Duration of messaging operation initiated by a producer or consumer client.",
            explicit_bucket_boundaries_advisory=bounds,
        )
        self.process = meter.create_histogram(
            names.PROCESS_DURATION, "s", "Duration of processing operation.", explicit_bucket_boundaries_advisory=bounds
        )
