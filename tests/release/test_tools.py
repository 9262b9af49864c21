"""What looks at a release finds faults that a test makes, and the packages once their address is known."""

import json
import re
import shutil
import zipfile
from pathlib import Path

import pytest

import rqttl
from tests.release.environments import TOOLS, WORK, installed, run, wheel
from tests.repository import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    """The sources of this commit, to be changed."""
    return Path(shutil.copytree(WORK / "first", tmp_path / "changed"))


def replace(path: Path, old: str, new: str) -> None:
    text, count = re.subn(old, new, path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert count > 0
    path.write_text(text, encoding="utf-8")


def check(what: str) -> tuple[str, ...]:
    """The line of `make dist` that runs this tool, or checks against this schema."""
    lines = (ROOT / ".ci" / "dist").read_text(encoding="utf-8").splitlines()
    [line] = [line for line in lines if re.match(rf'(quietly )?"\$tools/.*\b{what}\b', line)]
    return ("bash", "-euc", f"tools={TOOLS}; {line.removeprefix('quietly ')}")


def refused(*words: object, cwd: Path) -> str:
    """Run a program that has to fail, and return what it says."""
    with pytest.raises(AssertionError) as failed:
        run(*words, cwd=cwd)
    return str(failed.value)


def test_a_change_that_breaks_callers_is_named_and_needs_a_minor_release_and_a_line(changed: Path) -> None:
    api = (TOOLS / "python", ROOT / ".ci" / "api.py", WORK / "first", changed)
    code, now = changed / "rqttl", rqttl.__version__
    replace(code / "queue.py", r"    def touch\(self", "    def touched(self")
    replace(code / "__init__.py", '^    "Policy",\n', "")
    replace(code / "units.py", r"def as_datetime\(", "def as_time(")  # nobody may rely on it

    replace(code / "__init__.py", "^__version__ = .*", f'__version__ = "{now}1"')
    patch = refused(*api, cwd=changed)
    replace(code / "__init__.py", "^__version__ = .*", '__version__ = "9.0.0"')
    minor = refused(*api, cwd=changed)
    gone = "* Gone: `Policy`, `Queue.touch`, `Topic.touch`."
    replace(changed / "CHANGELOG.md", f"^## {now}", f"## 9.0.0\n\n{gone}\n\n## {now}")

    removed = re.findall("^(.*): Public object was removed$", patch, re.MULTILINE)
    assert removed == ["Policy", "Queue.touch", "Topic.touch"]
    assert "3 changes break callers" in patch
    assert f"{now}1 is a patch of {now}" in patch
    assert "CHANGELOG.md has to name" in minor
    assert run(*api, cwd=changed).startswith("3 changes")


@pytest.mark.parametrize(
    "file, old, new, what",
    [
        ("workflows/ci.yml", r"checkout@\w{40} # ", "checkout@", "zizmor"),
        ("workflows/ci.yml", "persist-credentials: false", "persist-credentials: true", "zizmor"),
        ("workflows/release.yml", "^permissions: {}", "permissions: write-all", "zizmor"),
        ("workflows/release.yml", "^concurrency:\n.*\n.*\n", "", "zizmor"),  # said to a strict persona only
        ("workflows/release.yml", "runs-on:", "runs-at:", "vendor.github-workflows"),
        ("workflows/scorecard.yml", "^ +timeout-minutes: .*\n", "", "github-workflows-require-timeout"),
        ("dependabot.yml", "interval: weekly", "interval: often", "vendor.dependabot"),
        ("ISSUE_TEMPLATE/problem.yml", "^description:", "says:", "vendor.github-issue-forms"),
        ("../deploy/Containerfile", ":3[.].*-slim-bookworm", "", "hadolint"),
    ],
)
def test_a_fault_in_a_workflow_or_the_container_is_found(
    file: str, old: str, new: str, what: str, changed: Path
) -> None:
    run(*check(what), cwd=changed)
    replace(changed / ".github" / file, old, new)

    assert Path(file).name in refused(*check(what), cwd=changed)


def test_with_an_address_and_an_e_mail_the_page_of_the_index_has_ten_points(changed: Path) -> None:
    project = changed / "pyproject.toml"
    build = (TOOLS / "python", "-m", "build", "--no-isolation", "--outdir", "out", ".")
    address = "https://github.example/shop/rqttl"
    replace(project, 'repository = ""', f'repository = "{address}"')
    run(*build, cwd=changed)
    [sdist] = (changed / "out").glob("*.tar.gz")
    run(TOOLS / "pyroma", "--min", 8, "--file", sdist, cwd=changed)
    run(TOOLS / "twine", "check", "--strict", sdist, wheel(changed / "out"), cwd=changed)
    with zipfile.ZipFile(wheel(changed / "out")) as archive:
        [name] = [name for name in archive.namelist() if name.endswith("/METADATA")]
        metadata = archive.read(name).decode()
    replace(project, '"rqttl contributors" }', '"rqttl contributors", email = "rqttl@shop.example" }')
    run(*build, cwd=changed)

    run(TOOLS / "pyroma", "--min", 10, "--file", sdist, cwd=changed)
    assert f"Project-URL: Source, {address}\n" in metadata
    links = re.findall(r"\]\(([^)\s]+)\)", metadata)
    assert len([link for link in links if link.startswith(f"{address}/blob/v")]) > 20
    assert [link for link in links if not link.startswith("https://")] == []


def test_the_bill_of_materials_names_what_is_installed_and_no_place_or_password(tmp_path: Path) -> None:
    text = (ROOT / "dist" / "sbom.json").read_text(encoding="utf-8")
    bill = json.loads(text)
    programs = installed(tmp_path / "empty", wheel())
    freeze = (TOOLS / "python", "-m", "pip", "--python", programs / "python", "freeze", "--all")
    there = {line.partition("==")[0].lower() for line in run(*freeze, cwd=tmp_path).split() if "==" in line}

    assert (bill["specVersion"], bill["metadata"]["component"]["name"]) == ("1.6", "rqttl")
    assert bill["metadata"]["component"]["version"] == wheel().name.split("-")[1]
    assert {one["name"].lower() for one in bill["components"]} == there
    assert all(one["version"] and one["purl"].startswith("pkg:pypi/") for one in bill["components"])
    assert not re.search(rf"file:|://[^/\s\"]*@|{re.escape(str(ROOT))}", text)


def test_the_sums_are_those_of_the_packages() -> None:
    told = run("sha256sum", "--check", "SHA256SUMS", cwd=ROOT / "dist").splitlines()

    assert sorted(line.rpartition(":")[0] for line in told) == sorted(
        path.name for path in (ROOT / "dist").iterdir() if path.name != "SHA256SUMS"
    )
