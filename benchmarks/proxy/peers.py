"""Who is measured, and how each is started: one worker, on one core, with what it needs to run."""

from __future__ import annotations

import hashlib
import secrets
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.proxy.rig import BENCH, ROOT, Child, FakeEngine, call, free_port, wait_for
from benchmarks.proxy.traffic import CHAT_PATH, MARKER, Body

CONFIGS = Path(__file__).resolve().parents[1] / "peers"
BASELINE = "aiohttp pass-through"
POOLGATE = "poolgate"
LITELLM = "litellm"
DIRECT = "direct"
KEY = "sk-" + secrets.token_hex(24)
TEN_MILLION = "10000000"
START_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Peer:
    """``{...}`` in ``argv`` and ``@...@`` in its configuration are filled in by ``start``.

    ``more`` goes at the configuration's end.
    """

    name: str
    argv: tuple[str, ...]
    needs: Path
    version: tuple[str, ...]
    config: str | None = None
    more: str = ""
    key: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Running:
    """A peer that answers."""

    peer: Peer
    port: int
    admin: int
    child: Child | None  # None for the direct way, which has no process of its own


def _in_venv(venv: Path, package: str) -> tuple[str, ...]:
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    return (str(venv / "bin" / "python"), "-c", code)


def _rust_router(name: str, argv: tuple[str, ...], *extra: str) -> Peer:
    venv = BENCH / name
    return Peer(
        name,
        (
            *argv, "--host", "127.0.0.1", "--port", "{port}", "--worker-urls", "{upstream}",
            "--policy", "round_robin", "--prometheus-host", "127.0.0.1",
            "--prometheus-port", "{admin}", "--max-payload-size", TEN_MILLION,
            "--log-level", "error", *extra,
        ),
        needs=venv / "bin",
        version=_in_venv(venv, name),
    )  # fmt: skip


def _aiohttp(name: str, *extra: str) -> Peer:
    script = CONFIGS / "passthrough.py"
    return Peer(
        name,
        (sys.executable, str(script), "{port}", "{upstream}", *extra),
        needs=script,
        version=_in_venv(Path(sys.prefix), "aiohttp"),
    )


ALL = (
    Peer(DIRECT, (), needs=ROOT, version=()),
    Peer(
        "nginx",
        (str(BENCH / "nginx/usr/sbin/nginx"), "-c", "{config}", "-e", "{work}/nginx.err"),
        needs=BENCH / "nginx/usr/sbin/nginx",
        version=(str(BENCH / "nginx/usr/sbin/nginx"), "-v"),
        config="nginx.conf",
    ),
    _rust_router("vllm-router", (str(BENCH / "vllm-router/bin/vllm-router"),)),
    _rust_router(
        "sglang-router",
        (str(BENCH / "sglang-router/bin/python"), "-m", "sglang_router.launch_router"),
    ),
    _rust_router("smg", (str(BENCH / "smg/bin/smg"), "launch")),
    _aiohttp(f"{BASELINE} (uvloop)", "--uvloop"),
    _aiohttp(BASELINE),
    Peer(
        POOLGATE,
        (sys.executable, "-m", "gateway", "serve", "--config", "{config}"),
        needs=ROOT / "gateway/cli/main.py",
        version=_in_venv(Path(sys.prefix), "poolgate"),
        config="poolgate.yaml",
        key=KEY,
    ),
    Peer(
        LITELLM,
        (
            str(BENCH / "litellm/bin/litellm"), "--config", "{config}", "--host", "127.0.0.1",
            "--port", "{port}", "--num_workers", "1",
        ),
        needs=BENCH / "litellm/bin/litellm",
        version=_in_venv(BENCH / "litellm", "litellm"),
        config="litellm.yaml",
        key=KEY,
        env={"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MODE": "PRODUCTION"},
    ),
)  # fmt: skip


def start(peer: Peer, engine: FakeEngine, core: int | str, work: Path, probe: Body) -> Running:
    """Starts it and waits until ``probe`` is answered through it; raises with its last words."""
    if not peer.argv:
        return Running(peer, engine.port, engine.port, None)
    if not peer.needs.exists():
        raise FileNotFoundError("not installed")
    port, admin = free_port(), free_port()
    words = {
        "PORT": str(port),
        "ADMIN": str(admin),
        "UPSTREAM": engine.url,
        "UPSTREAM_HOST": engine.url.removeprefix("http://"),
        "WORK": str(work),
        "KEY": KEY,
        "KEY_SHA256": hashlib.sha256(KEY.encode()).hexdigest(),
    }
    config = work / (peer.config or "none")
    if peer.config:
        text = (CONFIGS / peer.config).read_text() + peer.more
        for name, value in words.items():
            text = text.replace(f"@{name}@", value)
        config.write_text(text)
    filled = [
        part.format(port=port, admin=admin, upstream=engine.url, config=config, work=work)
        for part in peer.argv
    ]
    child = Child(filled, core, work / f"{peer.name.replace(' ', '-')}.log", peer.env)
    running = Running(peer, port, admin, child)
    try:
        wait_until_it_answers(running, probe, START_SECONDS)
    except (RuntimeError, TimeoutError) as failure:
        child.stop()
        raise RuntimeError(f"{failure}; {last_words(child)}") from None
    return running


def wait_until_it_answers(one: Running, probe: Body, seconds: float) -> None:
    """``probe`` is answered through it, after its start or a pause in which its facts grew old.

    Raises TimeoutError after ``seconds``, RuntimeError where the process has ended.
    """

    def answers() -> bool:
        if one.child and not one.child.running:
            raise RuntimeError("ended at once")
        status, text, _ = call(
            f"http://127.0.0.1:{one.port}{CHAT_PATH}", probe.data, key=one.peer.key
        )
        return status == 200 and MARKER.encode() in text

    wait_for(answers, seconds, one.peer.name)


def last_words(child: Child) -> str:
    """The end of its log, on one line."""
    return " | ".join(child.log.read_text(errors="replace").strip().splitlines()[-3:])[-400:]


def version_of(peer: Peer) -> str:
    """The version as the peer tells it; empty for the direct way."""
    if not peer.version:
        return ""
    done = subprocess.run(peer.version, capture_output=True, text=True, timeout=60, check=False)
    return (done.stdout or done.stderr).strip().removeprefix("nginx version: nginx/")
