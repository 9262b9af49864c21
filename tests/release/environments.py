"""Environments that hold a wheel, what it depends on, and nothing else; and the programs in them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.repository import ROOT

WORK = ROOT / "build" / "dist"
TOOLS = WORK / "tools" / "bin"


def run(*words: object, cwd: Path, **environment: object) -> str:
    """Run a program away from the checkout, and return what it prints."""
    settings = {**kept(), **{name: str(value) for name, value in environment.items()}}
    line = [str(word) for word in words]
    done = subprocess.run(line, cwd=cwd, env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(line)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def kept() -> dict[str, str]:
    """This environment without what would lead to the checkout or to a server of the machine."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "RQTTL_URL")}


def wheel(folder: Path = ROOT / "dist") -> Path:
    """Return the wheel in a folder."""
    [found] = folder.glob("rqttl-*.whl")
    return found


def installed(folder: Path, *what: object, python: str = sys.executable) -> Path:
    """Make an environment with these packages, and return its folder of programs."""
    run(python, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    pip = (TOOLS / "python", "-m", "pip", "--python", folder / "bin" / "python")
    run(*pip, "install", "--quiet", "--no-compile", *what, cwd=folder.parent)
    return folder / "bin"


def python(version: str) -> str | None:
    """Return the program of a version of Python, if this machine has it."""
    folder = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for found in (shutil.which(f"python{version}"), *sorted(map(str, folder.glob(f"{version}.*/bin/python")))):
        if found and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0:
            return found
    return None
