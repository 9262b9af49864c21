"""Links between documents that name a heading."""

from __future__ import annotations

import re

import pytest

from tests.repository import ROOT
from tests.unit.test_docs import DOCUMENTS, read

pytestmark = pytest.mark.once


def anchors(text: str) -> set[str]:
    """The anchors of a document, as GitHub makes them of its headings."""
    headings = re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_each_heading_that_a_link_names_exists(document: str) -> None:
    links = [link for link in re.findall(r"\]\(([^)\s]*#[^)\s]+)\)", read(document)) if "://" not in link]

    for link in links:
        file, _, anchor = link.partition("#")
        target = (ROOT / document).parent / file if file else ROOT / document
        assert target.suffix != ".md" or anchor in anchors(target.read_text()), link
