"""Values that travel along the request path. Frozen, without behaviour beyond arithmetic.

Lengths are tokens unless a name says ``bytes``; times are seconds on the caller's monotonic
clock. Nothing here imports another module of the gateway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct, field

# --- what a client asked ----------------------------------------------------------------------


class Kept(Struct):
    """What one reader of a prompt worked out and will want once more: let go when it is taken."""

    reader: object = None
    value: Any = None

    def keep(self, reader: object, value: object) -> None:
        """In place of what was kept before."""
        self.reader, self.value = reader, value

    def take(self, reader: object) -> Any:
        """What this ``reader`` kept, or None; nothing is kept from now on."""
        value = self.value if self.reader is reader else None
        self.reader = self.value = None
        return value


class ChatPrompt(Struct, frozen=True):
    """A conversation still in the client's own dialect.

    ``body`` is the decoded request. Only a renderer (``gateway.rendering``) knows how the engine
    at hand turns it into template input; dialects do not interpret it further. ``kept`` is the
    counter's: a prompt that was rendered for its bound is not rendered again for its count.
    """

    dialect: str
    body: Mapping[str, Any]
    kept: Kept = field(default_factory=Kept)


class TextPrompt(Struct, frozen=True):
    """One or more plain texts, each a prompt of its own.

    ``add_special_tokens`` is what the request says; ``None`` leaves it to the engine's default.
    """

    texts: tuple[str, ...]
    add_special_tokens: bool | None = None


class TokenIdPrompt(Struct, frozen=True):
    """Prompts that are token ids already: their lengths are exact without a tokenizer."""

    lengths: tuple[int, ...]
    highest_id: int


class OpaquePrompt(Struct, frozen=True):
    """A prompt whose tokens the request does not show; ``reason`` is a fixed word for metrics."""

    reason: str


Prompt = ChatPrompt | TextPrompt | TokenIdPrompt | OpaquePrompt


class ParsedRequest(Struct, frozen=True):
    """What the gateway needs to know of a request, and its bytes.

    ``raw`` is the body as the client sent it, which point edits start from
    (``gateway.dialects.wire.apply_edits``); ``body`` is the same decoded. ``choices`` is how many
    answers one prompt costs: ``n``, or ``best_of`` where that is more.
    """

    dialect: str
    path: str
    raw: bytes
    body: Mapping[str, Any]
    model: str
    stream: bool
    prompt: Prompt
    max_output_tokens: int | None = None
    wants_usage: bool = False
    choices: int = 1
    generates: bool = True  # False for token counting and embeddings
    counts_only: bool = False  # the answer is the prompt's length, so no KV is at stake


# --- how long it is ---------------------------------------------------------------------------


class Counted(Struct, frozen=True, gc=False):
    """Exact token counts, one an item of the batch."""

    items: tuple[int, ...]

    @property
    def longest(self) -> int:
        """The item the limit is compared with."""
        return max(self.items, default=0)

    @property
    def total(self) -> int:
        """What the engine's usage should report for the whole request."""
        return sum(self.items)


class Bounded(Struct, frozen=True, gc=False):
    """Proved upper bounds, reached without tokenising: of the longest item and of the sum."""

    longest: int
    total: int


class AtLeast(Struct, frozen=True, gc=False):
    """Counting stopped because the limit was passed: the longest item has at least this many."""

    longest: int


class Unverifiable(Struct, frozen=True, gc=False):
    """No exact count can be had. Never a zero.

    ``reason`` is a fixed word (``image``, ``server_history``, ``no_tokenizer``...). ``transient``
    says that it is ours or the engine's trouble (503) and not a trait of the request (400).
    """

    reason: str
    transient: bool = False


PromptLength = Counted | Bounded | AtLeast | Unverifiable


# --- what an engine can hold ------------------------------------------------------------------


class Role(StrEnum):
    """What a worker does in a disaggregated deployment."""

    REGULAR = "regular"
    PREFILL = "prefill"
    DECODE = "decode"


