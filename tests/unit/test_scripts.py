"""Scripts against their headers, the tables of Python, and the linter for Lua."""

import dataclasses
import hashlib
import re
import subprocess
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest
import redis

from rqttl.options import OPTIONS, SCRIPT_OPTIONS
from rqttl.protocol import keys, scripts
from rqttl.types import QueueStats, State
from tests.repository import ROOT, lua_files, name_of
from tests.unit.reference import public_errors

NAMES = scripts.names()
#: Refusals that never reach a caller: the flow has an answer to them.
ANSWERED = {"stale", "retry", "queue_expired", "behind", "full"}
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


@pytest.mark.parametrize("name", NAMES)
def test_a_header_says_all_there_is_to_say(name: str) -> None:
    assert {"use", "args", "reply"} <= header(name).keys()
    assert {"keys", "shared"} & header(name).keys()
    assert source("commands", name).startswith("--- ")


@pytest.mark.parametrize("name", NAMES)
def test_a_command_refuses_with_the_codes_of_its_header_and_each_has_an_error_or_an_answer(name: str) -> None:
    text = body(name)
    used = set(re.findall(r"refuse\('(\w+)'", text))
    used |= {"retry"} if "again(q)" in text else set()
    if "refuse(refusal)" in text:
        used |= {"not_found"} | ({"stale"} if "version" in header(name)["args"].split() else set())
        used |= {"queue_expired"} if re.search(r"\bversion( or '')?, now", text) else set()

    assert used == refusals(name)
    assert used <= ANSWERED | {one.code for one in public_errors()}


@pytest.mark.parametrize("name", NAMES)
def test_the_keys_of_a_header_are_the_parts_of_a_queue_that_the_script_uses(name: str) -> None:
    script = scripts.load(name)

    assert set(script.keys) <= {*keys.PARTS, *keys.PAIRED, *script.shared}
    assert len(set(script.keys)) == len(script.keys)
    known = {*script.keys, *(scripts.load(script.copies).keys if script.copies else ())}
    # lists of states name parts as text
    assert {part for part in keys.PARTS if re.search(rf"\bq\.{part}\b|'{part}'", script.text)} <= known
    tables = "q|into|t" if name == "accept" else "q|into"  # its queue is a target
    assert [key for key in script.keys if not re.search(rf"\b(?:{tables})\.{key}\b|'{key}'", script.text)] == []


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


@pytest.mark.parametrize("kind, name", [("commands", name) for name in NAMES] + [("lib", name) for name in FRAGMENTS])
def test_a_header_names_exactly_the_fragments_that_are_called_and_a_fragment_is_one_module(
    kind: str, name: str
) -> None:
    text = source(kind, name)

    assert kind == "commands" or f"local {name} = {{}}" in text
    assert sorted(fragments_named(text)) == sorted(fragments_called(text) - ({name} if kind == "lib" else set()))


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
def test_redis_knows_a_text_by_its_hash_and_nothing_is_done_with_a_wrong_number_of_words(
    client: redis.Redis, name: str
) -> None:
    script = scripts.load(name)
    sha = client.script_load(script.text)
    assert sha == script.sha

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


def test_a_star_in_a_header_stands_for_all_parts_of_a_queue_in_the_order_of_the_table() -> None:
    assert scripts.load("sweep").keys == scripts.load("delete").keys == tuple(keys.PARTS)


def test_a_deleted_queue_keeps_only_the_parts_that_outlive_it() -> None:
    for name in ("delete", "sweep"):
        unlinked = re.findall(r"q\.(\w+)", linked(name, "record.unlink"))
        assert unlinked == [part.name for part in keys.PARTS.values() if not part.outlives]


def linked(name: str, function: str) -> str:
    """A function of a fragment, as the text of a command has it."""
    local = function.replace(".", "_")
    functions: list[str] = re.findall(rf"(?ms)^function {local}\(.*?^end$", scripts.load(name).text)
    return functions[0]


def test_states_are_the_words_of_the_public_types() -> None:
    names = [state.name for state in keys.STATES.values()]
    stats = {field.name: field.type for field in fields(QueueStats)}

    assert get_args(State) == ("ready", *names)
    assert {stats.get(name) for name in names} == {"int"}
    assert {stats.get(state.end) for state in keys.STATES.values() if state.end} == {"datetime | None"}


