"""The configuration as typed, frozen values. The field descriptions are its documentation.

Times are seconds, sizes bytes, lengths tokens. ``gateway.settings.reference`` renders the tables
in docs/configuration.md from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from gateway.settings import store
from gateway.settings.bounds import Body, Connections, Timeouts
from gateway.settings.fields import (
    Address,
    ApiKey,
    Bool,
    Duration,
    DurationOrZero,
    Factor,
    FilePath,
    Margin,
    ModelPattern,
    Name,
    Positive,
    SaltSecret,
    Share,
    Size,
    SizeOrZero,
    Store,
    Tokenizer,
    Url,
    Whole,
    Workers,
    no_duplicates,
    not_empty,
)
from gateway.settings.integrity import (
    BindingCheck,
    CachedTokensCheck,
    CompletenessCheck,
    Quarantine,
    SentinelCheck,
    Shared,
    Webhook,
)
from gateway.settings.media import Media
from gateway.settings.notices import notices
from gateway.settings.observing import Logging, Telemetry
from gateway.settings.probing import Gate, Probe
from gateway.settings.queue import Queue
from gateway.settings.routing import Routing
from gateway.settings.section import Section
from gateway.settings.store import MEMORY
from gateway.settings.tenants import Policy, Tenant
from gateway.settings.tls import EngineTls, Tls
from gateway.settings.units import HostPort

ENGINE_TOKENIZER = "engine"  # count by asking the engine


class BackendLimit(Section):
    """How the longest admissible prompt of one backend is found, and what if it is not."""

    max_prompt_tokens: Positive | None = Field(
        default=None,
        description="A ceiling of your own. The engine's limit still rules where it is smaller.",
    )
    margin: Whole = Field(default=0, description="Tokens kept free below the engine's limit.")
    refresh: Duration = Field(default=10.0, description="How often each worker is asked again.")
    stale_after: Duration = Field(
        default=120.0,
        description="Age after which a limit that could not be refreshed counts as unknown.",
    )
    when_unknown: Literal["refuse", "allow"] = Field(
        default="refuse",
        description="While no limit is known: answer 503, or forward without a check of length.",
    )
    when_uncountable: Literal["refuse", "allow"] = Field(
        default="refuse",
        description="For a prompt whose tokens cannot be counted: refuse it, or forward it.",
    )
    allow_truncating_engine: Bool = Field(
        default=False,
        description="Serve an engine that is set to cut over-long prompts in silence.",
    )

    @field_validator("stale_after")
    @classmethod
    def _not_stale_before_refresh(cls, stale_after: float, info: ValidationInfo) -> float:
        refresh = info.data.get("refresh")
        if refresh is not None and stale_after < refresh:
            raise ValueError("must not be shorter than refresh, or every limit is stale")
        return stale_after


class Calibration(Section):
    """Our counts compared with the engine's own, on fixed prompts."""

    every: DurationOrZero = Field(
        default=3600.0,
        description="How often, besides at start and whenever a worker is another process. "
        "`0s`: never.",
    )
    on_difference: Literal["engine", "margin", "refuse", "ignore"] = Field(
        default="engine",
        description="While counts differ: let the engine count, keep a margin free, answer 503, "
        "or only show it.",
    )
    margin: Margin = Field(
        default=0,
        description="Under `margin`, tokens kept free at least. `auto`: what the worst difference "
        "calls for.",
    )
    learn_offset: Bool = Field(
        default=False,
        description="Where every chat differs by the same number of tokens and no text does, add "
        "that number to our counts of chats.",
    )