class WorkerFacts(Struct, frozen=True):
    """One worker's (or one DP rank's) own word on what it holds and accepts.

    ``max_prompt_tokens`` is the longest prompt it really accepts; ``pool_tokens`` the KV pool;
    ``context_tokens`` what it advertises. ``truncates`` names a setting under which the engine
    would cut a prompt in silence. ``incarnation`` changes when the process is another one or was
    reconfigured.
    """

    worker: str
    engine: str
    role: Role = Role.REGULAR
    max_prompt_tokens: int | None = None
    pool_tokens: int | None = None
    context_tokens: int | None = None
    truncates: str | None = None
    models: tuple[str, ...] = ()
    version: str | None = None
    incarnation: str = ""
    disaggregated: bool = False
    kv_checksum: bool | None = None
    notes: tuple[str, ...] = ()


class Books(Struct, frozen=True, gc=False):
    """What one leg of a disaggregated engine has counted since its processes began.

    ``prompt_tokens`` of ``requests`` it finished: prefill counts what it computed or had cached,
    decode what it answered for. ``failed``: transfers it gave up; None where it does not say.
    """

    requests: int
    prompt_tokens: int
    failed: int | None = None


# --- what came back ---------------------------------------------------------------------------


class Usage(Struct, frozen=True, gc=False):
    """Token usage as the engine reported it; ``prompt_tokens`` includes cached ones."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


class Ending(StrEnum):
    """How an answer ended."""

    COMPLETE = "complete"
    TRUNCATED = "truncated"
    UPSTREAM_ERROR = "upstream_error"
    CLIENT_GONE = "client_gone"


class Observation(Struct, frozen=True, gc=False):
    """What an answer showed once it was over (or as far as it came).

    ``spoke``: it holds output of some kind (text, reasoning, a tool call).
    """

    usage: Usage | None = None
    ending: Ending = Ending.TRUNCATED
    finish_reasons: tuple[str, ...] = ()
    events: int = 0
    bytes_in: int = 0
    response_id: str | None = None
    scanned: bool = True
    spoke: bool = False


class Verdict(StrEnum):
    """The outcome of one check, also the metric label."""

    OK = "ok"
    MISMATCH = "mismatch"
    UNVERIFIABLE = "unverifiable"
    LEAK = "leak"


class CheckResult(Struct, frozen=True, gc=False):
    """One check's verdict with the numbers behind it.

    ``suspect`` is the hard rule: a finding that no tolerance or calibration explains away.
    """

    check: str
    verdict: Verdict
    reason: str = ""
    expected: int | float | None = None
    returned: int | float | None = None
    suspect: bool = False


class Evidence(StrEnum):
    """How much a finding proves of a leak (research/detection.md 4)."""

    CERTAIN = "certain"
    STRONG = "strong"
    WEAK = "weak"


class Action(StrEnum):
    """What a finding does: is recorded; withholds the answer too; moves the backend's standing."""

    FLAG = "flag"
    BLOCK = "block"
    QUARANTINE = "quarantine"


class Finding(Struct, frozen=True):
    """A check's result that asks for something to be done.

    ``forgeable``: tenants, alone or two together, could bring it about. ``source`` is the tenant
    whose text it is, where known; only a keyed hash of it is recorded. ``numbers`` are lengths,
    positions, key ids: never text.
    """

    result: CheckResult
    evidence: Evidence
    action: Action
    forgeable: bool = False
    source: str | None = None
    numbers: Mapping[str, int | float | str] = field(default_factory=dict)


# --- template input ---------------------------------------------------------------------------


class TemplateCall(Struct, frozen=True):
    """One chat as the engine would hand it to its chat template.

    ``kwargs`` are the template's own variables. ``tail`` follows the rendered text and is
    tokenised with it; ``suffix_text`` comes after both and is tokenised apart.
    ``flat_tools_retry``: where the template fails, the engine tries again with the tools'
    functions alone.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None
    documents: Sequence[Mapping[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    add_special_tokens: bool = False
    tail: str = ""
    suffix_text: str = ""
    flat_tools_retry: bool = False
