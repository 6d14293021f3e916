import argparse
import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from gateway.cli import simulate
from gateway.simulate.faults import Faults


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    simulate.register(parser.add_subparsers())
    return parser.parse_args(["simulate", *arguments])


@pytest.mark.parametrize(
    ("arguments", "faults"),
    [
        ((), Faults(to_finish=True)),
        (("--fixed",), Faults()),
        (
            ("--bug", "salt,drift", "--bug", "len_check"),
            Faults(salt=True, drift=True, len_check=True),
        ),
        (("--fixed", "--bug", "salt"), Faults(salt=True)),
    ],
)
def test_bugs(arguments: tuple[str, ...], faults: Faults):
    assert simulate.settings_of(parse(*arguments)).faults == faults


def test_sizes_and_rates():
    settings = simulate.settings_of(
        parse(
            "--context",
            "2048",
            "--prefill-pool",
            "1024",
            "--decode-pool",
            "4096",
            "--seed",
            "7",
            "--q-copy",
            "0.25",
            "--prefill-rate",
            "0",
            "--free-order",
            "lifo",
            "--no-router",
        )
    )
    assert (settings.context, settings.seed, settings.habits.q_copy) == (2048, 7, 0.25)
    assert (settings.timing.prefill_tokens_per_second, settings.free_order) == (0.0, "lifo")
    assert not settings.router


@pytest.mark.parametrize(
    "arguments",
    [
        ("--bug", "nothing"),
        ("--fixed", "--bug", "to_finish"),
        ("--listen", "30000"),
        ("--listen", "127.0.0.1:99999"),
        ("--context", "3"),
        ("--q-copy", "2"),
        ("--tokenizer", "/nowhere"),
        ("--oracle", "/nowhere/oracle"),
    ],
)
def test_bad_options_are_told_and_exit_2(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
):
    assert simulate.run(parse(*arguments)) == 2
    assert capsys.readouterr().err.startswith("poolgate simulate: ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serves_until_told_to_stop(number: signal.Signals, tmp_path: Path):
    program = (
        "import argparse; from gateway.cli import simulate; p = argparse.ArgumentParser();"
        "simulate.register(p.add_subparsers()); a = p.parse_args(); raise SystemExit(a.run(a))"
    )
    oracle = tmp_path / "oracle.jsonl"
    process = subprocess.Popen(
        [
            sys.executable,
            "-W",
            "error",
            "-c",
            program,
            "simulate",
            "--listen",
            "127.0.0.1:0",
            "--oracle",
            str(oracle),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[3].rstrip(":")
        body = json.dumps({"text": "Hello", "sampling_params": {"max_new_tokens": 2}}).encode()
        request = urllib.request.Request(
            f"{url}/generate", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.status == 200
        process.send_signal(number)
        _, errors = process.communicate(timeout=20)
    finally:
        process.kill()
    assert (process.returncode, errors) == (0, "")
    assert len(oracle.read_text().splitlines()) == 1
