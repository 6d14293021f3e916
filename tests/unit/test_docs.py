"""What the documentation says is so: links, commands, metrics, tests."""

from __future__ import annotations

import argparse
import ast
import json
import logging
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.cli.main import main, parser
from gateway.dialects import sglang_generate
from gateway.dialects.routes import ROUTES
from gateway.edge.admin import Admin
from gateway.edge.counting import ENGINE_CAN_TELL
from gateway.edge.exchange import Exchange
from gateway.edge.logs import JsonLines
from gateway.edge.metrics import Metrics
from gateway.edge.record import access_record
from gateway.engines.detect import ENGINES
from gateway.errors import Kind
from gateway.rendering.common import MEDIA_PARTS
from gateway.settings.notices import INACTIVE

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
README = ROOT / "README.md"
PAGES = sorted([README, ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")])
ALERTS = DEPLOY / "prometheus/alerts.yml"

FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
SPAN = re.compile(r"`([^`\n]+)`")


def text_of(page: Path) -> str:
    return page.read_text("utf-8")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def section(page: str, title: str) -> str:
    """The text under a heading, up to the next one of its rank."""
    rank, _, _ = title.partition(" ")
    return text_of(ROOT / page).split(f"\n{title}\n", 1)[1].split(f"\n{rank} ", 1)[0]


def rows(page: str, title: str) -> list[list[str]]:
    """The cells of the table under a heading."""
    lines = [line for line in section(page, title).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines[2:]]


# --- links ------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """The fragments that headings get on the usual hosts."""
    titles = re.findall(r"^#+ (.+)$", FENCE.sub("", text_of(page)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_resolve(page: Path) -> None:
    for link in LINK.findall(FENCE.sub("", text_of(page))):
        path, _, fragment = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if fragment:
            assert fragment in anchors(target), link


def test_the_readme_names_every_page() -> None:
    assert [name_of(page) for page in PAGES if name_of(page) not in text_of(README)] == [
        "README.md"
    ]


# --- commands ---------------------------------------------------------------------------------


def command_lines(code: str) -> Iterator[str]:
    """What of a page's code runs poolgate, without the command's own name."""
    for line in code.replace("\\\n", " ").splitlines():
        found = re.search(r"(?:^|\| )(?:\.venv/bin/)?poolgate +(.+)", line)
        if found:
            yield found[1].split(" > ")[0]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_in_blocks_are_taken_by_the_parser(page: Path) -> None:
    for _, block in FENCE.findall(text_of(page)):
        for line in command_lines(block):
            parser().parse_args(shlex.split(line, comments=True))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_in_prose_exist_with_their_options(page: Path) -> None:
    for span in SPAN.findall(text_of(page)):
        for line in command_lines(span):
            name, *words = line.split()
            assert name in subcommands(), line
            given = {word for word in words if word.startswith("--")}
            assert given <= set(options_of(subcommands()[name])), line


def options_of(command: argparse.ArgumentParser) -> Iterator[str]:
    """A command's options and those of its verbs."""
    for action in command._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for verb in action.choices.values():
                yield from options_of(verb)


def subcommands() -> dict[str, argparse.ArgumentParser]:
    [choices] = [action.choices for action in parser()._actions if action.choices]
    return dict(choices)


def test_the_readme_names_every_command() -> None:
    named = {cells[0].strip("`").split()[1] for cells in rows("README.md", "## What is in the box")}
    assert named == subcommands().keys()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", text_of(ROOT / "Makefile"), re.MULTILINE))
    text = text_of(page)
    code = "\n".join([*(body for _, body in FENCE.findall(text)), *SPAN.findall(text)])
    assert set(re.findall(r"\bmake ([a-z-]+)", code)) <= targets


def test_the_readme_names_every_endpoint() -> None:
    named = section("README.md", "## What is in the box")
    for _, path in ROUTES:
        assert f"`{path}`" in named


# --- configuration ----------------------------------------------------------------------------


def test_the_readmes_configuration_passes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [written] = [body for language, body in FENCE.findall(text_of(README)) if language == "yaml"]
    file = tmp_path / "poolgate.yaml"
    file.write_text(written)
    assert main(["check-config", str(file)]) == 0
    assert "not active" not in capsys.readouterr().out


def test_the_configmaps_configuration_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_KEY", "an-engine-key")
    monkeypatch.setenv("SALT_SECRET", "a-secret-of-sixteen-or-more")
    file = tmp_path / "poolgate.yaml"
    configmap = yaml.safe_load(text_of(DEPLOY / "kubernetes/configmap.yaml"))
    file.write_text(configmap["data"]["poolgate.yaml"])
    assert main(["check-config", str(file)]) == 0


def test_checks_that_do_nothing_are_said_to() -> None:
    for key in INACTIVE:
        area, name = key.split(".")
        if area == "integrity":
            assert name in section("docs/checks.md", "## Not in this version")


# --- metrics and alerts -----------------------------------------------------------------------


def exported() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Type and labels of every metric, by the name of the scrape."""
    registry = Metrics().registry
    found = {}
    for collector in registry._collector_to_names:
        suffix = "_total" if collector._type == "counter" else ""
        found[collector._name + suffix] = (collector._type, collector._labelnames)
    return found


def documented() -> Iterator[tuple[str, tuple[str, tuple[str, ...]]]]:
    for title in ("Requests", "Limits", "Checks", "The gateway itself", "Quotas"):
        for name, kind, labels, *_ in rows("docs/metrics.md", f"## {title}"):
            yield name.strip("`"), (kind, tuple(re.findall(r"`(\w+)`", labels)))


def test_every_metric_is_documented_as_it_is() -> None:
    assert dict(documented()) == exported()


def test_every_code_is_documented_with_its_status() -> None:
    told = {
        cells[0].strip("`"): int(cells[1])
        for cells in rows("docs/metrics.md", "## Codes of refusals")
    }
    assert told == {kind.code: kind.status for kind in Kind}


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load(text_of(ALERTS))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def base_name(series: str) -> str:
    return re.sub(r"_(bucket|sum|count)$", "", series)


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_alerts_lead_to_the_runbook(rule: dict[str, Any]) -> None:
    page, _, fragment = rule["annotations"]["runbook"].partition("#")
    assert fragment in anchors(ROOT / page)
    assert f"`{rule['alert']}`" in text_of(ROOT / page)
    assert rule["labels"]["severity"] in ("critical", "warning")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_metrics_named_in_prose_exist(page: Path) -> None:
    labels = {label for _, labels in exported().values() for label in labels}
    for series in re.findall(r"\b(?:poolgate|gen_ai)_[a-z_]+[a-z]\b", text_of(page)):
        assert base_name(series) in exported() or series in labels


def test_admin_paths_exist() -> None:
    admin = Admin(None, None, None, lambda: 0.0, None)
    paths = [route.resource.canonical for route in admin.application().router.routes()]
    routes = {"/" + path.split("/")[1] for path in paths}
    for page in PAGES:
        asked = re.findall(r"(?:\$ADMIN|127\.0\.0\.1:9090)(/\w+)", text_of(page))
        assert set(asked) <= routes, page


# --- logs -------------------------------------------------------------------------------------


def members(title: str) -> list[str]:
    return [cells[0].strip("`") for cells in rows("docs/logs.md", title)]


def test_every_member_of_an_access_record_is_documented_in_its_order() -> None:
    assert members("## Access records") == list(access_record(Exchange("r", 0.0, "/"), 0.0))


def test_every_member_of_a_log_line_is_documented_in_its_order() -> None:
    failed = (ValueError, ValueError(), None)
    record = logging.LogRecord("a", logging.INFO, "f", 1, "m", (), failed)
    record.incident = {}
    assert members("## The gateway's log") == list(json.loads(JsonLines().format(record)))


# --- pages about code -------------------------------------------------------------------------


def functions_in(file: Path) -> set[str]:
    tree = ast.parse(text_of(file))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, functions)}


def test_cases_name_tests_that_exist() -> None:
    named = re.findall(r"`((?:tests|benchmarks)/[\w/]+\.py)(?:::(\w+))?`", case_text())
    assert len(named) > 50
    for file, test in named:
        assert (ROOT / file).is_file(), file
        assert not test or test in functions_in(ROOT / file), f"{file}::{test}"


def test_each_case_is_told_once() -> None:
    told = [int(number) for number in re.findall(r"^\| (\d+) \|", case_text(), re.MULTILINE)]
    assert len(told) == len(set(told)) == 52


def case_text() -> str:
    return text_of(ROOT / "docs/cases.md")


def reasons() -> set[str]:
    """Every word for a prompt that cannot be counted, as the sources write them."""
    pattern = re.compile(
        r'(?:Unrenderable|OpaquePrompt|Unverifiable|UncountableText)\(\s*"([a-z_]+)"'
        r'|^ +\("[a-z_]+", "([a-z_]+)"\),$',
        re.MULTILINE,
    )
    found = set(MEDIA_PARTS.values()) | set(sglang_generate._OPAQUE.values())
    for package in ("dialects", "edge", "rendering", "tokens"):
        for file in (ROOT / "gateway" / package).glob("*.py"):
            found |= {one or other for one, other in pattern.findall(text_of(file))}
    return found


def test_every_reason_for_no_count_is_explained() -> None:
    page = section("docs/counting.md", "## Prompts that cannot be counted")
    assert len(reasons()) > 30
    assert {reason for reason in reasons() if f"`{reason}`" not in page} == set()


def test_the_reasons_to_ask_the_engine_are_the_codes() -> None:
    page = section("docs/counting.md", "## Prompts that cannot be counted")
    quoted = "\n".join(line for line in page.splitlines() if line.startswith("> "))
    assert set(re.findall(r"`(\w+)`", quoted)) == ENGINE_CAN_TELL


def test_every_endpoint_asked_for_a_limit_is_told() -> None:
    page = text_of(ROOT / "docs/limits-per-engine.md")
    for engine in ENGINES:
        for probe in engine.probes:
            assert f"`{probe.path}`" in page, (engine.name, probe.path)
