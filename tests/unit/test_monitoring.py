"""The dashboard and the alert rules against what the code exports, and by Prometheus' own checker.

``scripts/fetch_promtool.sh`` gets the checker; without it the tests that need it are skipped.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.core.gate import Level
from gateway.core.probe_schedule import Result
from gateway.edge.exchange import ENGINE_REFUSED
from gateway.edge.metrics import CONNECTION_ENDS, DELIVERIES, EXPORTS, MARKERS, Metrics
from gateway.errors import Kind
from gateway.limits.watch import Outcome
from gateway.types import Ending, Verdict

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus/alerts.yml"
TRIALS = DEPLOY / "prometheus/alerts_test.yml"
DASHBOARD = json.loads((DEPLOY / "grafana/poolgate.json").read_text("utf-8"))
# The virtual environment's first, which `make promtool` fills.
PROMTOOL = shutil.which(
    "promtool", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
)
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool: make promtool")

OF_TARGETS = {"instance", "job"}  # labels that Prometheus adds
SERIES = re.compile(r"\b((?:poolgate|gen_ai)_\w+)(?:\{([^}]*)\})?")
LABEL = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')
WORDS = {
    "verdict": {str(one) for one in Verdict},
    "outcome": {kind.code for kind in Kind}
    | {str(one) for one in Ending}
    | {str(one) for one in Outcome}
    | {ENGINE_REFUSED, "answered", *MARKERS},
    "reason": {kind.code for kind in Kind} | {*CONNECTION_ENDS},
    "result": {*EXPORTS, *DELIVERIES, *map(str, Result), "hit", "miss"},
    "level": {str(one) for one in Level},
    "error_type": {""},
}


def exported() -> dict[str, set[str]]:
    """Labels by the name of each series of a scrape."""
    suffixes = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_sum", "_count"]}
    return {
        collector._name + suffix: {*collector._labelnames, *(["le"] if suffix == "_bucket" else [])}
        for collector in Metrics().registry._collector_to_names
        for suffix in suffixes[collector._type]
    }


def expressions() -> Iterator[tuple[str, str, str]]:
    """Every query of the dashboard: its panel's title, the query, the legend."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"], target["legendFormat"]


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def promtool(*arguments: str, text: str | None = None) -> None:
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, *arguments], input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def assert_exists(expression: str) -> set[str]:
    """Each series with each of its labels and fixed values; the labels there are to choose from."""
    series, labels = exported(), set(OF_TARGETS)
    bare = re.sub(r"\b(?:by|on|without|ignoring)\s*\([^)]*\)", "", expression)
    found = SERIES.findall(bare)
    assert found, expression
    assert expression.count("(") == expression.count(")")
    for name, selector in found:
        assert name in series, name
        labels |= series[name]
        for label, written in LABEL.findall(selector):
            assert label in series[name] | OF_TARGETS, (name, label)
            if label in WORDS and "$" not in written:
                assert set(written.split("|")) <= WORDS[label], (name, label, written)
    for grouped in re.findall(r"\bby\s*\(([^)]*)\)", expression):
        assert {label.strip() for label in grouped.split(",")} <= labels, grouped
    return labels


# --- the dashboard ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("title", "expression", "legend"),
    [pytest.param(*each, id=f"{each[0]}-{n}") for n, each in enumerate(expressions())],
)
def test_panels_ask_for_what_there_is(title: str, expression: str, legend: str) -> None:
    assert_exists(expression)
    groups = re.findall(r"\bby\s*\(([^)]*)\)", expression)
    kept = {label.strip() for group in groups for label in group.split(",")} - {"le"}
    assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= kept
    assert set(re.findall(r"\$(\w+)", expression)) <= {"instance", "backend", "__rate_interval"}


def test_the_dashboards_variables_ask_for_what_there_is() -> None:
    queries = [
        each["definition"]
        for each in DASHBOARD["templating"]["list"]
        if "query" in each and each["type"] == "query"
    ]
    assert len(queries) == 2
    for query in queries:
        found = re.fullmatch(r"label_values\((.+), (\w+)\)", query)
        assert found
        assert found[2] in assert_exists(found[1])


