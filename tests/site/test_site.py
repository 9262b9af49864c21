"""The site as a reader opens it: from a folder, in a browser, without a network."""

import json
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import Browser, Page, Request, expect

import rqttl
from tests.chromium import axe, chromium
from tests.repository import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.once, pytest.mark.xdist_group("site")]

#: Pages of each kind: the first one, a guide, tables, pictures of characters, what is generated.
FIVE = ["README", "docs/guides/worker", "docs/guides/command-line", "ARCHITECTURE", "docs/site/commands"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", "docs/site", ".", str(out)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (built.returncode, built.stderr) == (0, "")
    return out


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    asked: list[str] = []

    def note(request: Request) -> None:
        asked.append(request.url)

    page = browser.new_page()
    page.on("request", note)
    yield page
    page.close()
    assert [url for url in asked if not url.startswith("file:")] == []


class _Anchors(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids, self.links = {"", "top"}, set[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids.add(found.get("id") or "")
        self.links |= {target for name in ("href", "src") if (target := found.get(name))}


def test_every_link_inside_leads_to_a_page_and_a_place_on_it(site: Path) -> None:
    pages = {path: _Anchors(path.read_text("utf-8")) for path in site.rglob("*.html")}
    lost = []
    for path, page in pages.items():
        for link in page.links:
            url = urlsplit(link)
            if url.scheme or link.startswith("data:"):
                continue
            target = (path.parent / unquote(url.path)).resolve() if url.path else path
            versions = not target.is_relative_to(site)  # the folders of other versions stand beside this one
            if not versions and (
                not target.exists() or unquote(url.fragment) not in getattr(pages.get(target), "ids", {""})
            ):
                lost.append((path.name, link))

    assert lost == []
    assert len(pages) > 50


@pytest.mark.parametrize("scheme, width", [("light", 1280), ("dark", 360)])
def test_axe_finds_nothing_on_five_pages(site: Path, browser: Browser, scheme: str, width: int) -> None:
    found = []
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)  # type: ignore[arg-type]
    for name in FIVE:
        page.goto((site / f"{name}.html").as_uri())
        page.evaluate(axe())
        answer = page.evaluate("axe.run({preload: false})")
        found += [(name, one["id"], one["nodes"][0]["html"]) for one in answer["violations"]]
    page.close()

    assert found == []


def test_the_search_works_from_a_folder(site: Path, page: Page) -> None:
    page.goto((site / "index.html").as_uri())
    page.wait_for_url("**/README.html")
    page.get_by_placeholder("Search").first.fill("duplicate_window")
    page.keyboard.press("Enter")

    results = page.locator("#search-results li a")
    expect(results.first).to_be_visible()
    results.first.click()
    expect(page.locator("article")).to_contain_text("duplicate_window")


def test_the_interface_and_each_command_have_their_place(site: Path) -> None:
    interface, commands = ((site / f"docs/site/{name}.html").read_text("utf-8") for name in ("api", "commands"))

    names = ("rqttl.Broker", "rqttl.Queue.enqueue", "rqttl.dashboard.app", "rqttl.celery.cancel")
    assert [name for name in names if f'id="{name}"' not in interface] == []
    assert "Usage: rqttl queue declare" in commands


def test_the_gallery_shows_each_example_and_the_side_bar_each_version(site: Path) -> None:
    gallery = (site / "examples/README.html").read_text("utf-8")
    headings = re.findall(r"<h2>([^<]*)<", gallery)
    versions = json.loads((ROOT / "docs/site/versions.json").read_text("utf-8"))

    assert headings == sorted(str(path.relative_to(ROOT / "examples")) for path in (ROOT / "examples").rglob("*.py"))
    assert gallery.count('<div class="highlight"><pre') == len(headings)
    assert [
        one for one in versions if f'href="../../{one.rpartition(".")[0]}/index.html">{one}</a>' not in gallery
    ] == []


def test_an_older_version_says_which_one_is_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json, "loads", lambda _: ["99.0.0", rqttl.__version__])
    settings = runpy.run_path(str(ROOT / "docs/site/conf.py"))

    assert "The newest version is 99.0.0." in settings["html_theme_options"]["announcement"]


def test_a_list_for_readers_that_are_no_people_names_each_page(site: Path) -> None:
    listed = (site / "llms.txt").read_text("utf-8")

    assert "- [Retries and dead letters](docs/guides/retries.html)" in listed
    assert [path.name for path in (ROOT / "docs/guides").glob("*.md") if f"/{path.stem}.html)" not in listed] == []
    assert (site / "llms-full.txt").read_text("utf-8").count("\n# ") >= listed.count("\n- ") - 1
