"""The browser of this machine, and axe-core, which judges what it shows."""

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

from tests.repository import ROOT


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser for one module: while it is there, asyncio thinks that its loop runs in this thread."""
    path = shutil.which("chromium")
    assert path, "no chromium: make setup installs it"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


def axe() -> str:
    """The script of axe-core 4.14.1."""
    content = (ROOT / "build/axe.min.js").read_bytes()
    assert hashlib.sha256(content).hexdigest() == "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"
    return content.decode()
