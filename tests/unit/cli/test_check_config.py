from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from gateway.cli import check_config

DIGEST = "0d3c2f4a5b6978e1f2034cd56ab79e80f1a2b3c4d5e6f708192a3b4c5d6e7f80"
GOOD = f"""\
backends: [{{name: a, url: "http://h:1", api_key: LEAKMARK}}]
tenants: [{{id: t, key_sha256: ["{DIGEST}"]}}]
policies: {{spare: {{concurrent: 1}}}}
"""
BAD = """\
backends: [{name: a, url: "http://h:1", limit: {refresh: 5}}]
drain: x
retry: 1
"""


def check(tmp_path: Path, text: str, *options: str) -> int:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    parser = argparse.ArgumentParser()
    check_config.register(parser.add_subparsers())
    args = parser.parse_args(["check-config", str(file), *options])
    status: int = args.run(args)
    return status


def test_a_good_file_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(tmp_path, GOOD) == 0
    shown = capsys.readouterr()
    assert "Backend a (http://h:1):" in shown.out
    assert "policies.spare is not active" in shown.out
    assert shown.err == ""


def test_every_fault_is_a_line_with_its_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(tmp_path, BAD) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert [line.split(": ")[0] for line in shown.err.splitlines()] == [
        "backends[0].limit.refresh",
        "drain",
        "retry",
    ]


def test_a_good_file_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(tmp_path, GOOD, "--json") == 0
    outcome = json.loads(capsys.readouterr().out)
    assert outcome["ok"] is True
    assert len(outcome["notices"]) == 1
    assert outcome["settings"]["listen"] == "127.0.0.1:8080"
    assert outcome["settings"]["backends"][0]["limit"]["refresh"] == 10.0
    assert outcome["settings"]["tenants"] == [{"id": "t", "policy": "default", "fingerprint": True}]


def test_faults_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(tmp_path, BAD, "--json") == 2
    shown = capsys.readouterr()
    outcome = json.loads(shown.out)
    assert outcome["ok"] is False
    assert outcome["problems"][2] == {"path": "retry", "message": "unknown key"}
    assert len(shown.err.splitlines()) == len(outcome["problems"]) == 3


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_no_secret_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    check(tmp_path, GOOD, *options)
    shown = capsys.readouterr().out
    assert "LEAKMARK" not in shown
    assert DIGEST not in shown


def test_a_missing_file_is_a_fault_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = argparse.Namespace(file=tmp_path / "none.yaml", json=False)
    assert check_config.run(args) == 2
    assert "cannot read" in capsys.readouterr().err
