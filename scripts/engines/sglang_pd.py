#!/usr/bin/env python3
"""Run SGLang as a prefill worker, a decode worker and its router, in the foreground, on loopback.

The incident's shape: prefill's KV pool is smaller than the context that is advertised, decode's is
not. Started by run_engine.py with the environment's own Python. Ends when one of the three does,
with code 1, or on SIGTERM, with 0; the others with it.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from pathlib import Path

from run_engine import HOST, MODEL_NAME, answers, free_port

COMMON = (
    *("--served-model-name", MODEL_NAME, "--host", HOST),
    *("--device", "cpu", "--attention-backend", "torch_native", "--disable-overlap-schedule"),
    *("--skip-server-warmup", "--enable-cache-report", "--enable-metrics"),
    *("--max-running-requests", "8", "--sleep-on-idle"),
    *("--disaggregation-transfer-backend", "mooncake_tcp"),
    *("--page-size", "1"),  # larger pages are allocated by a Triton kernel
)
# Its default keeps retracted requests' KV in pinned memory, which needs CUDA.
DECODE = ("--disaggregation-decode-retraction-backup", "cpu_tensor")


def start(*command: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", *command])


def worker(
    mode: str, port: int, bootstrap: int, tokens: int, asked: argparse.Namespace
) -> subprocess.Popen[bytes]:
    return start(
        *("sglang.launch_server", "--model-path", str(asked.model), "--port", str(port), *COMMON),
        *("--context-length", str(asked.context), "--disaggregation-mode", mode),
        *("--disaggregation-bootstrap-port", str(bootstrap)),
        *("--max-total-tokens", str(tokens), *(DECODE if mode == "decode" else ())),
    )


def router(port: int, prefill: int, bootstrap: int, decode: int) -> subprocess.Popen[bytes]:
    return start(
        *("sglang_router.launch_router", "--host", HOST, "--port", str(port)),
        *("--prometheus-port", str(free_port()), "--pd-disaggregation"),
        *("--prefill", f"http://{HOST}:{prefill}", str(bootstrap)),
        *("--decode", f"http://{HOST}:{decode}"),
    )


def wait(running: list[subprocess.Popen[bytes]], *ports: int) -> None:
    """Until a server answers at each of the ports; or, without any, for good."""
    while not ports or not all(answers(f"http://{HOST}:{port}") for port in ports):
        if any(each.poll() is not None for each in running):
            sys.exit(1)
        time.sleep(0.25)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True, help="the router's")
    parser.add_argument("--context", type=int, required=True)
    parser.add_argument("--prefill-tokens", type=int, help="prefill's pool (context / 4)")
    parser.add_argument("--decode-tokens", type=int, help="decode's pool (context x 2)")
    asked = parser.parse_args()
    prefill_tokens = asked.prefill_tokens or asked.context // 4
    decode_tokens = asked.decode_tokens or asked.context * 2

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    prefill, decode, bootstrap = free_port(), free_port(), free_port()
    running: list[subprocess.Popen[bytes]] = []
    try:
        running.append(worker("prefill", prefill, bootstrap, prefill_tokens, asked))
        running.append(worker("decode", decode, bootstrap, decode_tokens, asked))
        wait(running, prefill, decode)
        running.append(router(asked.port, prefill, bootstrap, decode))
        wait(running)
    finally:
        for each in running:
            each.terminate()


if __name__ == "__main__":
    main()
