"""Errors of telemetry."""

from __future__ import annotations

from rqttl.errors import RqttlError


class TelemetryUnavailable(RqttlError, ImportError):
    """The packages of OpenTelemetry are not installed."""

    code = "telemetry_unavailable"