class Backend(Section):
    """One engine, or one router with the engines behind it."""

    name: Name = Field(description="Its name in metrics, logs and the admin plane.")
    url: Url = Field(description="Where requests are sent. The request's path is appended.")
    engine: Literal[
        "auto",
        "sglang",
        "vllm",
        "llama_cpp",
        "tgi",
        "ollama",
        "tensorrt_llm",
        "lmdeploy",
        "openai",
    ] = Field(default="auto", description="Which engine it is; `auto` asks it.")
    workers: Annotated[tuple[Url, ...], AfterValidator(no_duplicates)] = Field(
        default=(),
        description="Engine URLs behind a router that does not tell them (prefill and decode).",
    )
    models: Annotated[tuple[ModelPattern, ...], AfterValidator(not_empty)] = Field(
        default=("*",),
        description="Models served here. `*` stands for any characters; case counts.",
    )
    tls: EngineTls | None = Field(
        default=None,
        description="For `https` URLs: whom to trust, and who we are. Without it, whom the system "
        "trusts.",
    )
    api_key: ApiKey | None = Field(
        default=None, description="Sent to the engine as a bearer token instead of the client's."
    )
    tokenizer: Tokenizer | None = Field(
        default=None,
        description="A name in tokenizers/, a path, `tiktoken:ENCODING`, or `engine` to ask the "
        "engine. Without one, the byte bound decides what it can, the engine the rest.",
    )
    limit: BackendLimit = Field(default=BackendLimit(), description="Its prompt limit.")
    calibration: Calibration = Field(
        default=Calibration(),
        description="Comparing a tokenizer of ours with the engine's. None with `engine`.",
    )
    media: Media | None = Field(
        default=None,
        description="What images, sounds, videos and files cost at most. Without it, prompts that "
        "hold any cannot be counted.",
    )
    queue: Queue | None = Field(
        default=None,
        description="How much it is sent at once. Without it, requests go to it as they come.",
    )
    probe: Probe | None = Field(
        default=None,
        description="Probes that the gateway sends it by itself: docs/probing.md. Without it, "
        "none.",
    )
    gate: Gate = Field(default=Gate(), description="The deploy gate's checks while it serves.")
    prefill_ceiling: Positive | None = Field(
        default=None,
        description="The most tokens a second it can prefill, as you know it: the latency check "
        "then judges from the first answer on, and never below this speed.",
    )
    on_disconnect: Literal["cancel", "drain"] = Field(
        default="cancel",
        description="When the client goes away: cancel the engine's request, or read its answer "
        "to the end (cancelling can corrupt others on some prefill/decode engines).",
    )
    cache_salt: Literal["per_tenant", "off"] = Field(
        default="per_tenant",
        description="Salt the prefix cache so that tenants never share cached pages.",
    )
    salt_secret: SaltSecret | None = Field(
        default=None,
        description="Key of the salts, 16 characters or more. Without one it is random at "
        "each start: after a restart, and on another gateway, every prefix is cached anew.",
    )

    @field_validator("tls")
    @classmethod
    def _for_https(cls, tls: EngineTls | None, info: ValidationInfo) -> EngineTls | None:
        url = info.data.get("url")
        if tls is not None and url is not None and not url.startswith("https:"):
            raise ValueError("is for an https url")
        return tls

    @property
    def counts_locally(self) -> bool:
        """Whether a tokenizer in this process counts."""
        return self.tokenizer not in {None, ENGINE_TOKENIZER}


class Limits(Section):
    """Where quotas are counted."""

    store: Store = Field(
        default=MEMORY,
        description="`redis://...` counts for all processes that name it: docs/limits.md.",
    )
    when_store_fails: Literal["refuse", "allow"] = Field(
        default="refuse", description="While the store does not answer: refuse or allow requests."
    )
    timeout: Duration = Field(default=0.1, description="How long to wait for the store.")
    lease: Duration = Field(
        default=30.0,
        description="How long a killed process keeps its places in `concurrent`; a running one "
        "renews them every third of it.",
    )


class PromptTokensCheck(Section):
    """The engine's ``usage.prompt_tokens`` against our own count."""

    sample: Share = Field(default=1.0, description="Share of the answers to check.")
    action: Literal["flag", "block"] = Field(
        default="flag",
        description="Where the engine counted under half of ours: record it, or withhold the "
        "answer.",
    )


class LatencyCheck(Section):
    """A long prompt answered in a short prompt's time."""

    action: Literal["off", "flag", "hold", "quarantine"] = Field(
        default="flag",
        description="On a finding: do not look, record it, withhold the answer, or hold it against "
        "the backend too.",
    )


class FingerprintsCheck(Section):
    """Answers compared with what other tenants recently sent."""

    pool_multiple: Factor = Field(default=4.0, description="Text kept, as a multiple of the pool.")
    action: Literal["flag", "block", "quarantine"] = Field(
        default="block", description="On a finding."
    )
    learning: DurationOrZero = Field(
        default=86400.0, description="How long findings are only recorded at first."
    )
    shared: Bool = Field(
        default=False,
        description="Whether all gateways with the same `integrity.secret` share them: "
        "docs/replicas.md has what that costs.",
    )
    public_text: Annotated[tuple[FilePath, ...], AfterValidator(no_duplicates)] = Field(
        default=(),
        description="Paths of UTF-8 files with text that is nobody's: licences, documentation, "
        "tools many tenants use. What they hold is no finding.",
    )


