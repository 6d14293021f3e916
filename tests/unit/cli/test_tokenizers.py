from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from assets_at_hand import TINY, counter, store
from gateway.cli.main import main
from gateway.core.samples import samples
from gateway.types import ChatPrompt, Counted, TextPrompt


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(store().root / "manifest.toml", tmp_path)
    shutil.copytree(store().root / TINY, tmp_path / TINY)
    return tmp_path


class FakeVllm(BaseHTTPRequestHandler):
    """vLLM's ``/tokenize``, counting with our own counter, or off by one."""

    off_by = 0
    keys: ClassVar[list[str | None]]

    def do_GET(self) -> None:
        self.answer({"data": [{"id": "tiny"}]})

    def do_POST(self) -> None:
        self.keys.append(self.headers.get("authorization"))
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path != "/tokenize":
            self.send_error(404)
            return
        prompt = (
            TextPrompt((body["prompt"],))
            if "prompt" in body
            else ChatPrompt("openai_chat", {k: v for k, v in body.items() if k != "model"})
        )
        length = counter().count(prompt)
        assert isinstance(length, Counted)
        self.answer({"count": length.total + self.off_by, "tokens": []})

    def answer(self, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def engine() -> Iterator[tuple[str, type[FakeVllm]]]:
    class Handler(FakeVllm):
        keys: ClassVar[list[str | None]] = []

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", Handler
    server.shutdown()
    thread.join()
    server.server_close()


def test_list_shows_what_is_there(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokenizers", "list", "--tokenizers", str(folder)]) == 0
    rows = {row.split()[0]: row for row in capsys.readouterr().out.splitlines()}
    assert "present" in rows[TINY]
    assert "not fetched" in rows["qwen3"]
    assert "by name only" in rows["llama3_1"]


def test_verify_passes_on_sound_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokenizers", "verify", "--tokenizers", str(folder)]) == 0
    assert capsys.readouterr().out.startswith(f"ok   {TINY}: checksums right")


def test_altered_file_fails_verify_and_list(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (folder / TINY / "tokenizer.json").open("a") as stream:
        stream.write(" ")
    assert main(["tokenizers", "verify", "--tokenizers", str(folder)]) == 1
    assert "another checksum" in capsys.readouterr().out
    main(["tokenizers", "list", "--tokenizers", str(folder)])
    assert "ALTERED" in capsys.readouterr().out


@pytest.mark.parametrize("verb", [["list"], ["verify"], ["add", "x", "/nothing"]])
def test_without_a_manifest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: list[str]
) -> None:
    assert main(["tokenizers", *verb, "--tokenizers", str(tmp_path)]) == 1
    assert "no tokenizer manifest" in capsys.readouterr().err


def test_unknown_name_fails(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokenizers", "verify", "nothing", "--tokenizers", str(folder)]) == 1
    assert "FAIL nothing" in capsys.readouterr().out


def test_added_folder_verifies(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = ["--tokenizers", str(folder)]
    assert main(["tokenizers", "add", "mine", str(folder / TINY), *here]) == 0
    assert "mine/tokenizer.json" in capsys.readouterr().out
    assert main(["tokenizers", "verify", "mine", *here]) == 0
    assert main(["tokenizers", "add", "mine", str(folder / TINY), *here]) == 1


def test_agreement_with_the_engine(
    engine: tuple[str, type[FakeVllm]], capsys: pytest.CaptureFixture[str]
) -> None:
    url, handler = engine
    arguments = ["tokenizers", "verify", TINY, "--backend", url, "--engine", "vllm"]
    assert main([*arguments, "--api-key", "k"]) == 0
    shown = capsys.readouterr().out
    compared = sum(sample.name.startswith(("text/", "openai_chat/")) for sample in samples())
    assert f"ok   vllm: {compared} prompts compared with tiny" in shown
    assert set(handler.keys) == {"Bearer k"}


def test_disagreement_with_the_engine(
    engine: tuple[str, type[FakeVllm]], capsys: pytest.CaptureFixture[str]
) -> None:
    url, handler = engine
    handler.off_by = 1
    arguments = ["tokenizers", "verify", TINY, "--backend", url, "--engine", "vllm"]
    assert main(arguments) == 1
    shown = capsys.readouterr().out
    assert "FAIL vllm text/prose: the engine counts" in shown
    assert "FAIL vllm openai_chat/tools: the engine counts" in shown


def test_engine_that_does_not_answer(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["tokenizers", "verify", TINY, "--backend", "http://127.0.0.1:9"]
    assert main(arguments) == 1
    assert "not recognised" in capsys.readouterr().out
    assert main([*arguments, "--engine", "vllm"]) == 1
    assert "lists no model" in capsys.readouterr().out
    assert main([*arguments, "--engine", "vllm", "--model", "m"]) == 1
    assert "counted none" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [["--backend", "file:///etc/passwd", TINY], ["--backend", "http://x"]]
)
def test_backend_needs_an_http_address_and_one_name(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tokenizers", "verify", *arguments]) == 1
    assert capsys.readouterr().err
