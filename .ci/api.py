"""Name each change of a public name that breaks a caller: `api.py BEFORE AFTER`, two folders with the sources.

It fails if a patch release has one, or a minor release one that the changelog does not name.
"""

import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import griffe

#: The modules whose `__all__` is what a user may rely on.
PUBLIC = (
    "rqttl",
    *(f"rqttl.{name}" for name in ("celery", "dashboard", "django", "metrics", "reaper", "telemetry", "testing")),
    "spark_connectors",
)


def modules(folder: str) -> griffe.ModulesCollection:
    """Read the sources, and what public names stand for, without importing them."""
    loader = griffe.GriffeLoader(search_paths=[folder])
    for package in ("rqttl", "spark_connectors"):
        loader.load(package, try_relative_path=False)
    loader.resolve_aliases(external=False)
    return loader.modules_collection


def public(module: griffe.Object | griffe.Alias) -> griffe.Module:
    """Return a module that has the public names and no others: those of inner modules look public, too."""
    names = [str(name) for name in module.exports or ()]
    shown = griffe.Module(module.path, filepath=module.filepath)
    shown.exports = list(names)
    for name in names:
        one = module[name]
        shown.set_member(name, griffe.Alias(name, one.final_target if one.is_alias else one, parent=shown))
    return shown


def breaking(before: str, after: str) -> Iterator[str]:
    """Yield a line for each change: the name, a colon, and what happened to it."""
    old, new = modules(before), modules(after)
    for module in PUBLIC:
        if module.partition(".")[2] not in ("", *old["rqttl"].members):
            continue  # it is new
        for found in griffe.find_breaking_changes(public(old[module]), public(new[module])):
            text = re.sub(r"\x1b\[\d+m", "", found.explain(griffe.ExplanationStyle.ONE_LINE))
            yield text.partition(": ")[2]  # without the file and the line


def version(folder: str) -> str:
    """Return the version of these sources."""
    [found] = re.findall(r'__version__ = "(.*)"', Path(folder, "rqttl", "__init__.py").read_text("utf-8"))
    return str(found)


def main(before: str, after: str) -> str | None:
    """Print the changes, and return why they may not be, if so."""
    logging.getLogger("griffe").setLevel(logging.ERROR)
    old, new = version(before), version(after)
    entry = Path(after, "CHANGELOG.md").read_text("utf-8").partition(f"\n## {new}")[2].partition("\n## ")[0]
    lines = sorted(set(breaking(before, after)))
    print(f"{len(lines)} changes break callers of {old}", *lines, sep="\n")
    named = [line for line in lines if f"`{re.split('[(:]', line)[0]}`" in entry]
    if old == new:  # not released
        return None
    if lines and old.rpartition(".")[0] == new.rpartition(".")[0]:
        return f"{new} is a patch of {old}, so no change may break a caller"
    return "CHANGELOG.md has to name each of them" if lines != named else None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
