"""What really happened, told out of band: the truth that detectors are measured against.

One JSON object a line, appended when a sequence ends. The gateway must never read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import msgspec


class Truth(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence's truth.

    ``rid`` is the request's id; ``owner`` the name under which the sequence's own tokens lie in
    memory (the rid, with a suffix in batches). ``copied`` counts the tokens copied into the text
    by foreign owner; ``leaked`` says whether there were any. ``exposed_tokens`` are the foreign
    slots the page table let it attend to. ``prefill_tokens`` is what the prefill leg counted.
    """

    rid: str
    owner: str
    prompt_tokens: int
    prefill_tokens: int
    cached_tokens: int
    completion_tokens: int
    stage: str
    finish: str
    status: int
    leaked: bool
    exposed_tokens: int
    copied: Mapping[str, int]
    reserved_pages: int
    sent_pages: int
    received_tokens: int


class Oracle:
    """Keeps truths by owner and, given a path, appends each to that file at once.

    At most ``keep`` are held in memory, the oldest going first. Raises OSError when the file
    cannot be opened.
    """

    def __init__(self, path: Path | None = None, keep: int = 100_000) -> None:
        self.records: dict[str, Truth] = {}
        self._keep = keep
        self._encode = msgspec.json.Encoder().encode
        self._file: BinaryIO | None = path.open("ab", buffering=0) if path else None

    def record(self, truth: Truth) -> None:
        """Take one ended sequence."""
        self.records[truth.owner] = truth
        if len(self.records) > self._keep:
            del self.records[next(iter(self.records))]
        if self._file is not None:
            self._file.write(self._encode(truth) + b"\n")

    def close(self) -> None:
        """Close the file; records stay readable."""
        if self._file is not None:
            self._file.close()
            self._file = None
