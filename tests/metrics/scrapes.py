"""Scrapes in the text format of Prometheus, as values."""

import http.client

from prometheus_client.parser import text_string_to_metric_families

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parse(text: str) -> Samples:
    """The samples of a scrape, by name and sorted labels."""
    families = text_string_to_metric_families(text)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def types_in(text: str) -> dict[str, str]:
    """The type of each metric that a scrape declares."""
    lines = [line.split(" ") for line in text.splitlines() if line.startswith("# TYPE ")]
    return {name: kind for _, _, name, kind in lines}


def fetch(port: int, path: str = "/metrics") -> tuple[int, str, str]:
    """The status, the type and the text of a page."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.getheader("Content-Type", ""), response.read().decode()
    finally:
        connection.close()


def value(samples: Samples, name: str, **labels: str) -> float:
    """One sample."""
    return samples[name, tuple(sorted(labels.items()))]
