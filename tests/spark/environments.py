"""Python environments of chosen modules: the packages of a machine in a cluster."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import venv
from pathlib import Path

#: What Spark itself needs of a machine that is to run data sources.
SPARKS = ("pyspark", "py4j", "pyarrow", "numpy")
#: What rqttl needs beside it, compiled.
OURS = ("redis", "hiredis", "msgpack", "async_timeout")


def environment(folder: Path, *modules: str) -> Path:
    """Make an environment in which only these modules can be imported, borrowed from this one; gives its Python.

    A module that this environment has not either (some are needed by old Pythons only) is left out.
    """
    venv.create(folder, symlinks=True)
    packages = site_packages(folder)
    for module in modules:
        found = importlib.util.find_spec(module)
        if found is None or found.origin is None:
            continue
        origin = Path(found.origin)
        package = origin.parent if origin.name == "__init__.py" else origin
        # `numpy.libs` and its like hold the libraries that compiled modules of a wheel look for beside them.
        for path in (package, package.parent / f"{module}.libs"):
            if path.exists():
                (packages / path.name).symlink_to(path)
    return folder / "bin" / "python"


def site_packages(folder: Path) -> Path:
    """Return the folder of the packages of an environment."""
    return folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def install(wheel: Path, folder: Path) -> None:
    """Install a wheel, and nothing that it depends on."""
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target"]
    subprocess.run([*words, site_packages(folder), wheel], check=True, capture_output=True)
