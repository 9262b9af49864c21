"""Tests of observers, and of traces and metrics of OpenTelemetry."""
