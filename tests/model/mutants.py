"""Shows that the model test can fail: seeds one bug for each invariant into a copy of the source and counts the found.

    python -m tests.model.mutants [name ...]

The bugs are in `mutants.txt`: a name, lines of a script or of a flow (`- `), and the lines that replace them (`+ `).
The lines stand exactly once in all scripts, flows, filters and options, so a mutant needs no file name. A line `= `
names the test that finds a bug, if it is not the model test. RQTTL_MODEL_RUNS is the number of runs of each mutant. Not
part of CI. Ends with 1 if a mutant survives, or no longer applies because the source has changed. The source without a
bug runs first: where the model test fails on it, a failure on a mutant says nothing.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
MODEL = "tests/model/test_model.py"


class Mutant(NamedTuple):
    """One bug: the text `old` of a script or of a flow becomes `new`. `test` finds it."""

    name: str
    old: str
    new: str
    test: str = MODEL

    def places(self, root: Path) -> list[Path]:
        """The scripts and the flows with the text `old`, one for each time that it stands there."""
        source = [*(root / "lua").rglob("*.lua"), *(root / "rqttl/flows").rglob("*.py")]
        source += [root / "rqttl/filters.py", root / "rqttl/options.py"]
        return [path for path in source for _ in range(path.read_text(encoding="utf-8").count(self.old))]


def read_mutants(text: str) -> Iterator[Mutant]:
    """Read the mutants of a text. Blank lines separate them."""
    for block in text.strip().split("\n\n"):
        name, *lines = block.split("\n")
        old, new, test = ("\n".join(line[2:] for line in lines if line[0] == sign) for sign in "-+=")
        yield Mutant(name.removeprefix("# "), old, new, test or MODEL)


MUTANTS = tuple(read_mutants((Path(__file__).parent / "mutants.txt").read_text(encoding="utf-8")))


#: No bug.
CONTROL = Mutant("the source as it is", "", "")


def run(mutant: Mutant) -> str:
    """`found`, `survived`, or `does not apply`."""
    with tempfile.TemporaryDirectory(prefix="rqttl-mutant-") as folder:
        root = Path(folder)
        for part in ("lua", "rqttl", "tests"):
            shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", root)
        if mutant is not CONTROL:
            places = mutant.places(root)
            if len(places) != 1:
                return "does not apply"
            text = places[0].read_text(encoding="utf-8")
            places[0].write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", mutant.test]
        environment = {**os.environ, "RQTTL_MODEL_QUICK": "1"}
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
        return {0: "survived", 1: "found"}.get(
            done.returncode, f"did not run:\n{done.stdout[-2000:]}{done.stderr[-1000:]}"
        )


def main(names: list[str]) -> int:
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    outcome = run(CONTROL)
    sys.stdout.write(f"{outcome:<15} {CONTROL.name}\n")
    if outcome != "survived":
        return 1
    found = 0
    with ThreadPoolExecutor(2) as pool:
        for mutant, outcome in zip(chosen, pool.map(run, chosen), strict=True):
            found += outcome == "found"
            sys.stdout.write(f"{outcome:<15} {mutant.name}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{found} of {len(chosen)} found\n")
    return 0 if found == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
