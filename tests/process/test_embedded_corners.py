"""The embedded server where its folder, its home or its disk is not as expected."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import rqttl
from rqttl.embedded.folder import claim, locate
from rqttl.embedded.server import acquire
from rqttl.errors import EmbeddedUnavailable

pytestmark = pytest.mark.once


def used(folder: Path) -> list[bytes]:
    """The bodies in the queue `q` of a folder, read by a server that starts for it and ends."""
    with rqttl.connect(f"embedded://{folder}") as broker:
        return [one.body for one in broker.queue("q").peek()]


@pytest.fixture
def filled(folder: Path) -> Path:
    """A folder with a message, without a server."""
    with rqttl.connect(f"embedded://{folder}") as broker:
        broker.declare_queue("q").enqueue(b"kept")
    return folder


def test_a_folder_whose_name_is_no_text_serves_by_its_path_and_by_its_url(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/a\xff b"))
    server = acquire(folder)

    with rqttl.connect(server.url) as broker:
        broker.declare_queue("q").enqueue(b"kept")
    server.close()

    assert "%FF" in server.url
    assert used(folder) == [b"kept"]


def test_a_disk_on_which_no_file_can_be_made_lets_its_readers_in(filled: Path) -> None:
    (filled / "address.new").mkdir()  # a program that writes such a file fails

    assert used(filled) == [b"kept"]


def test_a_failed_write_is_a_typed_error_that_names_the_file(folder: Path) -> None:
    claim(folder)
    (folder / "address.new").mkdir()

    with pytest.raises(EmbeddedUnavailable, match=r"address\.new.*RQTTL_HOME may name another folder"):
        acquire(folder)


@pytest.mark.parametrize("home", ["", "relative/path"])
def test_a_home_that_is_no_absolute_path_is_the_one_that_the_system_knows(
    monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    for name in ("RQTTL_HOME", "XDG_DATA_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    expected = locate(None)

    monkeypatch.setenv("HOME", home)

    assert locate(None) == expected
    assert locate("~/own") == expected.parents[2] / "own"


def test_without_any_home_the_error_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: int) -> None:
        raise KeyError

    monkeypatch.delenv("RQTTL_HOME", raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setenv("HOME", "")
    monkeypatch.setattr("pwd.getpwuid", unknown)

    with pytest.raises(EmbeddedUnavailable, match=r"HOME is '', expected an absolute path, .*: set RQTTL_HOME"):
        locate(None)
