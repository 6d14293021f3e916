"""Proxies that stand in front of poolgate, as processes of their own: nginx and HAProxy.

Each tells what it passed on, by its own log. Tests that need one skip where it is not installed.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from waiting import PATIENCE

PASSED_ON = "passed-on"

NGINX = """
daemon off; master_process off; worker_processes 1; pid {folder}/pid; error_log {folder}/errors;
events {{ worker_connections 128; }}
http {{
  log_format told '{passed}|$upstream_addr|$request';
  access_log syslog:server=127.0.0.1:{log},nohostname told;
  client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
  uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  upstream gateway {{ server 127.0.0.1:{gateway}; keepalive 4; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://gateway; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_request_buffering off; proxy_next_upstream off;
    }}
  }}
}}
"""
HAPROXY = """
global
  log 127.0.0.1:{log} format raw local0
defaults
  mode http
  log global
  timeout client 10s
  timeout server 10s
  timeout connect 5s
  timeout http-request 5s
  option http-keep-alive
  http-reuse always
  retries 0
listen front
  bind 127.0.0.1:{port}
  {lax}
  log-format "{passed}|%Tc|%HM %HU"
  server gateway 127.0.0.1:{gateway} pool-purge-delay 60s
"""
KINDS = ("nginx", "haproxy", "haproxy, lax")


def missing(kind: str) -> str | None:
    """Why a neighbour of this kind cannot be had, if it cannot."""
    program = kind.partition(",")[0]
    path = os.environ["PATH"] + ":/usr/sbin"
    return None if shutil.which(program, path=path) else f"{program} is not installed"


@dataclass
class Neighbour:
    """A running one. ``passed_on``: how many requests it sent to the gateway, by its log."""

    port: int
    lines: list[str]

    @property
    def passed_on(self) -> int:
        return sum(line.split("|")[1] not in ("", "-", "-1") for line in self.lines)


class _Lines(asyncio.DatagramProtocol):
    def __init__(self, lines: list[str]) -> None:
        self._lines = lines

    def datagram_received(self, data: bytes, address: object) -> None:
        text = data.decode("latin-1")
        if PASSED_ON in text:
            self._lines.append(text[text.index(PASSED_ON) :])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def running(kind: str, gateway: int, folder: Path) -> AsyncIterator[Neighbour]:
    """One in front of the gateway on port ``gateway``."""
    lines: list[str] = []
    loop = asyncio.get_running_loop()
    log, _ = await loop.create_datagram_endpoint(lambda: _Lines(lines), ("127.0.0.1", 0))
    values = {
        "port": _free_port(), "gateway": gateway, "folder": folder, "passed": PASSED_ON,
        "log": log.get_extra_info("sockname")[1],
        "lax": "option accept-invalid-http-request" if "lax" in kind else "",
    }  # fmt: skip
    file = folder / "conf"
    if kind == "nginx":
        file.write_text(NGINX.format(**values))
        command = ["nginx", "-c", str(file), "-e", str(folder / "errors")]
    else:
        file.write_text(HAPROXY.format(**values))
        command = ["haproxy", "-db", "-f", str(file)]
    process = await asyncio.create_subprocess_exec(
        *command,
        env={**os.environ, "PATH": os.environ["PATH"] + ":/usr/sbin"},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        await _listening(int(str(values["port"])), process)
        yield Neighbour(int(str(values["port"])), lines)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        log.close()


async def _listening(port: int, process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError as error:
                if process.returncode is not None:
                    raise RuntimeError(f"it ended with {process.returncode}") from error
                await asyncio.sleep(0.02)
            else:
                writer.close()
                return
