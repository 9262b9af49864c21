"""Marks the quick tests of this folder: `make check` runs them, and the tests on each server leave them out."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test here that is not slow."""
    for item in items:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("slow") is None:
            item.add_marker(pytest.mark.quick)