def test_no_script_lists_states_by_hand() -> None:
    """A script that names the sets of two states in one statement counts them, or looks through them."""
    by_hand = []
    for path in lua_files(""):
        code = re.sub(r"--.*", "", path.read_text(encoding="utf-8"))
        by_hand += [(path.name, line) for line in code.splitlines() if sum(part in line for part in keys.STATES) > 1]

    assert by_hand == []


def test_scripts_bind_the_keys_of_a_target_in_the_order_of_the_table() -> None:
    bound = re.findall(r"(\w+) = keys\[at \+ (\d+)\]", source("lib", "dead_letter"))

    far = (keys.OUTGOING, keys.OUTBOX)
    assert [(name, int(at)) for name, at in bound] == [
        (name, i) for parts in (far, keys.TARGET_PARTS) for i, name in enumerate(parts, 1)
    ]
    steps = re.findall(r"\bat = at \+ (\d+)$", source("lib", "dead_letter"), re.MULTILINE)
    assert steps == [str(len(far)), str(len(keys.TARGET_PARTS))]


def fields_read(module: str, function: str) -> set[str]:
    """The fields of `meta` that a function of a fragment reads."""
    [text] = re.findall(rf"^function {module}\.{function}\(.*?^end$", source("lib", module), re.MULTILINE | re.DOTALL)
    [fields] = re.findall(r"'HMGET', [qt]\.meta,\s+([^)]*)\)", text)
    return set(re.findall(r"'(\w+)'", fields))


@pytest.mark.parametrize(
    "use, place",
    [("always", ("options", "read")), ("lifetime", ("queue_lifetime", "read")), ("failure", ("pause", "rule"))],
)
def test_scripts_read_exactly_the_options_that_the_table_says(use: str, place: tuple[str, str]) -> None:
    assert fields_read(*place) & OPTIONS.keys() == {name for name, calls in SCRIPT_OPTIONS.items() if calls == use}


def test_no_script_reads_an_option_that_only_clients_know() -> None:
    texts = [source("commands", name) for name in NAMES] + [source("lib", name) for name in FRAGMENTS]
    quoted = {word for text in texts for word in re.findall(r"'(\w+)'", text)}

    assert quoted & OPTIONS.keys() - SCRIPT_OPTIONS.keys() == set()


#: The globals of every script: from Redis and from the linker.
GIVEN = ("redis", "lazy", "each", "arg")
PLAIN_PARTS = ROOT / "lua" / "plain" / "parts"


def tagged(path: Path, tag: str) -> list[str]:
    return " ".join(re.findall(rf"^\s*-- @{tag}\s+(.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)).split()


def configuration() -> str:
    """The settings of luacheck: for each file the globals that it may read."""
    lines = ['std = "lua51"', "max_line_length = 120"]
    for path in (*lua_files("commands"), *lua_files("lib")):
        names = ", ".join(f'"{name}"' for name in (*GIVEN, *tagged(path, "use")))
        # 241: a fragment is a table that only others read
        rules = f'read_globals = {{{names}}}, globals = {{"q"}}, ignore = {{"241/{path.stem}"}}'
        lines.append(f'files["{name_of(path)}"] = {{{rules}}}')
    for path in lua_files("plain"):
        # 511: a `return` before the end of the loop that a `break` leaves. 542: a part is the whole body of an `if`.
        # 2: a part sets or reads the variable.
        shared = [
            f'"2../{name}"' for part in tagged(path, "part") for name in tagged(PLAIN_PARTS / f"{part}.lua", "names")
        ]
        names = ", ".join(f'"{name}"' for name in tagged(path, "names"))
        ignored = ", ".join(('"511"', '"542"', *shared))
        rules = f'read_globals = {{"redis", "key", "arg", "rest"}}, globals = {{{names}}}, ignore = {{{ignored}}}'
        lines.append(f'files["{name_of(path)}"] = {{{rules}}}')
    return "\n".join(lines)


def test_scripts_are_clean(tmp_path: Path) -> None:
    (tmp_path / "settings").write_text(configuration(), encoding="utf-8")
    command = ["luacheck", "--no-color", "--codes", "-q", "--config", str(tmp_path / "settings"), "lua"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert not done.returncode, done.stdout + done.stderr
