"""One request's story, filled in along the path and told once at its end."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from msgspec import Struct, field

from gateway.edge.trace import Trace
from gateway.errors import Rejection
from gateway.types import AtLeast, Bounded, CheckResult, Counted, Ending, Observation, PromptLength

ENGINE_REFUSED = "engine_refused"  # the outcome where the engine answered with a 4xx of its own


class Withheld(Struct, frozen=True):
    """An answer that was withheld and asked for again elsewhere: whose, and what was found.

    ``ttft`` and ``uncached`` are as in ``Exchange``.
    """

    backend: str
    checks: tuple[CheckResult, ...]
    ttft: float | None = None
    uncached: int | None = None


class Asked(Struct, frozen=True, gc=False):
    """What a request asks for, as far as records tell it.

    ``model`` is the client's own word, to be escaped and cut wherever it is written.
    ``operation`` is OpenTelemetry's word for what is asked; ``size`` is the body's bytes.
    """

    model: str
    operation: str
    size: int
    choices: int = 1
    max_output_tokens: int | None = None


class Stage(Struct, frozen=True, gc=False):
    """One wait of a request, from one time of the loop's clock to another."""

    name: str
    began: float
    ended: float


@dataclass(slots=True)
class Users:
    """How many requests, and tasks they leave behind, need the parts of a configuration."""

    count: int = 0

    def begin(self) -> None:
        """One more."""
        self.count += 1

    def end(self) -> None:
        """One that began no longer does."""
        self.count -= 1


class Exchange(Struct):
    """What is known of a request so far. Never holds prompt text, answers or keys.

    Times are seconds of the loop's clock.
    """

    request_id: str
    started: float
    path: str
    query: str = ""
    users: Users = field(default_factory=Users)  # of the configuration it runs under
    method: str = "POST"  # as the client wrote it
    dialect: str = "none"
    tenant: str = "none"
    backend: str = "none"
    engine: str = "unknown"  # what the backend is, by its name in the configuration
    upstream: str | None = None  # the backend's URL, once the request went there
    asked: Asked | None = None  # once the request was read
    stream: bool = False
    length: PromptLength | None = None
    doubt: str | None = None  # why that length, if it is ours, is not claimed to be exact
    limit: int | None = None
    queued: float | None = None  # seconds it waited for room; None at a backend without a queue
    stages: list[Stage] = field(default_factory=list)  # what it waited for before it was sent
    forwarded_at: float | None = None
    ttft: float | None = None
    ended: float | None = None  # when the client had its answer; later tasks may still judge it
    uncached: int | None = None  # of a counted prompt, the tokens the engine had to prefill
    status: int = 0
    refusal: Rejection | None = None
    observation: Observation | None = None
    checks: list[CheckResult] = field(default_factory=list)
    incidents: list[str] = field(default_factory=list)  # ids of those its answers opened
    bytes_out: int = 0
    client_gone: bool = False
    limited_by: str | None = None  # the quota that refused it, or would have but for its shadow
    headers: dict[str, str] = field(default_factory=dict)
    reading_on: asyncio.Task[None] | None = None  # the engine still answers, the client has gone
    settled_elsewhere: bool = False  # a task still counts; it writes the record
    withheld: Withheld | None = None  # of another backend, before this one was asked
    unreachable: str | None = None  # the backend that could not be reached, before this one
    trace: Trace | None = None  # None where nothing is traced
    secure: bool = False  # whether it came over TLS; known where it is traced

    @property
    def outcome(self) -> str:
        """A fixed word for metrics: why it was refused, or how the answer ended."""
        if self.refusal is not None:
            return self.refusal.kind.code
        if self.client_gone:
            return "client_gone"
        if self.observation is None:
            return "answered"
        if self.status >= 400:  # passed on from the engine, in whatever shape
            return str(Ending.UPSTREAM_ERROR) if self.status >= 500 else ENGINE_REFUSED
        return str(self.observation.ending)

    @property
    def prompt_tokens(self) -> int | None:
        """Our exact count, where there is one."""
        return self.length.total if isinstance(self.length, Counted) else None

    @property
    def most_tokens(self) -> int | None:
        """The prompt's tokens or their bound; uncounted, as many as anything let through has."""
        if isinstance(self.length, Counted | Bounded):
            return self.length.total
        return self.limit

    def again(self, admitted: Exchange, *, sent: bool) -> None:
        """Start over at the backend that admitted the request since.

        ``sent``: the one before answered, and that was withheld; else it could not be reached.
        """
        if sent:
            self.withheld = Withheld(self.backend, tuple(self.checks), self.ttft, self.uncached)
        else:
            self.unreachable = self.backend
        self.backend, self.doubt = admitted.backend, admitted.doubt
        self.engine = admitted.engine
        self.length, self.limit = admitted.length, admitted.limit
        self.checks, self.observation = [], None
        self.ttft = self.uncached = None
        self.status = self.bytes_out = 0

    def answer_headers(self) -> dict[str, str]:
        """What every answer carries: our id, the count or its bound, the limit, the quotas."""
        headers = {"server": "poolgate", "x-request-id": self.request_id, **self.headers}
        match self.length:
            case Counted():
                about = "~" if self.doubt else ""
                headers["x-poolgate-prompt-tokens"] = f"{about}{self.length.total}"
            case Bounded(_, total):
                headers["x-poolgate-prompt-tokens"] = f"<={total}"
            case AtLeast(longest):
                headers["x-poolgate-prompt-tokens"] = f">={longest}"
        if self.limit is not None:
            headers["x-poolgate-limit"] = str(self.limit)
        return headers
