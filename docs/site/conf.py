"""The site: `make docs` makes it of the Markdown beside the code, which stays the only source."""

import importlib
import json
import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from sphinx.application import Sphinx
from sphinx.ext.autodoc.mock import mock

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import rqttl  # noqa: E402  # of this checkout
from rqttl.cli import cli  # noqa: E402

GUIDES = (
    *("retries", "delays", "topics", "control", "lifetimes", "policies"),
    *("worker", "celery", "django", "asyncio", "tests", "command-line", "dashboard", "metrics-and-traces"),
)
MOVES = ("who-is-it-for", "from-rq-and-celery", "from-rabbitmq", "other-task-libraries", "upgrade")
#: The pages by their places in the side bar, README before all others.
SECTIONS = {
    "Guides": [*(f"docs/guides/{name}" for name in GUIDES), "examples/README"],
    "Move here": [f"docs/guides/{name}" for name in MOVES],
    "Operate": ["deploy/README", "spark_connectors/README", "SECURITY", "CHANGELOG"],
    "Reference": ["docs/site/api", "docs/site/commands"],
    "How it works": ["ARCHITECTURE", "lua/README", "docs/handover", "spark_connectors/write/README", "CONTRIBUTING"],
    "Proofs": ["tests/bench/README", "tests/chaos/README"],
    "Decisions": sorted(f"docs/decisions/{path.stem}" for path in (ROOT / "docs/decisions").glob("*.md")),
}
PAGES = ["README", *(page for pages in SECTIONS.values() for page in pages)]
#: The modules whose `__all__` is public. Celery and Django call the methods of the last two, so they have no place.
MODULES = ("rqttl", "rqttl.testing", "rqttl.metrics", "rqttl.telemetry", "rqttl.reaper", "rqttl.dashboard")
PLUGINS, autodoc_mock_imports = ("rqttl.celery", "rqttl.django"), ["amqp", "kombu", "django_tasks"]
[REPOSITORY] = re.findall(r'^repository = "(.*?)/?"$', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)
VERSIONS = json.loads(Path(__file__).with_name("versions.json").read_text("utf-8"))

project, version, project_copyright = "rqttl", rqttl.__version__, "rqttl contributors"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc, include_patterns = "README", [f"{page}.md" for page in PAGES]
html_theme, html_title, html_copy_source, html_show_sphinx = "furo", f"rqttl {version}", False, False
myst_heading_anchors, default_role = 4, "literal"  # docstrings write code as Markdown does
autodoc_member_order, autodoc_typehints_format = "bysource", "short"
templates_path, html_context = ["templates"], {"versions": VERSIONS, "this": version}
if version != VERSIONS[0]:
    html_theme_options = {"announcement": f"This is rqttl {version}. The newest version is {VERSIONS[0]}."}

#: What a screen reader and a keyboard need, and the theme leaves out.
ACCESSIBLE = {
    '<p class="caption" role="heading">': '<p class="caption" role="heading" aria-level="2">',
    '<aside class="sidebar-drawer">': '<aside class="sidebar-drawer" aria-label="All pages">',
    '<aside class="toc-drawer': '<aside aria-label="This page" class="toc-drawer',
    '<th class="head"><p></p></th>': "<td></td>",
    "<pre>": '<pre tabindex="0">',
    '<div class="table-wrapper': '<div tabindex="0" class="table-wrapper',
}
#: A link to a file or to a heading, and not a picture.
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])+)\]\((?!\w+:|#)([^)\s#]+)(#[^)\s]*)?\)")


def with_links(page: str, text: str) -> str:
    """The text of a page. A link leads to a page, or to the repository at the tag; without its address it is text."""

    def link(found: re.Match[str]) -> str:
        words, anchor = found[1], found[3] or ""
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), found[2]))
        if (ROOT / path / "README.md").exists():
            path = f"{path}/README.md"
        elif example := re.fullmatch(r"examples/(.+)\.py", path):
            path, anchor = "examples/README.md", f"#{example[1].replace('/', '')}py"
        if path.removesuffix(".md") in PAGES:
            return f"[{words}](/{path}{anchor})"
        return f"[{words}]({REPOSITORY}/blob/v{version}/{path}{anchor})" if REPOSITORY else words

    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)  # what is code has no links
    return "".join(part if part.startswith("```") else _LINK.sub(link, part) for part in parts)


def contents() -> Iterator[str]:
    """The side bar."""
    for caption, pages in SECTIONS.items():
        yield f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n" + "".join(f"/{page}\n" for page in pages) + "```\n"


def interface() -> Iterator[str]:
    """Directives for each public name."""
    for module in (*MODULES, *PLUGINS):
        yield f"\n## {module}\n"
        with mock(autodoc_mock_imports):
            found = importlib.import_module(module)
        for name, thing in ((name, getattr(found, name)) for name in found.__all__):
            kind = "exception" if isinstance(thing, type) and issubclass(thing, BaseException) else "class"
            kind = kind if isinstance(thing, type) else "function" if callable(thing) else "data"
            members = kind == "class" and module in MODULES
            more = "\n   :members:\n   :inherited-members: Exception, tuple" if members else ""
            yield f"\n```{{eval-rst}}\n.. auto{kind}:: {module}.{name}{more}\n```\n"


def gallery() -> Iterator[str]:
    """The text of each example."""
    for name in sorted(str(path.relative_to(ROOT / "examples")) for path in ROOT.glob("examples/**/*.py")):
        yield f"\n## {name}\n\n```{{literalinclude}} {name}\n```\n"


def commands(command: click.Command = cli, *path: str) -> Iterator[str]:
    """The help of each command."""
    context = click.Context(command, info_name=" ".join(("rqttl", *path)), terminal_width=88, max_content_width=88)
    yield f"\n## {' '.join(('rqttl', *path))}\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            if child := command.get_command(context, name):
                yield from commands(child, *path, name)


def complete(_: Sphinx, page: str, source: list[str]) -> None:
    """Add what is generated to a page, and lead its links somewhere."""
    source[0] = with_links(page, source[0])
    made = {"README": contents, "docs/site/api": interface, "docs/site/commands": commands, "examples/README": gallery}
    source[0] += "".join(made.get(page, list)())


def finish(app: Sphinx, error: Exception | None) -> None:
    """Mend the pages of the theme; write `index.html`, and the two files for readers that are no people."""
    if error:
        return
    for path in Path(app.outdir).rglob("*.html"):
        text = path.read_text("utf-8")
        for given, wanted in ACCESSIBLE.items():
            text = text.replace(given, wanted)
        path.write_text(text, "utf-8")
    out, title = Path(app.outdir), {page: app.env.titles[page].astext() for page in PAGES}
    here = '<!doctype html><title>rqttl</title><meta http-equiv="refresh" content="0; url=README.html">'
    (out / "index.html").write_text(here, "utf-8")
    lines = [f"# rqttl {version}\n"]
    for caption, pages in {"Begin": ["README"], **SECTIONS}.items():
        lines += [f"\n## {caption}\n\n", *(f"- [{title[page]}]({page}.html)\n" for page in pages)]
    (out / "llms.txt").write_text("".join(lines), "utf-8")
    full = "\n\n".join((ROOT / f"{page}.md").read_text("utf-8") for page in PAGES)
    (out / "llms-full.txt").write_text(full, "utf-8")


def setup(app: Sphinx) -> None:
    """Sphinx calls it."""
    app.connect("source-read", complete)
    app.connect("build-finished", finish)
