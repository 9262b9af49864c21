"""`rqttl receive --output-dir`: bodies as files, byte for byte, under names that can do no harm."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from rqttl import Broker, Message, Queue
from rqttl.cli.receive.sinks import Folder, file_name
from tests.cli.conftest import Run


@pytest.fixture
def orders(broker: Broker) -> Queue:
    return broker.declare_queue("orders")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "bodies"


def held(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_each_body_is_a_file_and_its_path_the_answer(run: Run, orders: Queue, folder: Path) -> None:
    every = bytes(range(256)) * 10
    orders.enqueue_many([Message(every, id="one"), Message(b"", id="two"), Message({"a": 1}, id="three"), b"left"])

    result = run("receive", "orders", "--max", "3", "--output-dir", str(folder))

    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [f"{folder}/{name}" for name in ("one", "two", "three")]
    assert held(folder) == {"one": every, "two": b"", "three": b"\x81\xa1a\x01"}
    assert (orders.stats().ready, orders.stats().acked) == (1, 3)


def test_json_has_the_file_in_place_of_the_body(run: Run, orders: Queue, folder: Path) -> None:
    orders.enqueue(b"x", id="a/b")

    line = json.loads(run("receive", "orders", "--output-dir", str(folder), "--json").stdout)

    assert (line["id"], line["file"], line["body_bytes"]) == ("a/b", f"{folder}/a%2Fb", 1)
    assert "body" not in line


def test_an_existing_file_is_never_written_over(run: Run, orders: Queue, folder: Path, tmp_path: Path) -> None:
    folder.mkdir()
    outside = tmp_path / "outside"
    outside.write_bytes(b"mine")
    (folder / "dup").write_bytes(b"before")
    (folder / "dup.2").symlink_to(outside)
    (folder / "dup.3").symlink_to(tmp_path / "nowhere")
    orders.enqueue_many([Message(b"1", id="dup"), Message(b"2", id="dup"), Message(b"3", id="dup.5")])

    run("receive", "orders", "--max", "0", "--output-dir", str(folder))

    assert (outside.read_bytes(), (tmp_path / "nowhere").exists()) == (b"mine", False)
    (folder / "dup.2").unlink()
    (folder / "dup.3").unlink()
    assert held(folder) == {"dup": b"before", "dup.4": b"1", "dup.5": b"2", "dup.5.2": b"3"}


@pytest.mark.parametrize(
    "id, name",
    [
        ("order-17_a.json", "order-17_a.json"),
        ("../../etc/passwd", "%2E.%2F..%2Fetc%2Fpasswd"),
        ("/etc/passwd", "%2Fetc%2Fpasswd"),
        (".", "%2E"),
        ("..", "%2E."),
        (".bashrc", "%2Ebashrc"),
        ("-rf", "%2Drf"),
        ("~root", "%7Eroot"),
        ("a b*?$`|;&<>\\\"'", "a%20b%2A%3F%24%60%7C%3B%26%3C%3E%5C%22%27"),
        ("a%2Fb", "a%252Fb"),
        ("漢", "%E6%BC%A2"),
        ("\x00\n\x1b", "%00%0A%1B"),
        ("\udc80", "%ED%B2%80"),
        ("", "_"),
    ],
)
def test_a_name_is_one_plain_word(id: str, name: str) -> None:
    assert file_name(id) == name


def test_long_ids_are_cut_and_kept_apart(run: Run, orders: Queue, folder: Path) -> None:
    ids = ["漢" * 85, "漢" * 84 + "字", "x" * 255, "x" * 254 + "y"]
    orders.enqueue_many([Message(b"%d" % i, id=id) for i, id in enumerate(ids)])

    run("receive", "orders", "--max", "0", "--output-dir", str(folder))

    assert sorted(held(folder).values()) == [b"0", b"1", b"2", b"3"]
    assert max(map(len, held(folder))) <= 200


@pytest.mark.parametrize("existing", ["file", "nothing above", "no permission"])
def test_an_unusable_folder_is_an_error_and_nothing_is_received(
    run: Run, orders: Queue, tmp_path: Path, existing: str
) -> None:
    orders.enqueue(b"a")
    folder = tmp_path / "x"
    if existing == "file":
        folder.write_bytes(b"")
    elif existing == "nothing above":
        folder = folder / "y"
    else:
        folder = Path("/proc/rqttl")

    result = run("receive", "orders", "--output-dir", str(folder))

    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.startswith(f"rqttl: {folder}: ")
    assert orders.stats().delivered == 0


def test_a_missing_queue_makes_no_folder(run: Run, broker: Broker, folder: Path) -> None:
    assert run("receive", "orders", "--output-dir", str(folder)).exit_code == 3
    assert not folder.exists()


def test_a_file_that_cannot_be_written_whole_is_removed_and_its_message_goes_back(
    run: Run, orders: Queue, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.enqueue_many([b"a", b"b"])
    synced: list[int] = []

    def full(file: int) -> None:
        synced.append(file)
        if len(synced) == 3:  # file and folder of the first, file of the second
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    result = run("receive", "orders", "--max", "0", "--output-dir", str(folder))

    assert (result.exit_code, result.stderr) == (3, "rqttl: cannot go on: No space left on device\n")
    assert list(held(folder).values()) == [b"a"]
    assert orders.stats().acked == 1
    (left,) = orders.receive_many(9)
    assert (left.body, left.delivery_count) == (b"b", 1)


def test_a_message_is_acked_after_its_file_is_safe(
    run: Run, orders: Queue, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.enqueue(b"a")
    acked: list[int] = []
    real = os.fsync

    def note(file: int) -> None:
        acked.append(orders.stats().acked)
        real(file)

    monkeypatch.setattr(os, "fsync", note)
    run("receive", "orders", "--output-dir", str(folder))

    assert (acked, orders.stats().acked) == ([0, 0], 1)


def test_without_links_an_empty_file_takes_the_name_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    target = Folder(folder)
    paths = [target.store("one", b"1"), target.store("one", b"2")]

    assert [path.name for path in paths] == ["one", "one.2"]
    assert held(folder) == {"one": b"1", "one.2": b"2"}


def test_another_failure_to_name_a_file_is_not_hidden(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "link", fail)

    with pytest.raises(OSError, match="Input/output"):
        Folder(folder).store("one", b"1")
    assert held(folder) == {}
