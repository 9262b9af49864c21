"""Alerts and the dashboard of `deploy`: their expressions are right, and use metrics and labels that exist."""

import json
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import promql_parser
import pytest
import yaml

from rqttl.metrics import QUEUES, REAPER, WORKER
from tests.cli import tree
from tests.repository import ROOT

pytestmark = pytest.mark.once

ALERTS, TESTS = ROOT / "deploy/prometheus/alerts.yml", ROOT / "deploy/prometheus/alerts_test.yml"
DASHBOARD = json.loads((ROOT / "deploy/grafana/rqttl.json").read_text())
#: Labels that Prometheus itself gives to each series.
TARGET = {"job", "instance"}
#: Words of PromQL in a list of labels after `by`, `on` and the like.
GROUPING = re.compile(r"\b(?:by|on|without)\s*\(([^)]*)\)")
SELECTOR = re.compile(r"\b((?:rqttl_|up\b)\w*)(?:\{([^}]*)\})?")


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def targets() -> Iterator[tuple[str, str, str]]:
    """The title of each panel with each of its expressions and legends."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"], target["legendFormat"]


def labels_by_series() -> dict[str, set[str]]:
    """The labels of each series that Prometheus has of our metrics."""
    series: dict[str, set[str]] = {"up": set()}
    for metric in (*QUEUES, *WORKER, *REAPER):
        if metric.kind == "histogram":
            series |= {f"{metric.name}_{end}": {*metric.labels} for end in ("sum", "count")}
            series[f"{metric.name}_bucket"] = {*metric.labels, "le"}
        else:
            series[metric.name] = {*metric.labels}
    return series


EXPRESSIONS = [
    *(pytest.param(rule["expr"], "", id=rule["alert"]) for rule in rules()),
    *(pytest.param(expr, legend, id=f"{title}: {legend}") for title, expr, legend in targets()),
]


@pytest.mark.parametrize("expression, legend", EXPRESSIONS)
def test_an_expression_uses_metrics_and_labels_that_exist(expression: str, legend: str) -> None:
    series = labels_by_series()
    used = SELECTOR.findall(expression)

    assert used
    for name, matchers in used:
        assert set(re.findall(r"(\w+)\s*[=!]", matchers)) <= series[name] | TARGET, name
    known = set().union(*(series[name] for name, _ in used)) | TARGET
    grouped = {label.strip() for labels in GROUPING.findall(expression) for label in labels.split(",")}
    assert grouped <= known | {"state"}
    assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= known


@pytest.mark.parametrize("expression, legend", EXPRESSIONS)
def test_an_expression_is_promql(expression: str, legend: str) -> None:
    promql_parser.parse(expression.replace("$__rate_interval", "5m"))


def test_each_metric_of_queues_workers_and_reapers_is_on_the_dashboard() -> None:
    shown = {name for _, expression, _ in targets() for name, _ in SELECTOR.findall(expression)}
    series = {
        f"{metric.name}_bucket" if metric.kind == "histogram" else metric.name for metric in (*QUEUES, *WORKER, *REAPER)
    }

    assert shown == series


def test_each_alert_is_tested_and_says_what_to_do() -> None:
    tested = {
        check["alertname"] for test in yaml.safe_load(TESTS.read_text())["tests"] for check in test["alert_rule_test"]
    }

    assert {rule["alert"] for rule in rules()} == tested
    assert all({*rule["annotations"]} == {"summary", "description"} for rule in rules())
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


@pytest.mark.parametrize(
    "words", [("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml"), ("check", "config", "scrape.yml")]
)
def test_promtool_accepts_the_alerts_and_their_tests(words: tuple[str, ...]) -> None:
    done = subprocess.run(["promtool", *words], cwd=ALERTS.parent, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


PROGRAMS = {
    "rqttl": ("rqttl-metrics.service", "kubernetes/metrics.yaml"),
    "rqttl-workers": ("rqttl-worker@.service", "kubernetes/worker.yaml"),
    "rqttl-reapers": ("rqttl-reaper.service", "kubernetes/reaper.yaml"),
}


@pytest.mark.parametrize("job", PROGRAMS)
def test_units_and_manifests_serve_metrics_at_the_port_that_prometheus_scrapes(job: str) -> None:
    folder = ALERTS.parents[1]
    jobs = {
        one["job_name"]: one for one in yaml.safe_load((ALERTS.parent / "scrape.yml").read_text())["scrape_configs"]
    }
    [target] = jobs[job]["static_configs"][0]["targets"]
    port = target.partition(":")[2]
    unit, manifest = ((folder / name).read_text() for name in PROGRAMS[job])

    environment = dict(re.findall(r"^Environment=(\w+)=(.*)$", unit, re.MULTILINE))
    [command] = re.findall(r"^ExecStart=/opt/rqttl/bin/(rqttl .*)$", unit, re.MULTILINE)
    words = [environment.get(word.strip("${}"), word) for word in command.split()]
    assert words[words.index("--listen" if job == "rqttl" else "--health") + 1] == f"127.0.0.1:{port}"

    [container] = yaml.safe_load(manifest)["spec"]["template"]["spec"]["containers"]
    assert f"0.0.0.0:{port}" in container["args"]
    [served] = container["ports"]
    assert served["containerPort"] == int(port)
    probed = [
        probe.get("httpGet", probe.get("tcpSocket"))["port"] for key, probe in container.items() if "Probe" in key
    ]
    assert {*probed} == {served["name"]}


def test_the_unit_and_the_manifest_of_the_dashboard_let_only_users_in_and_are_probed_where_it_listens() -> None:
    folder = ALERTS.parents[1]
    [line] = re.findall(
        r"^ExecStart=/opt/rqttl/bin/(.*)$", (folder / "rqttl-dashboard.service").read_text(), re.MULTILINE
    )
    deployment, service = yaml.safe_load_all((folder / "kubernetes/dashboard.yaml").read_text())
    pod = deployment["spec"]["template"]["spec"]
    [container] = pod["containers"]

    for words in (line.split(), container["command"] + container["args"]):
        (name,), context = tree.parse(words)
        assert (name, bool(context.params["users"])) == ("dashboard", True)
        assert context.params["listen"].endswith(":9470")
    assert container["ports"] == [{"name": "http", "containerPort": 9470}]
    probes = [container[f"{kind}Probe"]["httpGet"] for kind in ("liveness", "readiness")]
    assert probes == [{"path": "/livez", "port": "http"}] * 2  # a page with the last figures helps while Redis is away
    assert [port["targetPort"] for port in service["spec"]["ports"]] == ["http"]
    assert container["volumeMounts"][0]["name"] == pod["volumes"][0]["name"]
