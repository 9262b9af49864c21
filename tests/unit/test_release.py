"""What a release needs beside the code: the page of the index, versions, and workflows that nobody can misuse."""

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from markdown_it import MarkdownIt

import rqttl
from tests.repository import ROOT
from tests.unit import reference

ADDRESS = "https://github.example/shop/rqttl"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
README = (ROOT / "README.md").read_text(encoding="utf-8")
#: A link, with its text and where it leads.
LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")


@pytest.fixture(scope="module")
def metadata() -> ModuleType:
    spec = importlib.util.spec_from_file_location("metadata", ROOT / ".ci" / "metadata.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def test_without_an_address_the_page_of_the_index_has_the_texts_of_links_and_no_links(metadata: ModuleType) -> None:
    page = metadata.page(README, "", "1.2.3")

    assert metadata.urls("", "1.2.3") == {}
    assert [target for _, target in LINK.findall(page) if "://" not in target] == []
    assert page.startswith("# rqttl\n\nrqttl is ")
    assert {text for text, _ in LINK.findall(README)} >= {"deploy/", "asyncio"}
    assert "| use it in Celery, Django, FastAPI | Celery, Django, asyncio, examples |" in page


def test_with_an_address_links_lead_to_the_files_of_the_tag_and_badges_and_urls_are_there(metadata: ModuleType) -> None:
    page = metadata.page(README, ADDRESS, "1.2.3")

    files = f"{ADDRESS}/blob/v1.2.3/"
    wanted = [files + target for _, target in LINK.findall(README) if "://" not in target and ".png" not in target]
    assert [target for _, target in LINK.findall(page) if target.startswith(files)] == wanted != []
    assert [target for _, target in LINK.findall(page) if "://" not in target] == []
    assert re.findall(r"!\[[^\]]+\]\((\S+)\)\n\n", page)[-1].startswith(f"{ADDRESS}/raw/v1.2.3/docs/")
    assert f"\n\n[![tests]({ADDRESS}/actions/workflows/ci.yml/badge.svg)]" in page
    assert "https://api.scorecard.dev/projects/github.example/shop/rqttl/badge" in page
    assert set(metadata.urls(ADDRESS, "1.2.3")) == {"Source", "Documentation", "Changelog", "Issues"}
    assert all(url.startswith(ADDRESS) for url in metadata.urls(ADDRESS, "1.2.3").values())


def test_the_page_installs_by_name_and_leaves_code_alone(metadata: ModuleType) -> None:
    code = "```python\nhandlers[name](message)\n```\n"
    page = metadata.page(README + code, ADDRESS, "1.2.3")

    by_name = re.findall(r"pip install (\S+)", page)
    assert by_name == ["'rqttl[embedded,testing]'", "'rqttl[testing]'"]
    assert "checkout" not in page
    assert code in page


def test_no_link_of_the_page_is_relative_however_it_is_written(metadata: ModuleType) -> None:
    for address in ("", ADDRESS):
        html = MarkdownIt().enable("table").render(metadata.page(README, address, "1.2.3"))

        targets = re.findall(r"""(?:href|src)=["']?([^"'\s>]*)""", html)
        assert [target for target in targets if not target.startswith("https://")] == []
        assert targets or not address


#: What the last commit of a repository has: its tag, its version, a heading of its changelog, a file that git has not.
REFUSED = {
    ("", "1.2.3", "1.2.2", ""): "CHANGELOG.md has no entry for 1.2.3",
    ("", "1.2.3", "1.2.30", ""): "CHANGELOG.md has no entry for 1.2.3",
    ("v1.2.4", "1.2.3", "1.2.3", ""): "the tag of this commit is v1.2.4, its version is 1.2.3",
    ("v1.2.3", "1.2.3", "1.2.3 (unreleased)", ""): "CHANGELOG.md still says that 1.2.3 is not released",
    ("v1.2.3", "1.2.3", "1.2.3", "stray.py"): "a package is made of a commit, and this tree has changes of its own",
    ("v1.2.3", "1.2.3", "1.2.3", ""): "",
    ("", "1.2.3", "1.2.3 (unreleased)", ""): "",
}


@pytest.mark.parametrize("told, why", REFUSED.items(), ids=str)
def test_packages_are_made_only_of_a_commit_whose_version_tag_and_changelog_agree(
    told: tuple[str, str, str, str], why: str, tmp_path: Path
) -> None:
    tag, version, heading, stray = told
    git = ("git", "-c", "user.name=x", "-c", "user.email=x@x.example", "-c", "commit.gpgsign=false")
    for name, text in {"rqttl/__init__.py": f'__version__ = "{version}"\n', "CHANGELOG.md": f"## {heading}\n"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"], *([["tag", tag]] if tag else [])):
        subprocess.run([*git, *words], cwd=tmp_path, check=True)
    if stray:
        (tmp_path / stray).touch()

    # Where nothing is wrong, the next step is an environment for the tools, which this `python` does not make.
    begun = subprocess.run(
        ["bash", ".ci/dist"],
        cwd=tmp_path,
        env={**os.environ, "PYTHON": "false"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert begun.returncode == 1
    assert begun.stderr == (f"dist: {why}\n" if why else "")
    assert ("Installing .ci/dist-tools.txt" in begun.stdout) == (not why)


def test_each_document_that_has_the_version_has_this_one() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")

    assert re.findall(r"^## (\S+)", changelog, re.MULTILINE)[0] == rqttl.__version__
    assert re.findall(r"rqttl-(\d[\w.]*)-py3", README) == [rqttl.__version__]


def test_the_modules_that_are_compared_are_those_that_documents_call_public() -> None:
    [compared] = re.findall(r"for name in \((.*?)\)", (ROOT / ".ci" / "api.py").read_text(encoding="utf-8"))

    for document in ("README.md", "CHANGELOG.md"):
        [public] = re.findall(r"`rqttl\.\{([\w,]+)\}`", (ROOT / document).read_text(encoding="utf-8"))
        assert public.split(",") == re.findall(r"\w+", compared)


def test_the_classifiers_name_the_pythons_that_are_tested_and_the_workflow_runs_the_first_and_the_last() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    named = re.findall(r":: (3\.\d+)", project)
    [tested] = re.findall(r"^PYTHONS \?= (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)

    [oldest] = re.findall(r'^requires-python = ">=(.*)"', project, re.MULTILINE)
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))

    assert named[0] == oldest
    assert named == tested.split()[: len(named)]
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == [named[0], named[-1]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_has_no_right_by_default_no_secret_and_only_pinned_actions(path: Any) -> None:
    text = path.read_text(encoding="utf-8")
    workflow = yaml.safe_load(text)

    assert workflow["permissions"] == {}
    assert not re.search(r"\bsecrets\.|password:|(?<!id-)token:", text)
    assert all(re.fullmatch(r"[\w/.-]+@[0-9a-f]{40}", step["uses"]) for step in steps(workflow) if "uses" in step)
    assert len(re.findall(r"uses: \S+@\w{40} # v\d", text)) == text.count("uses: ")
    checkouts = [step for step in steps(workflow) if step.get("uses", "").startswith("actions/checkout@")]
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_workflows_may_write_only_the_page_of_a_release_and_an_identity() -> None:
    rights = {
        (path.stem, name, right)
        for path in WORKFLOWS
        for name, job in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].items()
        for right, level in job["permissions"].items()
        if level != "read"
    }

    assert rights == {
        ("release", "index", "id-token"),
        ("release", "page", "contents"),
        ("scorecard", "score", "id-token"),
    }


def test_the_owner_and_how_one_verifies_follow_from_the_address() -> None:
    assert reference.owner(ADDRESS) == "* @shop"
    assert not reference.owner("").startswith("*")
    assert f"--repository {ADDRESS} pypi:rqttl-{rqttl.__version__}-" in reference.verifying(ADDRESS)


def test_an_action_has_one_hash_everywhere() -> None:
    used = {tuple(found) for path in WORKFLOWS for found in re.findall(r"uses: (\S+)@(\w+)", path.read_text("utf-8"))}

    assert len({action for action, _ in used}) == len(used) >= 6
