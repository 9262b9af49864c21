"""Fixtures of the embedded server's tests: the server, a folder for its data, and processes that use it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.embedded_users import Users, data_folder, put_on_path, user_processes


@pytest.fixture(params=["7.0", "6.2"])
def series(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    put_on_path(monkeypatch, tmp_path, request.param)
    return str(request.param)


@pytest.fixture
def folder() -> Iterator[Path]:
    yield from data_folder()


@pytest.fixture
def users(folder: Path) -> Iterator[Users]:
    yield from user_processes(folder)
