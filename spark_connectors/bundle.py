"""`python -m spark_connectors.bundle FILE`: one archive of all packages, for `spark-submit --py-files`.

The archive contains this package and rqttl as they are installed here, and redis-py and msgpack in pure Python. The
machines of a cluster then need only Spark, pyarrow and numpy. `--bare` leaves redis-py and msgpack out, for machines
that have them. Parsers in C are much faster: an installed `hiredis` serves in both cases, msgpack's parser in C only
with `--bare`.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

#: Packages of every archive, and packages that `bare` leaves out. redis-py needs async_timeout before Python 3.11.3.
OWN = ("rqttl", "spark_connectors", "pyspark_rqttl")
BUNDLED = ("redis", "msgpack", *(("async_timeout",) if sys.version_info < (3, 11, 3) else ()))


def write(file: str | Path, *, bare: bool = False) -> Path:
    """Write the archive to `file` and return its path: `spark.sparkContext.addPyFile(str(write("rqttl.zip")))`.

    The same installed packages make the same bytes. Raises `ValueError` for a package that is not installed as files.
    """
    path = Path(file)
    names = OWN if bare else OWN + BUNDLED
    members = dict(sorted(member for name in names for member in _members(name)))
    with ZipFile(path, "w") as archive:
        for name, content in members.items():
            # the earliest time of a zip archive, so that the bytes do not depend on the current time
            archive.writestr(ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content.read_bytes(), ZIP_DEFLATED)
    return path


def _members(module: str) -> Iterator[tuple[str, Path]]:
    """Yield each file of a module, with its name in the archive."""
    spec = importlib.util.find_spec(module)
    origin = Path(spec.origin) if spec and spec.origin else None
    if origin is None or not origin.is_file():
        raise ValueError(f"{module}: not installed as files, so it cannot be put into an archive")
    if origin.name != "__init__.py":
        yield origin.name, origin
        return
    for file in origin.parent.rglob("*"):
        relative = file.relative_to(origin.parent)
        if file.is_file() and file.suffix in (".py", ".lua") and relative.parts[0] != "plugin":
            yield f"{module}/{relative.as_posix()}", file
    if module == "rqttl" and (scripts := origin.parents[1] / "lua").is_dir():
        # in a checkout the scripts lie beside the package
        for file in scripts.rglob("*.lua"):
            yield f"rqttl/_lua/{file.relative_to(scripts).as_posix()}", file


def main() -> None:
    """Write an archive of rqttl and its Spark data source for `spark-submit --py-files`, and print how to use it."""
    parser = argparse.ArgumentParser(prog="python -m spark_connectors.bundle", description=main.__doc__)
    parser.add_argument("file", nargs="?", default="rqttl.zip", help="path of the archive (default: %(default)s)")
    parser.add_argument("--bare", action="store_true", help="leave out redis-py and msgpack")
    arguments = parser.parse_args()
    try:
        path = write(arguments.file, bare=arguments.bare)
    except (OSError, ValueError) as error:
        sys.exit(f"{parser.prog}: {error}")
    print(f"{path}: spark-submit --py-files {path} …, and spark_connectors.register(spark) in the program")  # noqa: T201


if __name__ == "__main__":
    main()
