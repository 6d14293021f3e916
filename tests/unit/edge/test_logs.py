"""The gateway's own log, and text of others in it."""

from __future__ import annotations

import io
import json
import logging
import sys

import pytest

from gateway.edge.logs import JsonLines, TextLines, log_to_stderr
from gateway.edge.shown import LONGEST, shown
from gateway.settings.observing import Logging


@pytest.fixture
def root():
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield root
    for handler in [one for one in root.handlers if one not in handlers]:
        root.removeHandler(handler)
    root.setLevel(level)


def record(message="said %s", *args, **more):
    made = logging.LogRecord("poolgate.part", logging.WARNING, "f", 1, message, args, None)
    made.__dict__.update(more)
    return made


def failure():
    try:
        int("the prompt was: hello")
    except ValueError:
        return sys.exc_info()


def test_a_json_line_has_its_members_and_one_line():
    line = JsonLines(3).format(record("two\nlines %s", "\x1b[31m"))
    assert "\n" not in line
    assert "\x1b" not in line
    told = json.loads(line)
    assert told.pop("time").endswith("+00:00")
    assert told == {
        "level": "warning",
        "logger": "poolgate.part",
        "worker": 3,
        "message": "two\nlines \x1b[31m",
    }


@pytest.mark.parametrize("lines", [JsonLines(), TextLines(), TextLines(2)])
def test_an_exceptions_message_is_not_told(lines):
    line = lines.format(record("failed", exc_info=failure()))
    assert "hello" not in line
    assert "ValueError at failure:" in line


def test_an_incident_is_a_member_and_not_a_text():
    incident = {"id": "inc_1", "kind": "binding"}
    told = json.loads(JsonLines().format(record('{"id": "inc_1"}', incident=incident)))
    assert told["incident"] == incident
    assert told["message"] == "incident"


def test_settings_take_effect_and_the_last_ones_hold(root, monkeypatch):
    monkeypatch.setattr(sys, "stderr", stderr := io.StringIO())
    log = logging.getLogger("poolgate.test")
    log_to_stderr()
    log.debug("unheard")
    log.info("for people")
    log_to_stderr(Logging(format="json", level="error"), worker=1)
    log.warning("unheard")
    log.error("for machines")
    first, second = stderr.getvalue().splitlines()
    assert first.endswith("INFO for people")
    assert json.loads(second)["worker"] == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("qwen3-32b", "qwen3-32b"),
        ("modèle", "modèle"),
        ("a\r\n\x1b[2Jb", r"a\r\n\x1b[2Jb"),
        ("\u202egnp.exe\u2028", r"\u202egnp.exe\u2028"),
        ("\ud800", r"\ud800"),
        ("x" * 500, "x" * (LONGEST - 1) + "…"),
    ],
)
def test_text_of_others_is_cut_and_cannot_act(text, told):
    assert shown(text) == told
    assert shown(text).encode()
