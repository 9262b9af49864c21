"""The folder of an embedded server: where it is, whose it may be, what it may hold, and which URL names it."""

import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import pytest

import rqttl
from rqttl.embedded import server as embedded
from rqttl.embedded.folder import MARK, address_of, claim, folder_of, locate
from rqttl.embedded.server import acquire
from rqttl.errors import EmbeddedUnavailable, InvalidInput
from tests.process.embedded_users import USE, Users, identity, running, told
from tests.waiting import until

pytestmark = pytest.mark.once

RULE = "the folder must be new, empty, or marked as data of rqttl (by its file rqttl-embedded); nothing was changed"


def home(given: Path | None) -> Path:
    return claim(locate(given))


def state(folder: Path) -> list[tuple[str, int, int, bytes]]:
    """All that a folder holds, with modes, times and contents; its own too."""
    places = [folder, *sorted(folder.rglob("*"))]
    return [
        (str(place), place.lstat().st_mode, place.lstat().st_mtime_ns, place.read_bytes() if place.is_file() else b"")
        for place in places
    ]


def test_a_path_too_long_for_a_socket_gets_one_in_a_short_private_folder(folder: Path, users: Users) -> None:
    long = folder / ("ä long näme % " * 10)
    user = users(USE.replace("os.environ['FOLDER']", repr(str(long))))
    url, short = told(user), address_of(long).parent

    assert embedded.find(long) == url == f"unix://{short}/redis.sock"
    assert short.stat().st_mode & 0o777 == 0o700
    assert identity(url)
    user.communicate("")
    until(lambda: not short.exists())


@pytest.mark.parametrize("name", [b"a b?c=d#e%20", b"a\xff b"])
def test_names_that_a_url_would_misread_are_quoted(folder: Path, name: bytes) -> None:
    place = Path(os.fsdecode(os.fsencode(folder) + b"/" + name))
    server = acquire(place)

    with rqttl.connect(server.url) as broker, rqttl.connect(f"embedded://{quote(os.fsencode(place))}") as other:
        broker.declare_queue("q")
        assert other.queues() == ["q"]
    server.close()


@pytest.mark.parametrize("mode", [0o777, 0o720, 0o702])
def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)

    with pytest.raises(EmbeddedUnavailable, match=rf"open to others \(mode {mode:o}\)"):
        acquire(tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = tmp_path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)

    with pytest.raises(EmbeddedUnavailable, match=f"belongs to user {owner}, not to {owner + 1}"):
        acquire(tmp_path)


def test_a_short_folder_that_is_open_to_others_is_refused(folder: Path) -> None:
    long = folder / ("x" * 100)
    short = address_of(long).parent
    short.mkdir(mode=0o755)
    try:
        with pytest.raises(EmbeddedUnavailable, match="open to others"):
            acquire(long)
    finally:
        short.rmdir()


@pytest.mark.parametrize("name", ["file", "file/below", "zero\0"])
def test_a_value_that_cannot_be_a_folder_is_refused_with_a_typed_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(EmbeddedUnavailable, match="RQTTL_HOME") as refusal:
        acquire(tmp_path / name)

    assert refusal.value.code == "embedded_unavailable"


def test_the_default_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.delenv("RQTTL_HOME", raising=False)
    assert home(None) == tmp_path / "home/.local/share/rqttl"
    assert (tmp_path / "home/.local/share/rqttl").stat().st_mode & 0o777 == 0o700

    monkeypatch.setenv("XDG_DATA_HOME", "relative/is/ignored")
    assert home(None) == tmp_path / "home/.local/share/rqttl"

    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "xdg"))
    assert home(None) == tmp_path / "xdg/rqttl"

    monkeypatch.setenv("RQTTL_HOME", "~/own")
    assert home(None) == tmp_path / "home/own"
    assert home(tmp_path / "given") == tmp_path / "given"


