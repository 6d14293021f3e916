"""The examples that are shipped pass, with what their comments say they need."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from gateway.cli import check_config

CONFIG = Path(__file__).parents[3] / "config"


@pytest.mark.parametrize("file", sorted(CONFIG.glob("*.yaml")), ids=lambda file: file.stem)
def test_example(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ENGINE_KEY", "an-engine-key")
    monkeypatch.setenv("SALT_SECRET", "a-secret-of-sixteen-or-more")
    parser = argparse.ArgumentParser()
    check_config.register(parser.add_subparsers())
    args = parser.parse_args(["check-config", str(file)])
    assert args.run(args) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert "Backend" in shown.out
    assert "without effect" not in shown.out


def test_both_examples_are_there() -> None:
    names = {file.name for file in CONFIG.glob("*.yaml")}
    assert names >= {"poolgate.yaml", "example-multi-tenant.yaml"}
