"""The instrumentor that `opentelemetry-instrument` finds by its entry point. It needs opentelemetry-instrumentation."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]  # a module without types

from rqttl.telemetry import instrument


class RqttlInstrumentor(BaseInstrumentor):  # type: ignore[misc]  # see the import
    """Instruments all brokers that are made from now on, and the handlers in children of workers.

    `instrument` takes the options of `rqttl.telemetry.instrument`.
    """

    _end: Callable[[], None] | None = None

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return no further packages: rqttl itself is installed."""
        return ()

    def _instrument(self, **options: Any) -> None:
        known = ("parent", "settle", "templates", "tracer_provider", "meter_provider")
        self._end = instrument(**{name: options[name] for name in known if name in options})

    def _uninstrument(self, **_: Any) -> None:
        if self._end is not None:
            self._end()
