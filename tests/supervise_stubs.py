"""A worker process as its supervisor sees it, without the process."""

from __future__ import annotations

import asyncio
import json
import signal

from gateway.supervise.handover import LastWords
from gateway.supervise.process import Answer, Silent, Slot


class StubWorker:
    """Answers what it is given by path; a path it has no answer for stays unanswered."""

    def __init__(self, index=0, *, handed=None, refuses=(), **answers):
        self.index = index
        self.pid = 1000 + index
        self.up = True
        self.started = 0.0
        self.handed = handed
        self.refuses = refuses
        self.answers = answers
        self.asked = []
        self.signals = []
        self.said = LastWords(b"", [])

    async def ask(self, method, path, body=b"", *, seconds=None):
        self.asked.append((method, path, body))
        await asyncio.sleep(0)
        answer = self.answers.get(path.strip("/"))
        if answer is None:
            raise Silent
        status, value = answer
        return Answer(status, "application/json", json.dumps(value).encode())

    async def listen(self):
        await asyncio.sleep(0)
        said = self.answers.get("metrics")
        if said is not None:
            self.said = LastWords(said, [])
        return said is not None

    async def reload(self, written):
        if self.refuses is None:
            raise Silent("worker does not answer")
        if not self.refuses:
            self.handed = written
        return self.refuses

    def end(self, how=signal.SIGTERM):
        self.signals.append(how)


def slots(*workers):
    return [Slot(index, worker) for index, worker in enumerate(workers)]
