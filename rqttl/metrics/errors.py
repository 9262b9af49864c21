"""Errors of metrics."""

from __future__ import annotations

from rqttl.errors import RqttlError


class MetricsUnavailable(RqttlError, ImportError):
    """The package that metrics need is not installed."""

    code = "metrics_unavailable"
