"""The linker: turns `lua/commands/*.lua` and the fragments they use into the texts that Redis runs.

The header of a command (`@keys @args @use`) is the only place that decides positions. The linker reads the header, adds
the fragments that it names, and binds `KEYS` and `ARGV` to names.

Redis builds every function again at each call of a script. So the linker puts a function that is named only as
`lazy(module).function` into the function `lazy`. `lazy` builds it at its first call, with all functions that only it
needs. `lazy(3)` is the third of these functions. The module tables are for readers: `module.function` becomes the local
`module_function`. Before and after linking:

    -- fragments a and b                          local a_hot
    function a.hot(x) return x + 1 end            local built, lazy
    function b.cold(x) return x * 2 end           function a_hot(x) return x + 1 end
    -- a command                                  function lazy(n) ... if n == 1 then ... f = b_cold ... return f end
    local x = a.hot(1)                            local x = a_hot(1)
    if x > 5 then x = lazy(b).cold(x) end         if x > 5 then x = lazy(1)(x) end
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from dataclasses import asdict
from functools import cache
from importlib import resources
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from rqttl.errors import ContractError
from rqttl.protocol.contract import FENCE, Script
from rqttl.protocol.keys import LISTS, PARTS, STATES

if TYPE_CHECKING:
    from collections.abc import Iterable
    from importlib.abc import Traversable  # importlib.resources.abc exists only from Python 3.11 on

_LOOP = re.compile(r"^( *)for (\w+) in each\('(\w+)'\) do\n(.*?)^\1end\n", re.MULTILINE | re.DOTALL)
_LIST = re.compile(r"\beach\('(\w+)', function\((\w+)\) return (.*?) end\)")


def unroll(script: str, text: str) -> str:
    """Write out each use of `each` in a text without comments. Raises `ContractError` if that is not possible."""

    def bodies(name: str, variable: str, body: str) -> list[str]:
        if name not in LISTS:
            raise ContractError(f"lua: {script}: each: expected one of {', '.join(LISTS)}, got {name}")
        return [_fill(script, body, variable, part) for part in LISTS[name]]

    def loop(match: re.Match[str]) -> str:
        indent, variable, name, body = match.groups()
        if re.search(r"\bbreak\b", body):
            raise ContractError(f"lua: {script}: each: a loop that is written out has no break")
        return "".join(f"{indent}do\n{body}{indent}end\n" for body in bodies(name, variable, body))

    def expressions(match: re.Match[str]) -> str:
        return ", ".join(bodies(*match.groups()))

    written = _LIST.sub(expressions, _LOOP.sub(loop, text))
    if re.search(r"\beach\(", written):
        raise ContractError(f"lua: {script}: each: expected a loop with `do` at the end of its line, or a list")
    return written


def _fill(script: str, body: str, variable: str, part: str) -> str:
    """The body of a loop for one part. The fields of the variable stand there as Lua writes their values."""
    values = {"part": part, **(asdict(STATES[part]) if part in STATES else {})}
    constants = {name: repr(value) if isinstance(value, str) else str(value).lower() for name, value in values.items()}
    filled = body.replace(f"q[{variable}.part]", f"q.{part}")

    def constant(match: re.Match[str]) -> str:
        if match[1] not in constants:
            raise ContractError(f"lua: {script}: each: {part} has no field {match[1] or variable}")
        return constants[match[1]]

    return re.sub(rf"(?<![\w.']){variable}\b(?:\.(\w+))?", constant, filled)


_RECORD = "last_id ready_bytes due_at has_waiters had_waiters drops_head targets ms serial prefix".split()  # noqa: SIM905  # a list of ten lines

#: The fields of a queue that gets copies, beyond these.
_COPY = ("name", "version", "numbers", "notes", "enqueued_before", "items")

_TAG = re.compile(r"^-- @(\w+)[^\S\n]*(.*)$", re.MULTILINE)
_HEADER = re.compile(r"\A(?:--.*\n)+")
_FUNCTION = re.compile(r"^function (\w+)\.(\w+)\(.*?^end\n", re.MULTILINE | re.DOTALL)
_MODULE = re.compile(r"^local \w+ = \{\}\n", re.MULTILINE)
_CHANGING = re.compile(r"^local [a-z]", re.MULTILINE)
_NAMED = re.compile(r"\b(\w+)\.(\w+)\b")
_LAZY = re.compile(r"\blazy\((\w+)\)\.(\w+)\b")
_PART = re.compile(r"^\s*-- @part (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*\n|(?<=\S)\s+-- .*$", re.MULTILINE)


@cache
def _root() -> Traversable:
    packaged = resources.files("rqttl") / "_lua"
    if packaged.is_dir():
        return packaged
    return Path(__file__).resolve().parents[2] / "lua"


@cache
def _folders() -> dict[str, Traversable]:
    """The folder of each fragment by the name of the fragment. Two fragments of one name are an error."""
    folders: dict[str, Traversable] = {}
    for folder in (_root() / "lib").iterdir():
        for entry in folder.iterdir():
            name = entry.name.removesuffix(".lua")
            if name in folders:
                raise ContractError(f"lua: two fragments are named {name}: in {folders[name].name} and {folder.name}")
            folders[name] = folder
    return folders


@cache
def _read(kind: str, name: str) -> tuple[dict[str, list[str]], str]:
    """Read a command or a fragment: the tags of its header, and its text without header and comments."""
    folder = _root() / "commands" if kind == "commands" else _folders().get(name, _root() / "lib")
    text = (folder / f"{name}.lua").read_text(encoding="utf-8")
    header = _HEADER.match(text)
    tags: dict[str, list[str]] = {}
    for tag, words in _TAG.findall(header[0] if header else ""):
        tags.setdefault(tag, []).extend(words.split())
    return tags, unroll(name, _COMMENT.sub("", _HEADER.sub("", text)))


def _fragments(roots: list[str]) -> dict[str, str]:
    """The texts of the root fragments and of all fragments that they use. Each stands behind the fragments it uses."""
    texts: dict[str, str] = {}

    def find(names: list[str], path: tuple[str, ...]) -> None:
        for name in names:
            if name in path:
                raise ContractError(f"lua: fragments use each other in a circle: {' > '.join((*path, name))}")
            if name not in texts:
                tags, text = _read("lib", name)
                find(tags.get("use", []), (*path, name))
                texts[name] = text

    find(roots, ())
    return texts


def _join(fragments: dict[str, str], body: str) -> str:
    """Join the fragments of a command and the command itself, without unused functions; see the head of this module."""
    functions: dict[str, str] = {}
    for text in fragments.values():
        functions.update({f"{match[1]}.{match[2]}": match[0] for match in _FUNCTION.finditer(text)})
    always = _reachable(functions, body)
    groups = _groups(functions, always, body)
    numbers = {name: i for i, name in enumerate(groups, 1)}
    tops = {use: _MODULE.sub("", _FUNCTION.sub("", text)) for use, text in fragments.items()}
    used, hot = _modules(always.union(*groups.values())), _modules(always)
    # a variable exists once for all; constants stand beside their functions
    shared = [use for use in tops if use in hot or (use in used and _CHANGING.search(tops[use]))]
    declared, defined = _define(functions, always)
    # Lua searches locals from the last one on, and nearly every function names `call`
    text = "".join(tops[use] for use in shared) + declared + "local built, lazy\n" * bool(groups)
    text += "local call = redis.call\n" + _bind(defined, always, numbers)
    if groups:
        cases = []
        for name, group in groups.items():
            needed = _modules(group)
            own = "".join(tops[use] for use in tops if use in needed and use not in shared)
            bound = _bind("".join(_define(functions, group)), always | group, numbers)
            cases.append(f"if n == {numbers[name]} then\n{own}{bound}f = {_local(name)}\n")
        text += f"function lazy(n)\nlocal f = built and built[n]\nif f then return f end\n{'else'.join(cases)}end\n"
        text += "built = built or {}\nbuilt[n] = f\nreturn f\nend\n"
    return text + _bind(body, always, numbers)


def _groups(functions: dict[str, str], always: set[str], body: str) -> dict[str, set[str]]:
    """The functions that are called as lazy, each with the functions that it needs beyond those in `always`."""
    groups: dict[str, set[str]] = {}
    texts = [body, *(functions[name] for name in always)]
    while texts:
        named = {f"{a}.{b}" for text in texts for a, b in _LAZY.findall(text)} & functions.keys() - always
        new = {name: _reachable(functions, name) - always for name in named - groups.keys()}
        texts = [functions[name] for group in new.values() for name in group]
        groups |= new
    return {name: groups[name] for name in functions if name in groups}


def _bind(text: str, local_names: set[str], numbers: dict[str, int]) -> str:
    """The text with functions of `local_names` as locals, and functions of `numbers` as calls of `lazy`."""

    def bound(match: re.Match[str]) -> str:
        name = f"{match[1]}.{match[2]}"
        is_lazy = match[0] != name and name in numbers
        return _local(name) if name in local_names else f"lazy({numbers[name]})" if is_lazy else match[0]

    return _NAMED.sub(bound, _LAZY.sub(bound, text))


def _define(functions: dict[str, str], names: set[str]) -> tuple[str, str]:
    """The line that declares these functions, and their definitions: functions may name each other."""
    ordered = [name for name in functions if name in names]
    declared = f"local {', '.join(map(_local, ordered))}\n" if ordered else ""
    return declared, "".join(functions[name] for name in ordered)


def _local(name: str) -> str:
    return name.replace(".", "_")


def _modules(names: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}


def _reachable(functions: dict[str, str], text: str) -> set[str]:
    """The functions that a text names, directly or through other functions. Names within `lazy(...)` do not count."""
    reached: set[str] = set()
    texts = [text]
    while texts:
        named = {f"{a}.{b}" for text in texts for a, b in _NAMED.findall(_LAZY.sub("", text))} & functions.keys()
        texts = [functions[name].partition("\n")[2] for name in named - reached]
        reached |= named
    return reached


def _plain(name: str, keys: list[str], args: list[str]) -> str:
    """The text of the plain case of a command, with positions in place of names; empty for a command without one."""
    folder = _root() / "plain"

    def read(file: Traversable) -> str:
        return _HEADER.sub("", file.read_text(encoding="utf-8"))

    if not (folder / f"{name}.lua").is_file():
        return ""
    text = _PART.sub(lambda match: read(folder / "parts" / f"{match[1]}.lua"), read(folder / f"{name}.lua"))
    text = _COMMENT.sub("", text)
    positions = {f"key.{part}": f"KEYS[{i}]" for i, part in enumerate(keys, 1)}
    positions |= {f"arg.{word}": f"ARGV[{i}]" for i, word in enumerate(args, 1)}

    def position(match: re.Match[str]) -> str:
        if match[0] not in positions:
            raise ContractError(f"lua: plain/{name}: its command has no {match[0]}")
        return positions[match[0]]

    fixed = len(args)
    text = re.sub(r"\b(?:key|arg)\.\w+", position, text).replace("rest.size", f"(#ARGV - {fixed})")
    text = re.sub(r"\brest\.from\((\d+)\)", lambda match: f"unpack(ARGV, {fixed + int(match[1])})", text)
    text = re.sub(r"\brest\[(\d+)\]", lambda match: f"ARGV[{fixed + int(match[1])}]", text)
    text = text.replace("rest[", f"ARGV[{fixed} + ")
    return f"do\nlocal call = redis.call\n{text}end\n"


def _table(name: str, least: int, keys: list[str], has_rest: str, at: str = "", room: Iterable[str] = ()) -> str:
    """The lines that make the table of a queue. Its keys stand behind `at`; `has_rest`: more than the `least` ones.

    It has space for the fields that `record.open` and `append.next_seq` set, and for those of `room`: it never grows.
    """
    named = [f"{part} = KEYS[{at}{i}]" for i, part in enumerate(keys[:least], 1)]
    named += [f"{field} = nil" for field in (*_RECORD, *room)]
    rest = ", ".join(f"{name}.{part}" for part in keys[least:])
    more = f"if {has_rest} then {rest} = unpack(KEYS, {at}{least + 1}, {at}{len(keys)}) end\n" if rest else ""
    return f"local {name} = {{{', '.join(named)}}}\n{more}"


def _bindings(least: int, keys: list[str], args: list[str], further: str) -> str:
    """The lines that name the positions of keys and arguments. `further` takes all other arguments."""
    lines = [_table("q", least, keys, f"KEYS[{least + 1}]")]
    named = [f"{word} = ARGV[{i}]" for i, word in enumerate(args, 1)]
    if further:
        named.append(f"{further} = {{unpack(ARGV, {len(args) + 1})}}")
    lines.append("local arg = {" + ", ".join(named) + "}")
    return "\n".join(lines) + "\n"


_linked: dict[str, Script] = {}
#: The lock of each process by its id: in a forked child nobody gives back the lock of its parent.
_linking: dict[int, Lock] = {}


@cache
def load(name: str) -> Script:
    """Link one command, once. Its text and its hash are the same for every server, because ACLs may pin the hash."""
    # only one thread links: if 300 threads linked the same text at once, each would finish a minute later
    with _linking.setdefault(os.getpid(), Lock()):
        script = _linked[name] = _linked.get(name) or _link(name)
    return script


def _link(name: str) -> Script:
    tags, source = _read("commands", name)
    keys, args = _parts(tags.get("keys", [])), [*tags.get("args", [])]
    for word in (*args, *_names(tags, "reply")):
        if not word.removesuffix("...").isidentifier():
            raise ContractError(f"lua: {name}: {word!r} in its header is not a name")
    fence = [word for word in FENCE if word in args]
    if args[: len(fence)] != fence:
        raise ContractError(f"lua: {name}: {' and '.join(fence)} must be the first arguments")
    keys = [*tags.get("shared", []), *keys]
    least = keys.index("|") if "|" in keys else len(keys)
    keys = [key for key in keys if key != "|"]
    further = args.pop().removesuffix("...") if args and args[-1].endswith("...") else ""
    targets = tags.get("targets", [])
    enough = f"#KEYS < {least} or #ARGV {'<' if further else '~='} {len(args)}"
    check = f"if {enough} then return redis.error_reply('RQTTL {name}: wrong number of keys or arguments') end\n"
    body = _bindings(least, keys, args, further)
    if targets:
        bind = f"lazy(dead_letter).bind(q, KEYS, {len(keys)}, arg.targets)"
        body += f"q.targets = arg.targets ~= '' and {bind} or {{}}\n"
    copied = " ".join(tags.get("copies", []))
    if copied:
        like = _link(copied)
        table = _table("into", like.least, [*like.keys], f"size > {like.least}", "at + ", _COPY)
        make = f"function(at, size)\n{table}return into\nend"
        body += f"q.copies = copies.bind(q, KEYS, {len(keys)}, arg, {make}, {len(like.keys)})\n"
    other = tuple(_parts(tags.get("source", [])))
    if other:
        # a source that is a target, too, has one table for both
        body += "q.source = q.targets.source\n"
        body += f"{', '.join(f'q.source.{part}' for part in other)} = unpack(KEYS, #KEYS - {len(other) - 1})\n"
    fragments = _fragments([*tags.get("use", []), *["dead_letter"] * bool(targets)])
    text = check + _plain(name, keys, args) + _join(fragments, body + source)
    text = text.replace("redis.call(", "call(")
    text = re.sub(r"\n{2,}", "\n", text).lstrip()
    sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    words = tuple(keys), least, tuple(args), tuple(targets), _names(tags, "refuse"), bool(further), other
    return Script(name, text, sha, *words, _names(tags, "reply"), tuple(tags.get("shared", [])), copied)


def _names(tags: dict[str, list[str]], tag: str) -> tuple[str, ...]:
    """The names of a tag. A word that ends with a colon is the last one; prose follows it."""
    words = tags.get(tag, [])
    last = next((i for i, word in enumerate(words, 1) if word.endswith(":")), len(words))
    return tuple(word.removesuffix(":") for word in words[:last])


def _parts(words: list[str]) -> list[str]:
    """The keys of a header. `*` stands for all parts of a queue, `states` for a list."""
    lists = {"*": PARTS, "states": LISTS["states"], "counted": LISTS["counted"]}
    return [part for word in words for part in lists.get(word, (word,))]


def names() -> tuple[str, ...]:
    """All commands."""
    return tuple(sorted(entry.name[:-4] for entry in (_root() / "commands").iterdir() if entry.name.endswith(".lua")))


def show(name: str) -> str:
    """What Redis runs for a command, each line with the file that it comes from. `redis-cli --ldb --eval` takes it."""
    script = load(name)
    fragments = _fragments([*_read("commands", name)[0].get("use", []), *["dead_letter"] * bool(script.targets)])
    plain = [line for line in _plain(name, [*script.keys], [*script.args]).splitlines() if line]
    #: The file of each function and of each constant, by the text with which its line begins.
    files: dict[str, str] = {"function lazy": "linked"}
    for use, text in fragments.items():
        file = f"lib/{_folders()[use].name}/{use}.lua"
        files |= {f"function {match[1]}_{match[2]}": file for match in _FUNCTION.finditer(text)}
        files |= {line: file for line in text.splitlines() if line.startswith("local ")}
    lines, file = [], "linked"
    for number, line in enumerate(script.text.splitlines()):
        if 1 <= number <= len(plain):
            file = f"plain/{name}.lua"
        elif line.startswith("local q = {"):
            file = f"commands/{name}.lua"
        elif not line.startswith(" ") and file != f"commands/{name}.lua":
            file = files.get(line.partition("(")[0] if line.startswith("function ") else line, file)
        lines.append(f"{line:<100} -- {file}")
        if (line == "end" and file.startswith("lib/")) or number == len(plain):
            file = "linked"
    return "\n".join(lines)


if __name__ == "__main__":
    command = sys.argv[2] if len(sys.argv) == 3 and sys.argv[1] == "show" else ""
    if command not in names():
        sys.exit(f"usage: python -m rqttl.protocol.scripts show {{{','.join(names())}}}")
    sys.stdout.write(show(command) + "\n")
