"""Settings as the request path takes them: values from one package's words into another's."""

from __future__ import annotations

import hmac
import ssl
from functools import lru_cache

from gateway.core import capacity, media, outlier, quarantine
from gateway.core.admission import Outcomes
from gateway.core.calibration import OnDifference, Policy
from gateway.core.connections import ConnectionRules
from gateway.core.probe import detection
from gateway.core.probe_schedule import Occasion, Release, Schedule
from gateway.core.sentinel import Sentinels
from gateway.edge.backends import Wiring
from gateway.edge.clock import wall_clock
from gateway.edge.counting import Threads
from gateway.edge.inspection import CheckPolicy
from gateway.edge.metrics import Metrics
from gateway.edge.routing import Policy as RoutingPolicy
from gateway.edge.sentinels import SentinelDesk, SentinelPolicy
from gateway.settings import models as written
from gateway.settings.integrity import Quarantine
from gateway.settings.media import Media
from gateway.settings.probing import Probe
from gateway.settings.routing import Ejection, Routing
from gateway.types import Action


def wiring(
    entry: written.Backend,
    api_key: str | None,
    process_secret: bytes,
    *,
    alone: bool,
    tls: ssl.SSLContext | None = None,
) -> Wiring:
    """A backend as the request path needs it. ``alone``: no other process has the secret."""
    limit = entry.limit
    written_secret = entry.salt_secret.get_secret_value() if entry.salt_secret else None
    secret = written_secret.encode() if written_secret else process_secret

    @lru_cache(maxsize=10_000)
    def salt(tenant: str) -> str:
        return hmac.new(secret, tenant.encode(), "sha256").hexdigest()

    return Wiring(
        name=entry.name,
        url=entry.url,
        models=entry.models,
        api_key=api_key,
        rules=capacity.Rules(
            limit.max_prompt_tokens, limit.margin, limit.stale_after, limit.allow_truncating_engine
        ),
        outcomes=Outcomes(limit.when_unknown == "allow", limit.when_uncountable == "allow"),
        drain_on_disconnect=entry.on_disconnect == "drain",
        salt=salt if entry.cache_salt == "per_tenant" else None,
        salt_is_ours=alone and written_secret is None,
        prefill_ceiling=entry.prefill_ceiling,
        counted_with=(entry.tokenizer, repr(entry.media)),
        probes=probe_schedule(entry.probe) if entry.probe else None,
        tls=tls,
    )


def calibration_policy(calibration: written.Calibration) -> Policy:
    """When counts are compared, and what a difference means."""
    return Policy(
        calibration.every,
        OnDifference(calibration.on_difference),
        calibration.margin,
        calibration.learn_offset,
    )


def probe_schedule(entry: Probe) -> Schedule:
    """When a backend is probed, and when that ends its quarantine."""
    release = entry.release
    return Schedule(
        when=tuple(Occasion(word) for word in entry.when),
        every=entry.every,
        retry=entry.retry,
        at_load=entry.at_load,
        quick=entry.plan == "quick",
        canary=entry.canary,
        release=Release(release.after, release.bound, detection(release.detection))
        if release
        else None,
    )


def media_rules(entry: Media) -> media.Rules:
    """What parts of a prompt that are no text cost at most."""
    parts = {"audio": entry.audio, "video": entry.video, "file": entry.file}
    rules: dict[media.Kind, media.ImageRule] = {
        media.Kind(kind): media.Fixed(part.max_tokens) for kind, part in parts.items() if part
    }
    if entry.image is not None:
        rules[media.Kind.IMAGE] = media.FAMILIES[entry.image.rule](**entry.image.numbers)
    return media.Rules(rules, entry.max_parts, entry.remote == "bound")


def model_to_ask(entry: written.Backend) -> str:
    """A model's name for engines whose workers tell none: the first that is no pattern."""
    return next((name for name in entry.models if "*" not in name), "default")


def check_policy(integrity: written.Integrity) -> CheckPolicy:
    """What is checked of answers, and what a finding does."""
    return CheckPolicy(
        prompt_tokens=Action(integrity.prompt_tokens.action),
        latency=_action(integrity.latency.action),
        binding=_action(integrity.binding.action),
        completeness=Action(integrity.completeness.action),
        cached_tokens=Action(integrity.cached_tokens.action),
        sample=integrity.prompt_tokens.sample,
    )


def integrity_secret(integrity: written.Integrity, process_secret: bytes) -> bytes:
    """What keys what gateways must agree on. ``process_secret`` where no secret is written."""
    secret = integrity.secret
    return secret.get_secret_value().encode() if secret is not None else process_secret


def sentinel_desk(
    settings: written.Settings,
    process_secret: bytes,
    threads: Threads,
    metrics: Metrics,
) -> SentinelDesk | None:
    """Sentinels as configured. ``process_secret`` keys them where no secret is written."""
    integrity, check = settings.integrity, settings.integrity.sentinel
    action = _action(check.action) if check is not None else None
    if check is None or action is None:
        return None
    newest = [integrity.secret] if integrity.secret is not None else []
    secrets = [each.get_secret_value().encode() for each in (*newest, *integrity.old_secrets)]
    return SentinelDesk(
        Sentinels(
            secrets if newest else [process_secret, *secrets],
            check.epoch,
            check.lifetime,
            [tenant.id for tenant in settings.tenants],
        ),
        SentinelPolicy(action, check.place != "off", check.scan, check.constrained),
        threads,
        metrics,
        wall_clock,
    )


def _action(word: str) -> Action | None:
    """Of the latency check ``hold`` is what the others call ``block``."""
    return None if word == "off" else Action.BLOCK if word == "hold" else Action(word)


def connection_rules(settings: written.Settings) -> ConnectionRules:
    """How many connections there may be, and how long one may keep us waiting."""
    caps, waits = settings.connections, settings.timeouts
    return ConnectionRules(
        caps.total, caps.per_address, waits.headers, waits.write_idle, waits.keep_alive
    )


def quarantine_rules(entry: Quarantine) -> quarantine.Rules:
    """When a backend is suspect, and how many may be taken out."""
    return quarantine.Rules(entry.suspect_floor, entry.window, entry.max_share)


def ejection_rules(entry: Ejection) -> outlier.Rules:
    """When a backend that fails is left out, and for how long."""
    return outlier.Rules(
        entry.consecutive_failures, entry.base_time, entry.max_time, entry.max_share
    )


def routing_policy(entry: Routing, process_secret: bytes) -> RoutingPolicy:
    """The choice among backends. ``process_secret`` keys affinity where no secret is written."""
    written_secret = entry.secret.get_secret_value().encode() if entry.secret else process_secret
    return RoutingPolicy(
        entry.stream_tokens,
        entry.load_factor,
        written_secret if entry.policy == "affinity" else None,
        entry.session,
        entry.session_header,
    )