def test_a_server_is_found_where_it_runs_and_nothing_is_started_nor_made(folder: Path) -> None:
    assert embedded.find(folder) is None
    assert not folder.exists()

    server = acquire(folder)
    assert embedded.find(folder) == server.url
    (folder / MARK).rename(folder / "other")
    assert embedded.find(folder) is None, "a folder of another user is not read"
    (folder / "other").rename(folder / MARK)
    folder.chmod(0o777)
    assert embedded.find(folder) is None
    folder.chmod(0o700)
    server.close()

    assert embedded.find(folder) is None
    assert embedded.find("\0") is None


@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_a_folder_with_a_foreign_file_or_mark_is_refused_and_nothing_in_it_is_changed(folder: Path, kind: str) -> None:
    folder.mkdir()
    mark = folder / MARK
    if kind == "file":
        mark = folder / "address"
        mark.write_text("mine")
    elif kind == "link":
        mark.symlink_to(folder.parent / "elsewhere")
    else:
        mark.mkdir()
    before = state(folder)

    with pytest.raises(EmbeddedUnavailable) as refusal:
        rqttl.connect(f"embedded://{folder}")

    assert str(refusal.value) == f"embedded server: {folder} holds the foreign file {mark.name!r}: {RULE}"
    assert state(folder) == before
    assert embedded.find(folder) is None


@pytest.mark.parametrize("made", ["new", "open to read", "half made", "behind a link"])
def test_a_new_an_empty_and_a_half_made_folder_are_taken(folder: Path, made: str) -> None:
    named = folder
    if made != "new":
        folder.mkdir(mode=0o755 if made == "open to read" else 0o700)
    if made == "half made":  # the process that made it was killed before the end of the mark
        (folder / MARK).touch()
    if made == "behind a link":
        named = folder.parent / "link"
        named.symlink_to(folder)

    acquire(named).close()
    with rqttl.connect(f"embedded://{named}") as broker:
        assert broker.queues() == []

    assert folder.stat().st_mode & 0o777 == (0o755 if made == "open to read" else 0o700)


def test_a_folder_that_another_process_marks_between_two_looks_is_taken(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir(mode=0o700)
    (folder / "start.lock").touch()
    look = Path.iterdir

    def late_mark(folder: Path) -> list[Path]:
        seen = list(look(folder))
        (folder / MARK).touch()
        return seen

    monkeypatch.setattr(Path, "iterdir", late_mark)

    assert claim(folder) == folder


@pytest.mark.parametrize(
    "url, folder",
    [
        ("embedded://", None),
        ("embedded:///data", "/data"),
        ("embedded:///a%20b/c%3Fd%23e%25", "/a b/c?d#e%"),
        ("embedded:///a b/\u00e4", "/a b/\u00e4"),
        ("embedded:///%C3%A4", "/\u00e4"),
        ("embedded:///a:b@c", "/a:b@c"),
    ],
)
def test_the_path_of_a_url_is_decoded(url: str, folder: str | None) -> None:
    assert folder_of(url) == folder


@pytest.mark.parametrize("url", ["./hunter2", "me:hunter2@host/data", "/data?password=hunter2", "/data#hunter2"])
def test_a_url_of_another_form_is_refused_with_the_right_form_and_without_its_secrets(url: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        rqttl.connect(f"embedded://{url}")

    assert str(refusal.value).startswith("url: expected embedded:///absolute/path (")
    assert "hunter2" not in str(refusal.value)


def test_a_folder_that_was_emptied_gets_no_files_from_those_who_leave(folder: Path) -> None:
    server = acquire(folder)
    for pid in running(folder):
        with suppress(ProcessLookupError):  # the death of the guard ends the server
            os.kill(pid, signal.SIGKILL)
    until(lambda: not running(folder))
    shutil.rmtree(folder)
    folder.mkdir(mode=0o700)
    server.close()

    assert list(folder.iterdir()) == []
