"""The built packages: their contents, and their work without a checkout. Spark: `tests/spark`."""

import fcntl
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.repository import PACKAGES, ROOT, lua_files, name_of, python_files

pytestmark = pytest.mark.slow

#: Run in the empty environment, away from the checkout: every script is read from the package and linked.
LINK_EVERY_SCRIPT = """
import sys, rqttl, spark_connectors, importlib.util
from rqttl.protocol import scripts
assert importlib.util.find_spec("pyspark_rqttl").origin.startswith(sys.prefix)
assert importlib.util.find_spec("pyspark") is None
assert rqttl.__file__.startswith(sys.prefix) and spark_connectors.__file__.startswith(sys.prefix)
print(*(name for name in scripts.names() if scripts.load(name).sha))
"""


def run(*command: object, cwd: Path) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that one of the processes of this run of tests makes for all of them."""
    own = factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / name
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = folder / "made"
        if not made.exists():
            folder.mkdir(exist_ok=True)
            make(folder)
            made.touch()
    return folder


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source package and the wheel that was built from it."""

    def make(folder: Path) -> None:
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)

    return made_once(tmp_path_factory, "packages", make)


@pytest.fixture(scope="module")
def wheel(packages: Path) -> Path:
    [wheel] = packages.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def scripts_folder(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment that has the wheel, what it depends on, and nothing else."""

    def make(folder: Path) -> None:
        run(sys.executable, "-m", "venv", folder, cwd=folder)
        run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", wheel, cwd=folder)

    return made_once(tmp_path_factory, "empty", make) / "bin"


def test_the_wheel_holds_the_packages_the_scripts_and_nothing_else(wheel: Path) -> None:
    scripts = [f"rqttl/_{name_of(path)}" for kind in ("commands", "lib", "plain") for path in lua_files(kind)]
    # Spark's look-up needs its module at the top.
    modules = [name_of(path).replace("spark_connectors/plugin/", "") for path in python_files(*PACKAGES)]

    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}

    assert held >= {*scripts, *modules, "rqttl/py.typed", "spark_connectors/py.typed"}
    assert {name.partition("/")[0] for name in held} == {"rqttl", "spark_connectors", "pyspark_rqttl.py"}
    assert [name for name in held if name.startswith("spark_connectors/plugin")] == []


def pattern(line: str) -> re.Pattern[str]:
    """A line of the list of what may be in the wheel."""
    return re.compile(re.escape(line).replace(r"\*\*/", "(?:.*/)?").replace(r"\*", "[^/]*"))


def test_the_wheel_holds_only_what_the_list_says_and_is_small(wheel: Path) -> None:
    text = (ROOT / ".ci" / "wheel-files").read_text(encoding="utf-8")
    allowed = [pattern(line) for line in text.splitlines() if line and not line.startswith("#")]
    held = zipfile.ZipFile(wheel).namelist()

    assert [name for name in held if not any(one.fullmatch(name) for one in allowed)] == []
    assert [one.pattern for one in allowed if not any(map(one.fullmatch, held))] == []
    assert wheel.stat().st_size <= 900 * 1024


def test_the_wheel_requires_five_packages(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = archive.read(name).decode()

    required = re.findall(r"^Requires-Dist: ([\w-]+)(?!.*extra ==)", metadata, re.MULTILINE)
    assert sorted(required) == ["click", "google-re2", "msgpack", "redis", "rich"]
    extras = set(re.findall(r"^Provides-Extra: (.*)$", metadata, re.MULTILINE))
    assert extras == {
        *("celery", "dashboard", "demo", "dev", "django", "embedded", "import", "metrics", "otel", "spark", "testing"),
        "yaml",
    }


@pytest.mark.parametrize(
    "words,extra",
    [(("apply",), "yaml"), (("import", "artemis"), "import"), (("metrics", "--once"), "metrics"), (("demo",), "demo")],
)
def test_without_an_extra_one_line_names_it(
    scripts_folder: Path, tmp_path: Path, words: tuple[str, ...], extra: str
) -> None:
    file = tmp_path / "file"
    file.write_text("rqttl: 1\n")
    given = [str(scripts_folder / "rqttl"), *words, *([str(file)] if words[0] in ("apply", "import") else [])]
    environment = {**os.environ, "RQTTL_URL": "redis://localhost:1"}
    done = subprocess.run(given, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode != 0
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert f"pip install '.[{extra}]'" in line


def test_the_source_package_holds_what_tests_and_builds_need(packages: Path) -> None:
    [source] = packages.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}

    assert held >= {"pyproject.toml", "LICENSE", "Makefile", "deploy/README.md", "tests/unit/test_wheel.py"}
    assert held >= {name_of(path) for kind in ("commands", "lib", "plain") for path in lua_files(kind)}


def test_the_installed_wheel_links_every_script_from_its_own_files(scripts_folder: Path, tmp_path: Path) -> None:
    linked = run(scripts_folder / "python", "-I", "-c", LINK_EVERY_SCRIPT, cwd=tmp_path).split()

    assert linked == [path.stem for path in lua_files("commands")]


def test_the_installed_wheel_makes_the_archive_for_a_cluster(scripts_folder: Path, tmp_path: Path) -> None:
    run(scripts_folder / "python", "-m", "spark_connectors.bundle", tmp_path / "all.zip", cwd=tmp_path)
    run(scripts_folder / "python", "-m", "spark_connectors.bundle", "--bare", tmp_path / "bare.zip", cwd=tmp_path)

    held, bare = (set(zipfile.ZipFile(tmp_path / name).namelist()) for name in ("all.zip", "bare.zip"))

    modules = {name_of(path).replace("spark_connectors/plugin/", "") for path in python_files(*PACKAGES)}
    assert bare == modules | {
        f"rqttl/_{name_of(path)}" for kind in ("commands", "lib", "plain") for path in lua_files(kind)
    }
    assert {name.partition("/")[0] for name in held - bare} - {"async_timeout"} == {"redis", "msgpack"}


def test_the_installed_wheel_announces_the_pytest_plugin(scripts_folder: Path, tmp_path: Path) -> None:
    ask = "from importlib.metadata import entry_points; print(*[one.value for one in entry_points(group='pytest11')])"

    assert run(scripts_folder / "python", "-I", "-c", ask, cwd=tmp_path).split() == ["rqttl.pytest_plugin"]