class Integrity(Section):
    """Checks on every answer. Those that are None were not written."""

    prompt_tokens: PromptTokensCheck = Field(
        default=PromptTokensCheck(), description="Count against the engine's usage."
    )
    latency: LatencyCheck = Field(default=LatencyCheck(), description="Latency too good.")
    binding: BindingCheck = Field(
        default=BindingCheck(), description="Answers that belong to another request."
    )
    completeness: CompletenessCheck = Field(
        default=CompletenessCheck(), description="Successes that are none."
    )
    cached_tokens: CachedTokensCheck = Field(
        default=CachedTokensCheck(), description="Cached tokens nobody could have cached."
    )
    sentinel: SentinelCheck | None = Field(
        default=None,
        description="A marker in each prompt that must surface in no other tenant's answer. "
        "Without it, none is placed or looked for: docs/sentinels.md.",
    )
    fingerprints: FingerprintsCheck | None = Field(
        default=None,
        description="Other tenants' text in answers. Where it is not written, nothing is kept.",
    )
    quarantine: Quarantine = Field(
        default=Quarantine(), description="What becomes of a backend that was found at fault."
    )
    shared: Shared = Field(
        default=Shared(),
        description="Standings and incidents, shared by all gateways with the same `secret`.",
    )
    webhook: Webhook | None = Field(
        default=None, description="Where incidents are sent, besides the log."
    )
    secret: SaltSecret | None = Field(
        default=None,
        description="Key of sentinels, fingerprints and what is shared, 16 characters or more; the "
        "same on every gateway in front of the same engines. Without one it is random at each "
        "start, and no other gateway knows these sentinels or hears of this one's findings.",
    )
    old_secrets: tuple[SaltSecret, ...] = Field(
        default=(),
        description="Earlier values of `secret`, whose sentinels still count. Keep one for "
        "`sentinel.lifetime` after it was replaced.",
    )


class Counting(Section):
    """Tokenising, which is work for the processor."""

    threads: Annotated[Positive, Field(le=256)] = Field(
        default=1,
        description="Threads for it. More than one pays from four cores on: they share "
        "the interpreter with the event loop.",
    )
    inline_bytes: Size = Field(
        default=2**14, description="Up to this size a prompt is counted without a thread."
    )
    cache_bytes: SizeOrZero = Field(
        default=2**26,
        description="Memory for counts of text seen before, which a growing conversation sends "
        "again and again. `0`: none.",
    )


class Settings(Section):
    """The whole configuration, with every default filled in and every secret resolved."""

    listen: Address = Field(
        default=HostPort("127.0.0.1", 8080), description="The data plane, for clients."
    )
    admin: Address = Field(
        default=HostPort("127.0.0.1", 9090), description="The admin plane: never for clients."
    )
    tls: Tls | None = Field(default=None, description="TLS for clients. Without it, plain HTTP.")
    admin_tls: Tls | None = Field(
        default=None, description="TLS for operators. Without it, plain HTTP."
    )
    workers: Workers = Field(
        default=1,
        description="Processes that serve, under one supervisor. More than one needs a redis "
        "store, in which they count tenants together.",
    )
    backends: Annotated[tuple[Backend, ...], AfterValidator(not_empty)] = Field(
        description="The engines."
    )
    tenants: Annotated[tuple[Tenant, ...], AfterValidator(not_empty)] = Field(
        default=(Tenant(id="default"),),
        description="The customers. Without this key, one open tenant `default`.",
    )
    policies: Mapping[Name, Policy] = Field(
        default={},
        description="What tenants may use, by name. `default`, where not written, sets no limit.",
    )
    limits: Limits = Field(default=Limits(), description="Where quotas are counted.")
    routing: Routing = Field(default=Routing(), description="Choosing among backends.")
    integrity: Integrity = Field(default=Integrity(), description="Checks on the answers.")
    body: Body = Field(default=Body(), description="Request bodies.")
    timeouts: Timeouts = Field(default=Timeouts(), description="How long each wait may last.")
    connections: Connections = Field(
        default=Connections(), description="How many connections clients may have."
    )
    drain: DurationOrZero = Field(default=30.0, description="What open answers get after SIGTERM.")
    counting: Counting = Field(default=Counting(), description="Counting of tokens.")
    logging: Logging = Field(default=Logging(), description="The log on standard error.")
    telemetry: Telemetry | None = Field(
        default=None,
        description="Where traces go. Without it, nothing is traced; needs `poolgate[otel]`: "
        "docs/observability.md.",
    )

    @property
    def shared_store(self) -> store.Store:
        """Where integrity state is exchanged; memory: nowhere."""
        return self.integrity.shared.store or self.limits.store

    @property
    def notices(self) -> tuple[str, ...]:
        """What is written but not active in this version, one line each."""
        return tuple(notices(self))

    def policy_of(self, tenant: Tenant) -> Policy:
        """The policy a tenant is under; ``default`` need not be written."""
        return self.policies.get(tenant.policy, Policy())
