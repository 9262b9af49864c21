"""The log of the data source, in the processes that Spark starts on the driver for single steps."""

from __future__ import annotations

import logging

_log = logging.getLogger("spark_connectors")


def log_text(level: int, text: str) -> None:
    """Log a text. The process of a step has no logging configuration, and its stderr reaches the driver."""
    if not _log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s rqttl %(message)s"))
        _log.addHandler(handler)
        _log.setLevel(logging.INFO)
    _log.log(level, "%s", text)
