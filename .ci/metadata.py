"""The metadata that depends on where the repository is: project URLs, links and badges of the page on the index.

One line has the address: `repository` in `[tool.hatch.metadata.hooks.custom]`. Without it there are no URLs, and a link
to a file becomes its text.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

#: A link to a file of the repository, and a picture; and how one installs from a checkout, and what was built there.
_LINK = re.compile(r"\[([^\]]+)\]\((?!\w+:)([^)\s]+)\)")
_PICTURE = re.compile(r"!\[([^\]]+)\]\((?!\w+:)([^)\s]+)\)\n*")
_CHECKOUT = re.compile(r"""(pip install )(?:-e )?'\.\[([\w,]+)\]'(?:\s+# in a checkout)?""")
_BUILT = re.compile(r"^pip install 'dist/.*\n", re.MULTILINE)
_FROM_INDEX = r"\1'rqttl[\2]'"


def urls(repository: str, version: str) -> dict[str, str]:
    """Return the project URLs."""
    pages = {"Documentation": "#readme", "Changelog": f"/blob/v{version}/CHANGELOG.md", "Issues": "/issues"}
    return {"Source": repository, **{name: repository + page for name, page in pages.items()}} if repository else {}


def badges(repository: str) -> str:
    """Return a line with the state of the tests and the score of OpenSSF."""
    tests, scorecard = f"{repository}/actions/workflows/ci.yml", "https://api.scorecard.dev/projects/"
    score = scorecard + repository.removeprefix("https://")
    return f"[![tests]({tests}/badge.svg)]({tests}) [![scorecard]({score}/badge)]({score})\n\n"


def page(readme: str, repository: str, version: str) -> str:
    """Return the README as the index shows it: it has no files beside it, and the package can be had by name."""
    link = rf"[\1]({repository}/blob/v{version}/\2)" if repository else r"\1"
    picture = rf"![\1]({repository}/raw/v{version}/\2)\n\n" if repository else ""
    parts = re.split(r"(^```.*?^```$)", readme, flags=re.MULTILINE | re.DOTALL)  # what is code has no links
    text = "".join(part if part.startswith("```") else _LINK.sub(link, _PICTURE.sub(picture, part)) for part in parts)
    title, _, rest = _CHECKOUT.sub(_FROM_INDEX, _BUILT.sub("", text)).partition("\n\n")
    return f"{title}\n\n{badges(repository) if repository else ''}{rest}"


class CustomMetadataHook(MetadataHookInterface):
    """Hatchling asks it for what `dynamic` names, beside the version."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the URLs and the page of the index."""
        repository = self.config["repository"].rstrip("/")
        [version] = re.findall(r'__version__ = "(.*)"', Path(self.root, "rqttl", "__init__.py").read_text("utf-8"))
        readme = Path(self.root, "README.md").read_text("utf-8")
        metadata["urls"] = urls(repository, version)
        metadata["readme"] = {"content-type": "text/markdown", "text": page(readme, repository, version)}
