"""Spark and spark-submit for tests: settings that are not those of this machine, programs on a private cluster."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

#: Two workers of one core and 1 GiB, each a JVM of its own: what is shipped to executors, and what is not, shows.
CLUSTER = "local-cluster[2,1,1024]"

#: Spark gives a Python process 10 s to start, and has no setting for it. A busy machine takes longer. Then Spark says:
STARTED_TOO_LATE = "Python worker failed to connect back"

#: A JVM of a test lives for seconds: what its second compiler and its parallel collectors cost, it does not earn back.
BRIEF = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

_QUIET = """
rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %c: %m%n%ex
"""


def settings(folder: Path, *, level: str = "ERROR") -> dict[str, str]:
    """The environment of a driver that takes nothing from the settings of this machine, and this very Python.

    It has a Spark home of its own in `folder/spark`: the work of a cluster goes with the test.
    """
    conf, home = folder / "conf", folder / "spark"
    if not home.exists():
        conf.mkdir(parents=True)
        (conf / "log4j2.properties").write_text(_QUIET.format(level=level))
        defaults = [f"spark.{whose}.extraJavaOptions {BRIEF}\n" for whose in ("driver", "executor")]
        (conf / "spark-defaults.conf").write_text("".join(defaults))
        _make_home(home)
    python = dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), sys.executable)
    return {**python, "SPARK_HOME": str(home), "SPARK_CONF_DIR": str(conf), "SPARK_LOCAL_IP": "127.0.0.1"}


def _make_home(home: Path) -> None:
    """Make a Spark home of links to the installed Spark, without its `pyspark.zip`.

    Spark starts a Python process for each step of a plan. The import of PySpark from the archive takes 0.9 s, because
    the archive has no byte code. Without the archive the process imports the installed PySpark in 0.3 s.
    """
    import pyspark

    home.mkdir()
    for part in Path(pyspark.__file__).parent.iterdir():
        if part.name != "python":
            (home / part.name).symlink_to(part)


def end_of(printed: str, log: str) -> str:
    """Return the end of what a program printed, for a failing test: without the stack of the JVM.

    Lines of its log follow that say that a Python process started too late: the rule for reruns looks for them.
    """
    end = [line for line in printed.splitlines() if not line.startswith("\tat ")][-60:]
    return "\n".join(end + [line for line in log.splitlines() if STARTED_TOO_LATE in line])


@dataclass(frozen=True)
class Done:
    """The end of a program: its exit code, its output, and the logs of it, its JVM and its executors."""

    code: int
    out: str
    log: str

    @property
    def end(self) -> str:
        """See `end_of`."""
        return end_of(self.out, self.log)


class Submitter:
    """Runs programs with spark-submit, from the Spark home of its `settings`."""

    def __init__(self, folder: Path, *, level: str = "ERROR") -> None:
        self.folder = folder
        self._environment = settings(folder, level=level)
        self.home = Path(self._environment["SPARK_HOME"])

    def run(
        self,
        program: str,
        *arguments: object,
        master: str = CLUSTER,
        options: tuple[object, ...] = (),
        environment: Mapping[str, str | None] | None = None,
        patience: int = 500,
    ) -> Done:
        """Run the text of a program to its end; `environment` changes that of its driver, `None` removes a variable."""
        script = self.folder / "program.py"
        script.write_text(program)
        conf = {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "1g",
            "spark.local.dir": self.folder / "local",
            "spark.sql.warehouse.dir": self.folder / "warehouse",
            "spark.sql.shuffle.partitions": "2",
            # on a cluster, no task begins before both executors are there: the first one would do the work of both
            "spark.cores.max": "2",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{patience}s",
        }
        words = [self.home / "bin" / "spark-submit", "--master", master]
        words += [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
        done = subprocess.run(
            [str(word) for word in (*words, *options, script, *arguments)],
            cwd=self.folder,
            text=True,
            check=False,
            capture_output=True,
            env=self.variables(environment or {}),
            stdin=subprocess.DEVNULL,
            timeout=patience,
        )
        return Done(done.returncode, done.stdout, done.stdout + done.stderr + self.executor_logs())

    def variables(self, changed: Mapping[str, str | None]) -> dict[str, str]:
        every = {**os.environ, **self._environment, **changed}
        return {name: value for name, value in every.items() if value is not None}

    def executor_logs(self) -> str:
        """Return the logs of the executors of a cluster."""
        logs = sorted((self.home / "work").glob("app-*/*/std*"))
        return "".join(log.read_text(errors="replace") for log in logs)
