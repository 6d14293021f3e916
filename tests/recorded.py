"""Recorded exchanges with real engines: tests/data/captures/<engine>/<name>.http."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent / "data" / "captures"


@dataclass(frozen=True)
class Exchange:
    method: str
    path: str
    request: bytes
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "")


def load(engine: str, name: str) -> Exchange:
    """Lines "> " are the request's head, lines "< " the answer's; bodies follow their heads."""
    raw = (ROOT / engine / f"{name}.http").read_bytes()
    asked, _, answered = raw.partition(b"\n< HTTP/1.1 ")
    head, _, request = asked.partition(b"\n>\n")
    status_and_headers, _, body = answered.partition(b"\n<\n")
    method, path = head.splitlines()[0].decode().removeprefix("> ").split(" ")[:2]
    status, *headers = status_and_headers.decode().splitlines()
    pairs = (line.removeprefix("< ").split(": ", 1) for line in headers)
    return Exchange(
        method=method,
        path=path,
        request=request.strip(),
        status=int(status.split()[0]),
        headers={name.lower(): value for name, value in pairs},
        body=body,
    )
