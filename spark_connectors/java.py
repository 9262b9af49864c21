"""A check of the Java on this machine: Spark needs one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

#: The oldest Java that Spark 4 runs on.
OLDEST_JAVA = 17


def java_problem() -> str:
    """Describe the problem with the Java of this machine and the remedy, in one line; empty for a suitable Java."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else Path(shutil.which("java") or "java")
    advice = f"Spark needs Java {OLDEST_JAVA} or later (Debian: apt-get install openjdk-17-jre-headless)"
    try:
        output = subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr
    except (OSError, subprocess.CalledProcessError):
        return f"no Java runs as {java}; {advice}"
    version = re.search(r'version "(\d+)', output)
    if version is None or int(version[1]) < OLDEST_JAVA:
        return f"{java} is {output.partition(chr(10))[0] or 'of no version'}; {advice}"
    return ""
