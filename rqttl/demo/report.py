"""The end of the demo: the dead letters as Spark counts them, in numbers and in a picture.

Spark runs in `spark_connectors.demo_report`, a process of its own, because rqttl does not import the data source.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from rqttl.demo.show import print_hours, print_plain
from rqttl.demo.stage import NAMESPACE, Counts, ProgramFailed, dead_letters, last_line
from rqttl.embedded.folder import SCHEME, folder_of
from rqttl.embedded.guard import end_with_parent
from rqttl.embedded.server import find
from rqttl.text import install

#: The dead letters of each carrier, by the hour of the day for which the flights were scheduled.
Hours = Mapping[str, Mapping[int, int]]
#: The dead-letter queues of all carriers.
PATTERN = dead_letters("*")
#: The extra of rqttl that installs matplotlib.
_EXTRA = "demo"
_INK = "#222222"


def print_report(
    console: Console, url: str | None, counts: Mapping[str, Counts], airlines: Mapping[str, str], picture: str | None
) -> tuple[list[str], Mapping[str, Any]]:
    """Print the report of Spark on the server of `rqttl.connect(url)`, and draw it in the file `picture`.

    Returns a line for each sum that does not add up, and the report as JSON. Raises `ProgramFailed`.
    """
    started = time.monotonic()
    with console.status("Spark counts the dead letters"):
        answer = ask_spark(url)
    if "missing" in answer:
        print_plain(console, f"\nThe report of Spark is left out: {answer['missing']}")
        return [], answer
    found = {carrier: {int(hour): n for hour, n in hours.items()} for carrier, hours in answer["counts"].items()}
    problems = disagreements(counts, found)
    hours = {one: found[one] for one in sorted(found, key=lambda one: (-sum(found[one].values()), one))}
    path = None
    if hours:
        print_hours(console, hours, time.monotonic() - started)
        path = _draw(console, picture, hours, airlines)
    else:
        print_plain(console, "\nSpark has found no dead letters.")
    for problem in problems:
        print_plain(console, f"It does not add up: {problem}")
    return problems, {"hours": hours, "picture": path}


def ask_spark(url: str | None) -> dict[str, Any]:
    """Let Spark count the dead letters of the demo, by carrier and hour, or name what is missing.

    An embedded server must be running already. Raises `ProgramFailed`.
    """
    url = url or os.environ.get("RQTTL_URL") or SCHEME
    url = find(folder_of(url)) or url if url.startswith(SCHEME) else url
    options = {"url": url, "namespace": NAMESPACE, "queuePattern": PATTERN}
    with tempfile.TemporaryDirectory(prefix="rqttl-demo-", ignore_cleanup_errors=True) as folder:
        program = subprocess.run(
            [sys.executable, "-m", "spark_connectors.demo_report"],
            input=json.dumps({"options": options, "folder": folder}).encode(),
            capture_output=True,
            check=False,
            start_new_session=True,  # Ctrl-C is for the demo, which ends it
            preexec_fn=end_with_parent(),  # one system call, resolved before the fork
        )
    if program.returncode:
        raise ProgramFailed(f"the Spark report failed: {last_line(program.stderr)}")
    answer: dict[str, Any] = json.loads(program.stdout)
    return answer


def disagreements(counts: Mapping[str, Counts], found: Hours) -> list[str]:
    """A line for each carrier whose dead letters Spark and the queue count differently."""
    return [
        f"{carrier}: dead letters, by the queue and by Spark: {row.dead_lettered:,} is not {number:,}"
        for carrier, row in counts.items()
        if row.dead_lettered != (number := sum(found.get(carrier, {}).values()))
    ]


def _draw(console: Console, file: str | None, hours: Hours, airlines: Mapping[str, str]) -> str | None:
    """Draw the picture and print its path, or the reason why there is none."""
    try:
        path = Path(file) if file else Path(tempfile.mkdtemp(prefix="rqttl-demo-"), "dead-letters.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        draw(path, hours, airlines)
    except ImportError:
        print_plain(console, f"\nThere is no picture: no matplotlib is installed; {install(_EXTRA)}")
        return None
    except OSError as error:
        print_plain(console, f"\nThere is no picture: {error}")
        return None
    print_plain(console, f"\nThe same as a picture: {path}")
    return str(path)


def draw(path: Path, carriers: Hours, names: Mapping[str, str]) -> None:
    """Draw the counts of at least one carrier as a PNG, in their order: the more dead letters the darker.

    Raises `ImportError` or `OSError`.
    """
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    all_hours = sorted({hour for hours in carriers.values() for hour in hours})
    hours = range(all_hours[0], all_hours[-1] + 1)
    rows = [[counts.get(hour, 0) for hour in hours] for counts in carriers.values()]
    most = max(map(max, rows))
    figure = Figure(figsize=(2.6 + 0.52 * len(hours), 1.2 + 0.34 * len(rows)), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.imshow(rows, cmap=colormaps["YlOrRd"].with_extremes(under="#f6f6f6"), vmin=0.5, vmax=most, aspect="auto")
    for y, row in enumerate(rows):
        for x, number in enumerate(row):
            if number:
                color = "white" if number > most * 0.6 else _INK
                axes.text(x, y, f"{number:,}", ha="center", va="center", fontsize=7, color=color)
    axes.set_yticks(range(len(rows)), [f"{names.get(carrier, carrier)}  {carrier}" for carrier in carriers])
    axes.set_xticks(range(len(hours)), [f"{hour:02}" for hour in hours])
    axes.set_xlabel("hour of the scheduled departure", color="#666666")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    figure.suptitle(f"Boarding calls that died, by carrier and hour: {sum(map(sum, rows)):,}", color=_INK)
    figure.savefig(path, format="png", bbox_inches="tight", pad_inches=0.2)
