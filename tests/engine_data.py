"""What engines answered: recorded exchanges (data/captures) and composed ones (data/engines)."""

import json
import re
from pathlib import Path
from typing import Any

from gateway.engines.base import Answer, Probe

DATA = Path(__file__).parent / "data"


def captured(engine: str, name: str) -> tuple[Probe, Answer]:
    """One recorded exchange: the request's method and path, and the answer."""
    text = (DATA / "captures" / engine / f"{name}.http").read_bytes()
    asked = re.match(rb"> (\w+) (\S+)", text)
    status = re.search(rb"\n< HTTP/1\.1 (\d+)", text)
    assert asked, f"{engine}/{name} shows no request"
    assert status, f"{engine}/{name} shows no answer"
    body = text[text.index(b"\n<\n", status.start()) + 3 :]
    length = re.search(rb"\n< content-length: (\d+)", text, re.IGNORECASE)
    if length:
        body = body[: int(length[1])]
        assert len(body) == int(length[1]), f"{engine}/{name} is cut"
    return Probe(asked[1].decode(), asked[2].decode()), Answer(int(status[1]), body)


def captures(engine: str, *names: str) -> dict[Probe, Answer]:
    """Several recorded exchanges by probe."""
    return dict(captured(engine, name) for name in names)


def refusals(engine: str) -> list[dict[str, Any]]:
    """What an engine answered around its limit (data/refusals)."""
    found: list[dict[str, Any]] = json.loads((DATA / "refusals" / f"{engine}.json").read_text())
    return found


def composed(name: str) -> dict[Probe, Answer]:
    """A file of data/engines by probe. A text is the body as it stands, all else its JSON."""
    asked = json.loads((DATA / "engines" / f"{name}.json").read_text())
    found = {}
    for probe, (status, body) in asked.items():
        method, path = probe.split(" ")
        raw = body if isinstance(body, str) else json.dumps(body)
        found[Probe(method, path)] = Answer(status, raw.encode())
    return found


def answered(**bodies: object) -> dict[Probe, Answer]:
    """Answers of status 200 to GET probes, by path with ``__`` for a slash."""
    return {
        Probe("GET", "/" + path.replace("__", "/")): Answer(200, json.dumps(body).encode())
        for path, body in bodies.items()
    }
