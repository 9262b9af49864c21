"""What every answer of the dashboard has in common."""

import hashlib

import pytest
from starlette.testclient import TestClient

from rqttl.dashboard.visit import asset


def test_a_page_may_load_nothing_from_elsewhere(pages: TestClient) -> None:
    answer = pages.get("/")

    assert answer.status_code == 200
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("path", ["/nowhere", "/static/../app.py"])
def test_an_address_without_a_page_is_told_kindly(pages: TestClient, path: str) -> None:
    answer = pages.get(path)

    assert answer.status_code == 404
    assert "there is no such page" in answer.text


def test_an_unchanged_page_is_not_made_again(pages: TestClient) -> None:
    mark = pages.get("/").headers["etag"]

    assert pages.get("/", headers={"If-None-Match": mark}).status_code == 304


def test_the_script_of_others_is_the_release_that_was_read() -> None:
    """idiomorph 0.8.0 as its package has it (0BSD)."""
    content, _ = asset("idiomorph.min.js")

    assert hashlib.sha256(content).hexdigest() == "4cbd535caf7663a51eda9bce6595371c384fc430d54b8d414e29a61167f19f96"
