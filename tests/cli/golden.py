"""The output of commands, compared with files.

`RQTTL_WRITE_GOLDEN=1` writes the files anew. Read the difference then.
"""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "golden" / "cli"


def check(name: str, printed: str) -> None:
    """Compare `printed` with the file."""
    path = FOLDER / name
    if os.environ.get("RQTTL_WRITE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(printed, encoding="utf-8")
    assert printed == path.read_text(encoding="utf-8")
