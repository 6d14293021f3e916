from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from assets_at_hand import TINY, counter, whole_count
from gateway.cli.main import main
from gateway.types import ChatPrompt, Counted

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def test_text_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text("hello <|im_end|>\n")
    assert main(["count", "--model", TINY, str(tmp_path / "text")]) == 0
    assert capsys.readouterr().out == f"{whole_count(TINY, 'hello <|im_end|>' + chr(10))}\n"


def test_text_from_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO("中文".encode())))
    assert main(["count", "--model", "m", "--tokenizer", TINY, "-"]) == 0
    assert int(capsys.readouterr().out) == whole_count(TINY, "中文")


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama_cpp", "openai"])
def test_request_body_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: str
) -> None:
    (tmp_path / "body").write_text(json.dumps(CHAT))
    arguments = ["count", "--model", "m", "--tokenizer", TINY, "--engine", engine, "--json"]
    assert main([*arguments, "--dialect", "openai_chat", str(tmp_path / "body")]) == 0
    report = json.loads(capsys.readouterr().out)
    expected = counter(engine=engine).count(ChatPrompt("openai_chat", CHAT))
    assert isinstance(expected, Counted)
    assert report["tokens"] == expected.total <= report["upper_bound"]
    assert report["library"] == "fastokens"


@pytest.mark.parametrize(
    ("arguments", "content", "message"),
    [
        (["--model", "nothing"], b"x", "unknown tokenizer"),
        (["--model", TINY], b"\xff", "not UTF-8"),
        (["--model", TINY, "--dialect", "openai_chat"], b"{", "not JSON"),
        (["--model", TINY, "--dialect", "openai_chat"], b"[]", "not a JSON object"),
        (["--model", TINY, "--dialect", "openai_chat"], b"{}", "malformed"),
        (["--model", TINY, "--dialect", "openai_chat"],
         b'{"messages":[{"role":"user","content":"\\ud800"}]}', "lone surrogate"),
        (["--model", TINY, "--dialect", "openai_chat"],
         b'{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}', "image"),
    ],
)  # fmt: skip
def test_no_number_is_exit_2_and_says_why(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    content: bytes,
    message: str,
) -> None:
    (tmp_path / "input").write_bytes(content)
    assert main(["count", *arguments, str(tmp_path / "input")]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert message in shown.err


def test_missing_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["count", "--model", TINY, "/nothing/here"]) == 2
    assert "cannot count" in capsys.readouterr().err
