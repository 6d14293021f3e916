"""What may be said of the log and of traces."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.settings import NoSecrets, Settings, SettingsError, parse
from gateway.settings.explain import explain
from gateway.settings.observing import Logging

COLLECTOR = "http://collector:4318"


def written(**sections: Any) -> Settings:
    return parse({"backends": [{"name": "a", "url": "http://h"}], **sections}, NoSecrets())


def test_text_and_no_traces_unless_it_is_written() -> None:
    settings = written()
    assert settings.logging == Logging(format="text", level="info")
    assert settings.telemetry is None
    assert "traced" not in explain(settings)


def test_what_is_written_is_told_but_not_the_collectors_key() -> None:
    telemetry = {
        "otlp": f"{COLLECTOR}/",
        "sample": 0.25,
        "headers": {"Authorization": "Bearer collectors-key"},
        "trust_traceparent": True,
    }
    settings = written(telemetry=telemetry, logging={"format": "json", "level": "warning"})
    text = explain(settings)
    assert "  - the log: json, warning and what is graver\n" in text
    assert f"  - 25 % of the exchanges are traced, to {COLLECTOR}\n" in text
    assert "clients that send a traceparent DECIDE" in text
    assert settings.telemetry is not None
    [value] = settings.telemetry.headers.values()
    assert value.get_secret_value() == "Bearer collectors-key"
    assert "collectors-key" not in text + repr(settings)


@pytest.mark.parametrize(
    ("section", "path"),
    [
        ({"telemetry": {}}, "telemetry.otlp"),
        ({"telemetry": {"otlp": "collector:4318"}}, "telemetry.otlp"),
        ({"telemetry": {"otlp": COLLECTOR, "sample": 1.5}}, "telemetry.sample"),
        ({"telemetry": {"otlp": COLLECTOR, "headers": {"a b": "c"}}}, "telemetry.headers.a b"),
        ({"telemetry": {"otlp": COLLECTOR, "headers": {"a": "x\r\ny"}}}, "telemetry.headers.a"),
        ({"telemetry": {"otlp": COLLECTOR, "headers": {"a": ""}}}, "telemetry.headers.a"),
        ({"telemetry": {"otlp": COLLECTOR, "resource": {"a": 1}}}, "telemetry.resource.a"),
        ({"telemetry": {"otlp": COLLECTOR, "url": "x"}}, "telemetry.url"),
        ({"telemetry": {"otlp": COLLECTOR, "tls": {"ca": "a.pem"}}}, "telemetry.tls"),
        ({"logging": {"format": "xml"}}, "logging.format"),
        ({"logging": {"level": "INFO"}}, "logging.level"),
    ],
)
def test_a_fault_is_told_with_its_path(section: dict[str, Any], path: str) -> None:
    with pytest.raises(SettingsError) as caught:
        written(**section)
    assert [problem.path for problem in caught.value.problems] == [path]
    assert "x\r\ny" not in str(caught.value)


@pytest.mark.parametrize(
    ("telemetry", "said"),
    [
        ({"sample": 0.0}, True),
        ({"sample": 0.0, "trust_traceparent": True}, False),
        ({"sample": 0.1}, False),
    ],
)
def test_a_sample_of_nothing_is_said_to_do_nothing(telemetry: dict[str, Any], said: bool) -> None:
    notices = written(telemetry={"otlp": COLLECTOR, **telemetry}).notices
    assert any("telemetry is not active" in notice for notice in notices) is said
