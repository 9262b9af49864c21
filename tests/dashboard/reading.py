"""What a page of the dashboard says, for tests that compare it."""

from html.parser import HTMLParser
from typing import Any

from starlette.testclient import TestClient


class Page(HTMLParser):
    """A page: its text and links, the facts of its lists, rows of tables, and fields by the queue of a row."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.words, self.links = "", list[str]()
        self.facts, self.rows = list[list[str]](), list[list[str]]()
        self.fields: dict[tuple[str, str], str] = {}
        self._cells, self._row, self._field = list[str](), "", ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        named = dict(attrs)
        if tag in ("tr", "dt", "nav"):
            self._cells, self._row = [], named.get("data-queue") or named.get("data-worker") or ""
            (self.rows if tag == "tr" else self.facts).append(self._cells)
        self._cells += [""] * (tag in ("td", "th", "dt", "dd"))
        self._field = named.get("data-field", self._field)
        self.links += [named["href"]] if tag == "a" else []

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "dd", "span"):
            self._field = ""
        if tag in ("tr", "dd"):
            self._cells = []

    def handle_data(self, data: str) -> None:
        self.words += data
        if self._cells:
            self._cells[-1] += data
        if self._field:
            self.fields[self._row, self._field] = self.fields.get((self._row, self._field), "") + data

    def numbers(self) -> dict[tuple[str, str], int]:
        """The fields as numbers."""
        return {key: int(number.replace(",", "")) for key, number in self.fields.items()}


def look(pages: TestClient, path: str, status: int = 200) -> Page:
    """Get a page."""
    answer = pages.get(path)
    assert answer.status_code == status, answer.text
    return Page(answer.text)
