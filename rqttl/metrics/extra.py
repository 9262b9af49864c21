"""The check for prometheus-client, the package of the extra `metrics`."""

from __future__ import annotations

from importlib import import_module

from rqttl.errors import RqttlError
from rqttl.text import install


class MetricsUnavailable(RqttlError, ImportError):
    """The package that metrics need is not installed."""

    code = "metrics_unavailable"


def require_client() -> None:
    """Raise `MetricsUnavailable` with the command that installs it if prometheus-client is missing."""
    try:
        import_module("prometheus_client")
    except ImportError as error:
        raise MetricsUnavailable(f"metrics need the package prometheus-client: {install('metrics')}") from error
