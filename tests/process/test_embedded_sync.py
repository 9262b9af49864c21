"""The guard of an embedded server writes the append-only file of Redis to the disk, once a second."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rqttl.embedded import guard
from rqttl.embedded.guard import sync
from rqttl.embedded.server import acquire
from tests.waiting import until

pytestmark = pytest.mark.once


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """The names of the files that were synced since the last call."""
    names: list[str] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        names.append(Path(f"/proc/self/fd/{descriptor}").resolve().name)
        fsync(descriptor)

    def taken() -> list[str]:
        taken = sorted(names)
        names.clear()
        return taken

    monkeypatch.setattr(os, "fsync", note)
    return taken


def test_only_what_has_changed_is_synced(folder: Path, series: str, synced: Callable[[], list[str]]) -> None:
    acquire(folder).close()
    (log,) = folder.glob("appendonly.aof" if series == "6.2" else "appendonlydir/*.incr.aof")
    synced()

    states = sync(folder, {})
    assert log.name in synced()
    assert log in states
    assert log.parent in states, "the names in the folder too"

    assert sync(folder, states) == states
    assert synced() == []

    with log.open("ab") as file:
        file.write(b"*1\r\n$4\r\nPING\r\n")
    changed = sync(folder, states)
    assert synced() == [log.name]

    log.unlink()  # as after a rewrite
    assert log not in sync(folder, changed)
    assert log.name not in synced()


def test_a_file_that_cannot_be_synced_is_logged_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "appendonly.aof"
    log.write_bytes(b"x")

    def fail(path: Path) -> None:
        if path == log:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(guard, "_sync_file", fail)

    assert log not in sync(tmp_path, {})
    assert f"rqttl: {log} was not synced: " in capsys.readouterr().err


def test_the_guard_syncs_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[Path, tuple[int, ...]]] = []

    class Over(Exception):
        pass

    def sync(_: Path, before: dict[Path, tuple[int, ...]]) -> dict[Path, tuple[int, ...]]:
        calls.append(before)
        if len(calls) == 2:
            raise Over
        return {tmp_path: (1,)}

    monkeypatch.setattr(guard, "sync", sync)
    monkeypatch.setattr(guard, "_SYNC_PERIOD", 0.0)

    with pytest.raises(Over):
        guard._keep_synced(tmp_path)

    assert calls == [{}, {tmp_path: (1,)}]


@pytest.mark.slow
@pytest.mark.usefixtures("series")
def test_a_guard_syncs_while_its_server_runs(folder: Path) -> None:
    server = acquire(folder)
    place = folder / "appendonlydir"
    place.mkdir(exist_ok=True)

    (place / "loop").symlink_to("loop")  # what cannot be opened is seen in the log

    until(lambda: f"rqttl: {place / 'loop'} was not synced: " in (folder / "server.log").read_text())
    server.close()
