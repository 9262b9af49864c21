"""`python -m spark_connectors.bundle FILE`: what `spark-submit --py-files` has to bring, in one file.

It holds this package and rqttl as they are installed here, and redis-py and msgpack in pure Python, so that the
machines of a cluster need nothing but Spark, pyarrow and numpy. `--bare` leaves those two out, for machines that have
them. Parsers in C are much faster: `hiredis` serves either way where it is installed, msgpack's own only with `--bare`.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

#: What is always held, and what `bare` leaves out. redis-py needs async_timeout before Python 3.11.3.
OWN = ("rqttl", "spark_connectors", "pyspark_rqttl")
BUNDLED = ("redis", "msgpack", *(("async_timeout",) if sys.version_info < (3, 11, 3) else ()))


def write(file: str | Path, *, bare: bool = False) -> Path:
    """Write the archive, replacing `file`, and give its path: `spark.sparkContext.addPyFile(str(write("rqttl.zip")))`.

    The same installed packages make the same bytes. Raises `ValueError` where a package to hold is no folder on disk.
    """
    path = Path(file)
    names = OWN if bare else OWN + BUNDLED
    members = dict(sorted(member for name in names for member in _members(name)))
    with ZipFile(path, "w") as archive:
        for name, content in members.items():
            # Of a time that every archive can hold, so that nothing depends on when it is made.
            archive.writestr(ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content.read_bytes(), ZIP_DEFLATED)
    return path


def _members(module: str) -> Iterator[tuple[str, Path]]:
    """Each file of a module, by its name in the archive."""
    found = importlib.util.find_spec(module)
    origin = Path(found.origin) if found and found.origin else None
    if origin is None or not origin.is_file():
        raise ValueError(f"{module}: not installed as files, so it cannot be put into an archive")
    if origin.name != "__init__.py":
        yield origin.name, origin
        return
    for file in origin.parent.rglob("*"):
        inside = file.relative_to(origin.parent)
        if file.is_file() and file.suffix in (".py", ".lua") and inside.parts[0] != "top":
            yield f"{module}/{inside.as_posix()}", file
    if module == "rqttl" and (scripts := origin.parents[1] / "lua").is_dir():
        # In a checkout the scripts lie beside the package.
        for file in scripts.rglob("*.lua"):
            yield f"rqttl/_lua/{file.relative_to(scripts).as_posix()}", file


def main() -> None:
    """What `python -m spark_connectors.bundle` does: write the archive and say what to do with it."""
    parser = argparse.ArgumentParser(prog="python -m spark_connectors.bundle", description=main.__doc__)
    parser.add_argument("file", nargs="?", default="rqttl.zip", help="where to write it (default: %(default)s)")
    parser.add_argument("--bare", action="store_true", help="without redis-py and msgpack, for machines that have them")
    asked = parser.parse_args()
    try:
        path = write(asked.file, bare=asked.bare)
    except (OSError, ValueError) as error:
        sys.exit(f"{parser.prog}: {error}")
    print(f"{path}: spark-submit --py-files {path} …, and spark_connectors.register(spark) in the program")  # noqa: T201


if __name__ == "__main__":
    main()
