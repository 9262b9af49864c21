"""The environments of the peers, made once under `build/compare` from `peers.ini`."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parents[2] / "build" / "compare"
INSTALLATION = 900.0  # seconds


def packages(section: str) -> list[str]:
    """The pinned packages of an environment."""
    parser = configparser.ConfigParser()
    parser.read(HERE / "peers.ini", encoding="utf-8")
    return parser[section]["packages"].split()


def prepared(section: str, folder: Path = FOLDER) -> list[str]:
    """The command that runs a program in the environment, made if it is missing. `[]` when it cannot be made."""
    if section == "rqttl":
        return [sys.executable]
    target, pinned = folder / section, packages(section)
    stamp, wanted = target / "packages.txt", "\n".join(pinned)
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != wanted:
        print(f"installing the environment {section}: {' '.join(pinned)}", file=sys.stderr, flush=True)
        problem = _install(section, target, pinned)
        if problem:
            print(f"{section}: not installed: {problem}", file=sys.stderr, flush=True)
            return []
        stamp.write_text(wanted, encoding="utf-8")
    node = shutil.which("node")
    return [str(node)] if section == "node" else [str(target / "bin" / "python")]


def _install(section: str, target: Path, pinned: list[str]) -> str:
    """Install the packages. Return the last line of the failure, or an empty text."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    if section == "node":
        if not shutil.which("npm") or not shutil.which("node"):
            return "no node and npm"
        steps = [["npm", "install", "--no-audit", "--no-fund", "--silent", "--prefix", str(target), *pinned]]
    else:
        steps = [
            [sys.executable, "-m", "venv", str(target)],
            [str(target / "bin" / "python"), "-m", "pip", "install", "--quiet", *pinned],
        ]
    for step in steps:
        try:
            done = subprocess.run(step, capture_output=True, text=True, timeout=INSTALLATION, check=False)
        except subprocess.TimeoutExpired:
            return f"{step[0]}: no end after {INSTALLATION:.0f} s"
        if done.returncode:
            return (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
    return ""
