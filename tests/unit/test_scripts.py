"""The contract between headers, scripts and Python, and the linker that reads it."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from pathlib import Path

import pytest
import redis

from rqttl import errors
from rqttl.protocol import keys, scripts

NAMES = scripts.names()
#: Refusals that never reach a caller: the flow has an answer to them.
ANSWERED = {"stale", "retry", "queue_expired"}
LUA = Path(scripts.__file__).parents[2] / "lua"
FRAGMENTS = {path.stem: path for path in sorted((LUA / "lib").glob("*/*.lua"))}


def source(kind: str, name: str) -> str:
    path = FRAGMENTS[name] if kind == "lib" else LUA / kind / f"{name}.lua"
    return path.read_text(encoding="utf-8")


def header(name: str) -> dict[str, str]:
    tags: dict[str, str] = {}
    for tag, words in re.findall(r"^-- @(\w+)[^\S\n]*(.*)$", source("commands", name), re.MULTILINE):
        tags[tag] = f"{tags.get(tag, '')} {words}".strip()
    return tags


def body(name: str) -> str:
    return "\n".join(line for line in source("commands", name).splitlines() if not line.startswith("--"))


def refusals(name: str) -> set[str]:
    return set(scripts.load(name).refusals)


def error_classes(root: type[errors.RqttlError] = errors.RqttlError) -> list[type[errors.RqttlError]]:
    return [root, *[found for one in root.__subclasses__() for found in error_classes(one)]]


@pytest.mark.parametrize("name", NAMES)
def test_a_header_says_all_there_is_to_say(name: str) -> None:
    assert {"use", "args", "reply"} <= header(name).keys()
    assert {"keys", "shared"} & header(name).keys()
    assert source("commands", name).startswith("--- ")


@pytest.mark.parametrize("name", NAMES)
def test_a_command_refuses_with_the_codes_of_its_header(name: str) -> None:
    text = body(name)
    used = set(re.findall(r"refuse\('(\w+)'", text))
    if "refuse(refusal)" in text:
        used |= {"not_found"} | ({"stale"} if "version" in header(name)["args"].split() else set())
        used |= {"queue_expired"} if "arg.version, now" in text else set()

    assert used == refusals(name)


@pytest.mark.parametrize("name", NAMES)
def test_every_refusal_has_an_error_of_the_same_word_or_an_answer(name: str) -> None:
    assert refusals(name) <= ANSWERED | {one.code for one in error_classes()}


@pytest.mark.parametrize("name", NAMES)
def test_the_keys_of_a_header_are_the_parts_of_a_queue_that_the_script_uses(name: str) -> None:
    script = scripts.load(name)

    assert set(script.keys) <= {*keys.PARTS, *script.shared}
    assert len(set(script.keys)) == len(script.keys)
    # lists of states name parts as text
    assert {part for part in keys.PARTS if re.search(rf"\bq\.{part}\b|'{part}'", script.text)} <= set(script.keys)
    assert [key for key in script.keys if not re.search(rf"\b(?:q|into)\.{key}\b|'{key}'", script.text)] == []


def test_the_parts_that_scripts_take_are_all_the_parts_there_are() -> None:
    assert {key for name in NAMES for key in scripts.load(name).keys} == {*keys.PARTS, "policies"}


@pytest.mark.parametrize("name", NAMES)
def test_a_command_that_buries_takes_the_keys_of_targets_last(name: str) -> None:
    script = scripts.load(name)

    assert bool(script.targets) == ("targets" in script.args)
    assert set(keys.TARGET_PARTS) <= set(keys.PARTS)
    assert script.has_rest == header(name)["args"].endswith("...")


@pytest.mark.parametrize("name", NAMES)
def test_a_command_uses_every_argument_it_takes(name: str) -> None:
    script = scripts.load(name)
    taken = header(name)["args"].replace("...", "").split()

    text = body(name) + " arg.targets" * bool(script.targets)
    assert [word for word in taken if not re.search(rf"\barg\.{word}\b", text)] == []
    assert set(re.findall(r"\barg\.(\w+)", text)) == set(taken)


def fragments_called(text: str) -> set[str]:
    """The fragments whose functions a script calls."""
    code = re.sub(r"--.*", "", text)
    calls = re.findall(r"(?<![\w.'])(\w+)\.\w+\(|\blazy\((\w+)\)", code)
    return {name for pair in calls for name in pair} & set(FRAGMENTS)


def fragments_named(text: str) -> list[str]:
    """The fragments that the header of a script names."""
    return " ".join(re.findall(r"^-- @use\s+(.*)$", text, re.MULTILINE)).split()


@pytest.mark.parametrize("name", NAMES)
def test_the_header_of_a_command_names_exactly_the_fragments_that_it_calls(name: str) -> None:
    text = source("commands", name)

    assert sorted(fragments_named(text)) == sorted(fragments_called(text))


@pytest.mark.parametrize("name", FRAGMENTS)
def test_a_fragment_names_exactly_the_fragments_that_it_calls_and_defines_one_module(name: str) -> None:
    text = source("lib", name)

    assert f"local {name} = {{}}" in text
    assert sorted(fragments_named(text)) == sorted(fragments_called(text) - {name})


@pytest.mark.parametrize("name", NAMES)
def test_a_linked_text_calls_only_functions_that_it_holds_and_holds_only_functions_that_it_calls(name: str) -> None:
    text = scripts.load(name).text
    held = {one.replace(".", "_") for one in re.findall(r"^function ([\w.]+)\(", text, re.MULTILINE)} - {"lazy"}
    calls = re.sub(r"^(?:function |local [\w, ]+$|built = ).*$", "", text, flags=re.MULTILINE)
    of_fragments = rf"(?<![\w.])((?:{'|'.join(FRAGMENTS)})[._]\w+)\("
    entrances = set(re.findall(r"^f = (\w+)$", calls, re.MULTILINE))
    called = entrances | {one.replace(".", "_") for one in re.findall(of_fragments, calls)}

    assert held == called


@pytest.mark.parametrize("name", NAMES)
def test_a_linked_text_has_no_comment_and_does_nothing_that_is_forbidden(name: str) -> None:
    text = scripts.load(name).text

    assert not re.search(r"^\s*--|^#!", text, re.MULTILINE)
    forbidden = (
        r"'(?:KEYS|SCAN|EXPIRE|LREM|LRANGE|SMEMBERS|HKEYS)'|'PEXPIRE', (?!q\.(?:tombstone|wakeup),)"
        r"|cmsgpack|cjson|math\.random|loadstring|setfenv"
    )
    assert not re.search(forbidden, text)
    assert text.count("error_reply") == 1


def forget() -> None:
    scripts._linked.clear()
    scripts.load.cache_clear()
    scripts._read.cache_clear()
    scripts._folders.cache_clear()


@pytest.mark.parametrize("name", NAMES)
def test_the_hash_is_of_the_text_and_the_text_is_always_the_same(name: str) -> None:
    first = scripts.load(name)
    forget()
    second = scripts.load(name)

    assert dataclasses.astuple(first) == dataclasses.astuple(second)
    assert first.sha == hashlib.sha1(first.text.encode(), usedforsecurity=False).hexdigest()


@pytest.mark.parametrize("name", NAMES)
def test_redis_takes_the_text_and_knows_it_by_the_same_hash(client: redis.Redis, name: str) -> None:
    script = scripts.load(name)

    assert client.script_load(script.text) == script.sha


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_number_of_keys_or_arguments_is_told_and_nothing_is_done(client: redis.Redis, name: str) -> None:
    script = scripts.load(name)
    sha = client.script_load(script.text)

    with pytest.raises(redis.ResponseError, match=f"RQTTL {name}: wrong number of keys or arguments"):
        client.evalsha(sha, 0)
    with pytest.raises(redis.ResponseError, match=f"RQTTL {name}: wrong number of keys or arguments"):
        client.evalsha(
            sha, len(script.keys), *script.keys, *["x"] * (max(0, len(script.args) - 1) if script.args else 1)
        )
    assert client.dbsize() == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_shown_script_is_what_redis_runs_and_names_the_file_of_each_line(name: str) -> None:
    shown = [line.rpartition(" -- ") for line in scripts.show(name).splitlines()]

    assert [text.rstrip() for text, _, _ in shown] == scripts.load(name).text.splitlines()
    for text, _, file in shown:
        if (function := re.match(r"function (\w+)\(", text)) and function[1] != "lazy":
            assert function[0] in (LUA / file).read_text().replace(".", "_")
    assert {f"commands/{name}.lua", "linked"} <= {file for _, _, file in shown}
