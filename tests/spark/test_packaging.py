"""The ways of the data source onto a cluster: installed there, or with the job, on two executors."""

import importlib.util
import json
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import spark_connectors.bundle
from rqttl import Broker
from tests.repository import ROOT
from tests.spark.jvm import Submitter
from tests.spark.letters import bury

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


pytestmark = pytest.mark.slow

#: Reads in two tasks, and says what rows there are, which executors were used, and which compiled modules they had.
#: Then a stream copies the rows into another queue.
READ = """
import json, sys
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

def load(reader, queue="orders/dead"):
    return reader.format("rqttl").options(url=sys.argv[1], numPartitions=2).load(queue)

spark = SparkSession.builder.getOrCreate()
told = {"found": True}
try:
    letters = load(spark.read)
except Py4JJavaError as error:
    if "[DATA_SOURCE_NOT_FOUND]" not in str(error):
        raise
    told["found"] = False
    import spark_connectors
    spark_connectors.register(spark)
    letters = load(spark.read)

def look(rows):
    import importlib.util, os
    yield os.getppid(), [name for name in ("hiredis", "redis", "click") if importlib.util.find_spec(name)]

told["ids"] = sorted(row.message_id for row in letters.collect())
there = letters.select("message_id").rdd.mapPartitions(look).collect()
told["modules"] = sorted({name for _, names in there for name in names})
told["executors"] = len({executor for executor, _ in there})
copying = load(spark.readStream).select("message_id", "body").writeStream.format("rqttl").trigger(availableNow=True)
copying.options(url=sys.argv[1], queue="copies", checkpointLocation="checkpoint").start().awaitTermination()
told["copies"] = load(spark.read, "copies").count()
print(json.dumps(told))
spark.stop()
"""


@pytest.fixture
def letters(broker: Broker) -> list[str]:
    """The ids of the letters in `orders/dead`."""
    broker.declare_queue("copies")
    return sorted(letter.id for letter in bury(broker, 300).peek(1_000))


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """The Python of a machine with the packages that Spark needs, and without those of rqttl."""
    return environment(tmp_path / "bare", *SPARKS)


def read(submitter: Submitter, python: Path, url: str, *options: object) -> dict[str, object]:
    done = submitter.run(
        READ,
        url,
        options=options,
        environment={"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python), "PYTHONPATH": None},
    )
    assert done.code == 0, done.end
    told: dict[str, object] = json.loads(done.out.splitlines()[-1])
    return told


def test_spark_finds_an_installed_format_by_itself(
    submitter: Submitter, letters: list[str], redis_url: str, tmp_path: Path
) -> None:
    words = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, ROOT]
    subprocess.run([str(word) for word in words], check=True, capture_output=True)
    [wheel] = tmp_path.glob("rqttl-*.whl")
    python = environment(tmp_path / "installed", *SPARKS, *OURS)
    install(wheel, tmp_path / "installed")

    told = read(submitter, python, redis_url)

    assert told == {"found": True, "ids": letters, "modules": ["hiredis", "redis"], "executors": 2, "copies": 300}


def test_a_format_that_comes_with_the_job_only_needs_to_be_registered(
    submitter: Submitter, bare: Path, letters: list[str], redis_url: str, tmp_path: Path
) -> None:
    archive = spark_connectors.bundle.write(tmp_path / "rqttl.zip")

    told = read(submitter, bare, redis_url, "--py-files", archive)

    assert told == {"found": False, "ids": letters, "modules": ["redis"], "executors": 2, "copies": 300}


def test_from_the_archive_alone_everything_of_the_core_works(tmp_path: Path, redis_url: str) -> None:
    archive = spark_connectors.bundle.write(tmp_path / "rqttl.zip")
    program = f"""
import sys
sys.path.insert(0, {str(archive)!r})
import rqttl, spark_connectors, spark_connectors.redis.connect
with rqttl.connect({redis_url!r}) as broker:
    broker.declare_queue("orders").enqueue({{"sku": "A-17"}})
    print(broker.queue("orders").receive().decode(), "hiredis" in sys.modules)
"""
    # -I and -S: neither this checkout nor anything that is installed
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=False)

    assert (done.stdout, done.stderr) == ("{'sku': 'A-17'} False\n", "")


def test_importing_the_package_touches_neither_redis_nor_spark() -> None:
    ask = "import sys, spark_connectors; print(sorted({'redis', 'pyspark', 'pyarrow', 'py4j'} & set(sys.modules)))"

    assert subprocess.check_output([sys.executable, "-c", ask], text=True, cwd=ROOT) == "[]\n"
