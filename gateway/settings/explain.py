"""The effective policy, as a person would say it. Never a secret, nor a key's hash."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from gateway.settings.bounds import Connections
from gateway.settings.integrity import SentinelCheck
from gateway.settings.media import Media
from gateway.settings.models import Backend, Calibration, Limits, Settings
from gateway.settings.observing import Telemetry
from gateway.settings.probing import Probe
from gateway.settings.queue import Queue
from gateway.settings.routing import Routing
from gateway.settings.tenants import Policy, Quotas, Rate, Tenant, TenantKey
from gateway.settings.units import duration_text, size_text

_UNKNOWN: Final = {
    "refuse": "refused with 503",
    "allow": "FORWARDED without a check of length",
}
_UNCOUNTABLE: Final = {"refuse": "refused", "allow": "FORWARDED without a count"}
_DISCONNECT: Final = {
    "cancel": "the engine's request is cancelled",
    "drain": "the engine's answer is read to its end",
}
_MISMATCH: Final = {"flag": "the answer is recorded", "block": "the answer is withheld"}
_DIFFERENCE: Final = {
    "engine": "the engine counts",
    "margin": "a margin is kept free",
    "refuse": "prompts are refused with 503",
    "ignore": "it is ONLY SHOWN",
}
_TOO_FAST: Final = {
    "off": "not checked",
    "flag": "recorded",
    "hold": "held until it is checked",
    "quarantine": "held until it is checked, and held against the backend",
}
_FOUND: Final = {
    "off": "NOT CHECKED",
    "flag": "recorded",
    "block": "withheld",
    "quarantine": "withheld, and held against the backend",
}
_TOGETHER: Final = {
    "prompt": "prompts that begin alike",
    "user": "requests of one user",
    "header": "requests with one {header}",
}
_STORE_FAILS: Final = {"refuse": "refused with 503", "allow": "ADMITTED without quotas"}
_OCCASIONS: Final = {
    "start": "when it is first seen",
    "change": "when its processes or pools are others",
    "serving": "while it serves",
    "quarantine": "while it is suspect or quarantined",
}
_ENGINE_ALONE: Final = "the engine's limit alone"


def explain(settings: Settings) -> str:
    """Several lines of text, ending in a newline."""
    lines = [
        f"Clients are served on {settings.listen}; the admin plane is on {settings.admin}.",
        *_indented("Written, but without effect:", settings.notices),
    ]
    for backend in settings.backends:
        lines += _indented(f"Backend {backend.name} ({backend.url}):", _backend(backend))
    for tenant in settings.tenants:
        lines += _indented(f"Tenant {tenant.id}:", _tenant(tenant, settings.policy_of(tenant)))
    if len(settings.backends) > 1:
        lines += _indented("Among a model's backends:", _routing(settings.routing))
    lines += _indented("Every answer:", _checks(settings))
    lines += _indented("Bounds:", _bounds(settings))
    lines += _indented("What is told:", _told(settings))
    return "\n".join(lines) + "\n"


def _indented(title: str, lines: Iterator[str] | tuple[str, ...]) -> list[str]:
    body = [f"  - {line}" for line in lines]
    return ["", title, *body] if body else []


def _backend(backend: Backend) -> Iterator[str]:
    limit = backend.limit
    yield "engine: " + ("asked at start" if backend.engine == "auto" else backend.engine)
    if backend.workers:
        yield f"workers behind it: {', '.join(backend.workers)}"
    yield f"models: {', '.join(backend.models)}"
    yield f"tokens counted with: {backend.tokenizer or 'the byte bound, then the engine itself'}"
    if backend.counts_locally:
        yield f"these counts {_calibration(backend.calibration)}"
    yield f"longest prompt: {_longest_prompt(backend)}"
    yield (
        f"the limit is asked again every {duration_text(limit.refresh)}; "
        f"unknown after {duration_text(limit.stale_after)} without an answer"
    )
    yield f"while the limit is unknown, prompts are {_UNKNOWN[limit.when_unknown]}"
    yield f"prompts that cannot be counted are {_UNCOUNTABLE[limit.when_uncountable]}"
    if backend.media:
        yield f"parts that are no text are bounded: {', '.join(_media(backend.media))}"
    if backend.queue:
        yield from _queue(backend.queue)
    if backend.probe:
        yield from _probe(backend.probe)
    if limit.allow_truncating_engine:
        yield "an engine that cuts over-long prompts in silence is served ALL THE SAME"
    yield f"when a client goes away, {_DISCONNECT[backend.on_disconnect]}"
    yield f"prefix cache: {_cache(backend)}"
    yield "the engine's key: " + ("set" if backend.api_key else "none is sent")


def _longest_prompt(backend: Backend) -> str:
    limit = backend.limit
    text = "what the engine can hold"
    if limit.margin:
        text += f", less {limit.margin} tokens"
    if limit.max_prompt_tokens:
        text += f", and never more than {limit.max_prompt_tokens} tokens"
    return text


def _media(media: Media) -> Iterator[str]:
    if media.image:
        numbers = ", ".join(f"{name} {value}" for name, value in media.image.numbers.items())
        yield f"images by {media.image.rule} ({numbers})"
    for name, part in {"audio": media.audio, "video": media.video, "files": media.file}.items():
        if part:
            yield f"{name} at {part.max_tokens} tokens each"
    yield "the engine FETCHES remote ones" if media.remote == "bound" else "remote ones are not"
    if media.max_parts:
        yield f"{media.max_parts} in one prompt at most"


def _queue(queue: Queue) -> Iterator[str]:
    amounts = {"requests": queue.concurrent, "prompt tokens": queue.prompt_tokens}
    held = " and ".join(f"{amount} {what}" for what, amount in amounts.items() if amount)
    yield f"it is sent {held} at once at most; tenants wait in fair turns"
    if not queue.max_waiting:
        yield "what is more is refused with 429"
        return
    own = queue.max_waiting_per_tenant
    yield (
        f"{queue.max_waiting} requests may wait, "
        + (f"{own} of one tenant, " if own else "")
        + f"{duration_text(queue.max_wait)} each, else 429"
    )


def _routing(routing: Routing) -> Iterator[str]:
    if routing.policy == "affinity":
        belongs = _TOGETHER[routing.session].format(header=routing.session_header)
        key = "shared" if routing.secret else "of this process alone"
        yield f"{belongs} go to one while it has under {routing.load_factor:g} times the mean work"
        yield f"the key of that choice is {key}"
    else:
        yield "the one with the least outstanding prompt tokens is chosen"
    ejection = routing.ejection
    if not ejection.consecutive_failures:
        yield "one that fails is NEVER left out"
        return
    yield (
        f"one that fails {ejection.consecutive_failures} times in a row is left out for "
        f"{duration_text(ejection.base_time)} and longer each time, "
        f"{duration_text(ejection.max_time)} at most"
    )


def _probe(probe: Probe) -> Iterator[str]:
    if probe.canary:
        yield "a canary: it gets NO REQUESTS until a probe of its processes was clean"
    occasions = [_OCCASIONS[occasion] for occasion in probe.when]
    if occasions:
        yield (
            f"probed {', '.join(occasions)}, with at most {probe.at_load} requests on it; every "
            f"{duration_text(probe.every)}, or {duration_text(probe.retry)} while it does not serve"
        )
    if (release := probe.release) is not None:
        yield (
            f"a quarantine ends by {release.after} clean probes in a row, once they exclude a leak "
            f"rate over {release.bound:.2%} (share of leaks seen: {release.detection})"
        )
    elif occasions:
        yield "probes never end a quarantine"


def _calibration(calibration: Calibration) -> str:
    if not calibration.every:
        return "are NEVER compared with the engine's"
    text = (
        f"are compared with the engine's every {duration_text(calibration.every)}; "
        f"where they differ, {_DIFFERENCE[calibration.on_difference]}"
    )
    return text + (", and a constant offset of chats is learnt" * calibration.learn_offset)


def _cache(backend: Backend) -> str:
    if backend.cache_salt == "off":
        return "SHARED between tenants"
    kept = "kept over restarts" if backend.salt_secret else "new at each start"
    return f"apart for each tenant (salts {kept})"


def _tenant(tenant: Tenant, policy: Policy) -> Iterator[str]:
    yield _keys(tenant.key_sha256) or "OPEN: any or no key is accepted"
    yield f"models: {', '.join(policy.models)}"
    longest = policy.max_prompt_tokens
    yield f"longest prompt: {f'{longest} tokens' if longest else _ENGINE_ALONE}"
    if policy.weight != 1:
        yield f"its weight in queues: {policy.weight:g}"
    quotas: dict[str, Quotas] = {f"policy {tenant.policy}": policy}
    quotas |= {f"besides, models {pattern}": each for pattern, each in policy.per_model.items()}
    for whose, each in quotas.items():
        amounts = ", ".join(_quotas(each))
        if amounts or each is policy:
            yield f"{whose}: {amounts or 'no quotas'}" + " (SHADOW: never refused)" * (
                policy.shadow and bool(amounts)
            )
    if any("token" in text for each in quotas.values() for text in _quotas(each)):
        yield (
            f"reserved for output without a stated maximum: {policy.reserve_output_tokens} "
            "tokens an answer"
        )
        if policy.cached_token_weight != 1:
            yield f"a cached prompt token counts {policy.cached_token_weight:g}"


def _keys(keys: tuple[TenantKey, ...]) -> str:
    count = f"{len(keys)} key{'s' * (len(keys) != 1)}" if keys else ""
    return ", ".join(filter(None, [count, *filter(None, map(_validity, keys))]))


def _validity(key: TenantKey) -> str:
    """From when to when a key is good, where that has an end."""
    ends = {"from": key.not_before, "until": key.not_after}
    told = " ".join(f"{word} {end.isoformat()}" for word, end in ends.items() if end)
    return told and f"one {told}"


def _quotas(quotas: Quotas) -> Iterator[str]:
    rates: Mapping[Rate, str] = {
        "requests_per_minute": "requests a minute",
        "tokens_per_minute": "tokens a minute",
        "input_tokens_per_minute": "input tokens a minute",
        "output_tokens_per_minute": "output tokens a minute",
        "tokens_per_day": "tokens a day",
        "tokens_per_month": "tokens in 30 days",
    }
    for rate, what in rates.items():
        amount = getattr(quotas, rate)
        if amount is not None:
            burst = quotas.bursts.get(rate)
            yield f"{amount} {what}" + (f" ({burst} at once)" if burst else "")
    if quotas.concurrent is not None:
        yield f"{quotas.concurrent} at the same time"


def _checks(settings: Settings) -> Iterator[str]:
    usage, latency = settings.integrity.prompt_tokens, settings.integrity.latency
    yield (
        f"prompt tokens compared with our count in {usage.sample * 100:.4g} % of the answers; "
        f"on a mismatch {_MISMATCH[usage.action]}"
    )
    yield f"a long prompt answered too fast: {_TOO_FAST[latency.action]}"
    integrity = settings.integrity
    yield f"an answer of another request: {_FOUND[integrity.binding.action]}"
    yield f"a success that is empty or cannot be: {_FOUND[integrity.completeness.action]}"
    yield f"cached tokens of text never sent: {_FOUND[integrity.cached_tokens.action]}"
    if integrity.sentinel is not None and integrity.sentinel.action != "off":
        yield from _sentinels(integrity.sentinel, kept=integrity.secret is not None)
    quarantine = integrity.quarantine
    yield (
        f"a backend under suspicion gets prompts up to {quarantine.suspect_floor} tokens; at most "
        f"{quarantine.max_share * 100:.4g} % of a model's backends are taken out"
    )
    if settings.shared_store.shared:
        among = "all gateways with this secret" if integrity.secret else "this gateway's workers"
        yield (
            f"standings and incidents are shared by {among} through {settings.shared_store}, "
            f"every {duration_text(integrity.shared.every)}"
        )
    if integrity.webhook is not None:
        yield f"incidents are sent to {integrity.webhook.url}"


def _sentinels(check: SentinelCheck, *, kept: bool) -> Iterator[str]:
    yield (
        f"another tenant's marker, looked for in {check.scan * 100:.4g} % of the answers: "
        f"{_FOUND[check.action]}"
    )
    if check.place == "off":
        yield "markers are NOT placed"
        return
    where = "the system message" + (", answers bound to a schema included" * check.constrained)
    secret = "keyed by your secret" if kept else "keyed by a secret that is new at each start"
    yield (
        f"each tenant's marker ends {where}; a new one every {duration_text(check.epoch)}, {secret}"
    )


def _caps(caps: Connections) -> str:
    text = f"{caps.total} at most" if caps.total else "ANY number"
    return text + (f", {caps.per_address} from one address" if caps.per_address else "")


def _store(limits: Limits) -> str:
    if not limits.store.shared:
        return "quotas are counted in memory: they start full after a restart"
    return (
        f"quotas are counted in {limits.store}; without a word from it within "
        f"{duration_text(limits.timeout)} requests are {_STORE_FAILS[limits.when_store_fails]}"
    )


def _more_for_long(seconds: float) -> str:
    return f" and {duration_text(seconds)} more for each 1,000 prompt tokens" if seconds else ""


def _bounds(settings: Settings) -> Iterator[str]:
    waits = settings.timeouts
    yield f"request bodies up to {size_text(settings.body.max_bytes)}, else 413"
    yield (
        f"waits: connect {duration_text(waits.connect)}, "
        f"first byte {duration_text(waits.first_byte)}"
        + _more_for_long(waits.first_byte_per_1k_tokens)
        + f", idle {duration_text(waits.idle)}, "
        f"client's body {duration_text(waits.body)}"
    )
    yield (
        f"clients' connections: {_caps(settings.connections)}; headers within "
        f"{duration_text(waits.headers)}, idle up to {duration_text(waits.keep_alive)}, cut off "
        f"where an answer is not taken for {duration_text(waits.write_idle)}"
    )
    yield f"after SIGTERM open answers have {duration_text(settings.drain)}"
    yield (
        f"{settings.counting.threads} counting threads, for prompts over "
        f"{size_text(settings.counting.inline_bytes)}"
    )
    if settings.workers > 1:
        yield (
            f"{settings.workers} worker processes; tokenizers, counts remembered, counting "
            "threads and queues are each one's own"
        )
    yield _store(settings.limits)


def _told(settings: Settings) -> Iterator[str]:
    yield f"the log: {settings.logging.format}, {settings.logging.level} and what is graver"
    if settings.telemetry is not None:
        yield from _traces(settings.telemetry)


def _traces(telemetry: Telemetry) -> Iterator[str]:
    yield f"{telemetry.sample * 100:.4g} % of the exchanges are traced, to {telemetry.otlp}"
    if telemetry.trust_traceparent:
        yield "clients that send a traceparent DECIDE whether they are traced"
