"""Whether this machine has the Java that Spark runs on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

#: The least Java that Spark 4 runs on.
LEAST = 17


def lacking_java() -> str:
    """What is wrong with the Java of this machine, in a line that says what to install; empty if it serves."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else Path(shutil.which("java") or "java")
    advice = f"Spark needs Java {LEAST} or later (Debian: apt-get install openjdk-17-jre-headless)"
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr
    except (OSError, subprocess.CalledProcessError):
        return f"no Java runs as {java}; {advice}"
    found = re.search(r'version "(\d+)', said)
    if found is None or int(found[1]) < LEAST:
        return f"{java} is {said.partition(chr(10))[0] or 'of no version'}; {advice}"
    return ""