def test_panels_lie_beside_each_other_and_name_no_data_source_of_ours() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])
        }
        assert not cells & taken, panel["title"]
        assert all(x < 24 for x, _ in cells)
        taken |= cells
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}"
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))


def test_the_dashboard_shows_what_operators_were_promised() -> None:
    shown = " ".join(expression for _, expression, _ in expressions())
    for series in (
        *("poolgate_pool_tokens", "poolgate_context_tokens", "poolgate_prompt_limit_tokens"),
        *("poolgate_requests_total", "poolgate_rejections_total", "poolgate_checks_total"),
        *("poolgate_backend_state", "poolgate_backend_standing", "poolgate_incidents_total"),
        *("poolgate_overhead_seconds_bucket", "poolgate_limiter_store_up"),
    ):
        assert series in shown
    assert re.search(r"by \(prompt_length, le\) \(rate\(gen_ai_server_time_to_first_token", shown)


@needs_promtool
def test_the_dashboards_queries_are_promql(tmp_path: Path) -> None:
    recorded = [
        {"record": f"q:{n}", "expr": expression.replace("$__rate_interval", "5m")}
        for n, (_, expression, _) in enumerate(expressions())
    ]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "q", "rules": recorded}]}))
    promtool("check", "rules", "--lint=none", str(file))


# --- alerts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_rules_ask_for_what_there_is(rule: dict[str, Any]) -> None:
    if rule["alert"] != "PoolgateDown":  # up is Prometheus' own
        labels = assert_exists(rule["expr"])
        told = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
        assert told <= labels


def test_every_rule_is_tried_quiet_and_firing() -> None:
    tried: dict[str, set[bool]] = {}
    for trial in yaml.safe_load(TRIALS.read_text("utf-8"))["tests"]:
        for each in trial["promql_expr_test"]:
            [alert] = re.findall(r'alertname="(\w+)"', each["expr"])
            tried.setdefault(alert, set()).add(bool(each["exp_samples"]))
    assert tried == {rule["alert"]: {True, False} for rule in rules()}


@pytest.mark.parametrize(
    "trial", yaml.safe_load(TRIALS.read_text("utf-8"))["tests"], ids=lambda trial: trial["name"]
)
def test_trials_use_series_as_they_are_exported(trial: dict[str, Any]) -> None:
    """A trial with a label that no scrape has proves nothing."""
    series = exported() | {"up": set()}
    for each in trial["input_series"]:
        name, selector = re.fullmatch(r"(\w+)\{(.*)\}", each["series"]).groups()
        assert {label for label, _ in LABEL.findall(selector)} - OF_TARGETS == series[name]


@needs_promtool
def test_the_rules_and_the_scrape_are_prometheuss() -> None:
    promtool("check", "rules", str(RULES))
    promtool("check", "config", str(DEPLOY / "prometheus/scrape.yml"))


@needs_promtool
def test_the_rules_fire_when_they_should_and_only_then() -> None:
    promtool("test", "rules", str(TRIALS))


@needs_promtool
def test_the_scrape_is_as_prometheus_wants_it() -> None:
    promtool("check", "metrics", text=Metrics().render().decode())


# --- names ------------------------------------------------------------------------------------


def test_gen_ai_names_are_the_conventions() -> None:
    """OpenTelemetry's instruments in Prometheus' spelling: dots to underscores, units appended."""
    ours = {name for name in exported() if name.startswith("gen_ai_") and name.endswith("_sum")}
    assert ours == {
        "gen_ai_client_token_usage_sum",  # {token} is an annotation, not a unit
        "gen_ai_client_operation_duration_seconds_sum",
        "gen_ai_server_time_to_first_token_seconds_sum",
    }
    for name in ours:
        required = {"gen_ai_operation_name", "gen_ai_provider_name"}
        assert required <= exported()[name]
    assert "gen_ai_token_type" in exported()["gen_ai_client_token_usage_sum"]
