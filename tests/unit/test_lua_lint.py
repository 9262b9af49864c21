"""The linter for Lua: it reads each script with the globals that the header of the script gives, and with no others."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.repository import ROOT, lua_files, name_of

#: The globals of every script: from Redis and from the linker.
GIVEN = ("redis", "lazy", "each", "arg")
PARTS = ROOT / "lua" / "plain" / "parts"


def uses(path: Path) -> list[str]:
    """The fragments that a header names."""
    return tagged(path, "use")


def names_of(path: Path) -> list[str]:
    """The local variables that a part of plain cases shares with them."""
    return tagged(path, "names")


def tagged(path: Path, tag: str) -> list[str]:
    return " ".join(re.findall(rf"^\s*-- @{tag}\s+(.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)).split()


def configuration() -> str:
    """The settings of luacheck: for each file the globals that it may read."""
    lines = ['std = "lua51"', "max_line_length = 120"]
    for path in (*lua_files("commands"), *lua_files("lib")):
        names = ", ".join(f'"{name}"' for name in (*GIVEN, *uses(path)))
        # 241: a fragment is a table that only others read
        rules = f'read_globals = {{{names}}}, globals = {{"q"}}, ignore = {{"241/{path.stem}"}}'
        lines.append(f'files["{name_of(path)}"] = {{{rules}}}')
    for path in lua_files("plain"):
        # 511: a `return` before the end of the loop that a `break` leaves. 542: a part is the whole body of an `if`.
        # 2: a part sets or reads the variable.
        shared = [f'"2../{name}"' for part in tagged(path, "part") for name in names_of(PARTS / f"{part}.lua")]
        names = ", ".join(f'"{name}"' for name in names_of(path))
        ignored = ", ".join(('"511"', '"542"', *shared))
        rules = f'read_globals = {{"redis", "key", "arg", "rest"}}, globals = {{{names}}}, ignore = {{{ignored}}}'
        lines.append(f'files["{name_of(path)}"] = {{{rules}}}')
    return "\n".join(lines)


@pytest.fixture(scope="module")
def luacheck() -> str:
    program = shutil.which("luacheck")
    if program is None:
        assert "CI" not in os.environ, "luacheck is missing; `make setup` installs it"
        pytest.skip("luacheck is missing; install it (Debian: apt-get install lua-check)")
    return program


def run(program: str, settings: str, *files: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    (cwd / "settings").write_text(settings, encoding="utf-8")
    command = [program, "--no-color", "--codes", "-q", "--config", str(cwd / "settings"), *files]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_scripts_are_clean(luacheck: str, tmp_path: Path) -> None:
    done = run(luacheck, configuration(), "lua", cwd=tmp_path)

    assert (done.returncode, done.stdout + done.stderr) == (0, done.stdout)


def test_a_fragment_that_the_header_does_not_name_is_a_finding(luacheck: str, tmp_path: Path) -> None:
    script = tmp_path / "go.lua"
    script.write_text("--- Go.\n-- @use clock\n\nlocal unused = clock.now(ready.read(q))\n", encoding="utf-8")
    settings = f'std = "lua51"\nfiles["{script}"] = {{read_globals = {{"q", "clock"}}}}'

    done = run(luacheck, settings, str(script), cwd=tmp_path)

    assert re.findall(r"\((W\d+)\)", done.stdout) == ["W211", "W113"]
