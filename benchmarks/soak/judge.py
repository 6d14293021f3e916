"""What a run proves: each claim with what was found. Pure, so that it can be shown to fail."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median

from benchmarks.soak.answers import NONCE
from benchmarks.soak.callers import Ending, Seen, key_of
from benchmarks.soak.chaos import Ran
from benchmarks.soak.faults import Window
from benchmarks.soak.plan import CLIENTS_MARK, LIMIT_TOKENS, NARROW, TENANTS, Kind, Moment, Trouble
from benchmarks.soak.watch import IMMORTAL, SUPERVISOR, Quiet, Sample

GROWTH = 1.10  # of resident memory, median of the last third to the first
SPARE_FILES, SPARE_TASKS = 4, 4  # a probe of the engines may be under way whenever one looks
STORE_CONNECTIONS = 32 + 2  # a process opens at most: quotas, and what is shared of integrity
NAMED = ("backend", "tenant", "dialect", "worker", "role")  # labels whose values are names
PROBES = 32  # connections that discovery may keep
LOST_LOG = 1.0  # seconds of access records that a killed worker may take with it
DETAILS = 8  # examples of a finding that are told
CUT, UNANSWERED = str(Ending.CUT), str(Ending.UNANSWERED)

# What becomes of a call, whatever else happens. Any call may also be left by its caller.
_BROKEN_STREAM = frozenset({CUT, "502 upstream_error", "502 response_withheld"})
EXPECTED: Mapping[Kind, frozenset[str]] = {
    Kind.HEALTHY: frozenset({"complete"}),
    Kind.SLOW: frozenset({"complete"}),
    Kind.WRONG_USAGE: frozenset({"complete"}),
    Kind.BAD_KEY: frozenset({"401 invalid_api_key"}),
    Kind.NO_KEY: frozenset({"401 invalid_api_key"}),
    Kind.OVER_LIMIT: frozenset({"400 context_length_exceeded"}),
    Kind.NOT_JSON: frozenset({"400 invalid_request"}),
    Kind.NOT_A_CHAT: frozenset({"400 invalid_request"}),
    Kind.NOT_HTTP: frozenset({"400 malformed_http"}),
    Kind.SMUGGLED_FIELD: frozenset({"400 invalid_request"}),
    Kind.TOO_LARGE: frozenset({"413 request_too_large"}),
    Kind.UNKNOWN_PATH: frozenset({"404 not_found"}),
    Kind.UNKNOWN_MODEL: frozenset({"404 model_not_found"}),
    Kind.FORBIDDEN_MODEL: frozenset({"403 model_not_allowed"}),
    Kind.LATE: frozenset({"504 upstream_timeout"}),
    Kind.CUT: _BROKEN_STREAM,
    Kind.RESET: _BROKEN_STREAM,
    Kind.HANG: frozenset({CUT, "504 upstream_timeout"}),
    Kind.ERROR_500: frozenset({"500 engine_is_broken"}),
    Kind.ERROR_EVENT: frozenset({CUT, "200 500"}),
    Kind.EMPTY: _BROKEN_STREAM,
    Kind.UNFINISHED: _BROKEN_STREAM,
    Kind.UNREADABLE: _BROKEN_STREAM,
    Kind.IMPOSSIBLE_USAGE: frozenset({CUT, "502 response_withheld"}),
    Kind.SWAPPED: frozenset({CUT, "502 response_withheld"}),
}
# Never the engine's to see.
KEPT_BACK = frozenset(
    {
        Kind.BAD_KEY, Kind.NO_KEY, Kind.OVER_LIMIT, Kind.NOT_JSON, Kind.NOT_A_CHAT, Kind.NOT_HTTP,
        Kind.SMUGGLED_FIELD, Kind.TOO_LARGE, Kind.UNKNOWN_PATH, Kind.UNKNOWN_MODEL,
        Kind.FORBIDDEN_MODEL,
    }
)  # fmt: skip
# Answers in the engine's words.
NOT_OURS = frozenset({Kind.ERROR_500, Kind.ERROR_EVENT})
# What a trouble may do to calls under way, and for how long after it (seconds).
_BY_TROUBLE: Mapping[Trouble, tuple[frozenset[str], float]] = {
    Trouble.STORE_FROZEN: (frozenset({"503 limiter_store_unavailable"}), 4.0),
    Trouble.STORE_RESTARTED: (frozenset({"503 limiter_store_unavailable"}), 4.0),
    Trouble.ENGINE_RESTARTED: (
        frozenset({"503 upstream_unavailable", "502 upstream_error", "502 response_withheld", CUT}),
        2.0,
    ),
    Trouble.WORKER_KILLED: (frozenset({CUT, UNANSWERED}), 0.5),
}


@dataclass(frozen=True, slots=True)
class Claim:
    """One thing the run was to show. ``found`` is the figure, ``examples`` what speaks against."""

    claim: str
    held: bool
    found: str
    examples: Sequence[str] = ()


def judge(ran: Ran, documented: frozenset[str], *, long: bool) -> list[Claim]:
    """All claims. ``documented``: "STATUS code" of each refusal.

    ``long``: the run is long enough for all faults, and for memory to be warm.
    """
    return [
        _none("no text of anybody else's", [s for s in ran.seen if s.foreign]),
        _none(
            "no answer that looks complete and is not",
            [s for s in ran.seen if s.ending is Ending.HOLLOW],
        ),
        _none("every refusal is a documented one", undocumented(ran.seen, documented)),
        _none("every outcome is explained by the call or a trouble", unexplained(ran)),
        _kept_back(ran),
        _gives_back(ran.quiets),
        *_constant(ran.quiets, ran.callers),
        _labels(ran.quiets),
        _log(ran),
        _private(ran),
        _stderr(ran),
        Claim("it drains and exits with 0 at the end", ran.exit_status == 0, f"{ran.exit_status}"),
        *(_of_long_runs(ran) if long else ()),
    ]


def _of_long_runs(ran: Ran) -> Iterator[Claim]:
    for process in (IMMORTAL, SUPERVISOR):
        yield _memory(ran, process)
    yield _coverage(ran)


def documented_outcomes(page: str) -> frozenset[str]:
    """The refusals of docs/metrics.md: ``| `code` | status | ...`` as "STATUS code"."""
    rows = re.findall(r"^\| `(\w+)` \| (\d{3}) \|", page, re.MULTILINE)
    return frozenset(f"{status} {code}" for code, status in rows)


def undocumented(seen: Iterable[Seen], documented: frozenset[str]) -> list[Seen]:
    """Refusals of the gateway's own that its page does not name; ``internal_error`` is a bug."""
    allowed = documented - {"500 internal_error"}
    return [
        one
        for one in seen
        if one.ending is Ending.REFUSED
        and one.call.kind not in NOT_OURS
        and one.outcome not in allowed
    ]


def unexplained(ran: Ran) -> list[Seen]:
    """Calls that ended as neither their kind nor a trouble at the time can make them end."""
    return [one for one in ran.seen if not _explained(one, ran.windows)]


def _explained(one: Seen, windows: Iterable[Window]) -> bool:
    kind, outcome = one.call.kind, one.outcome
    if outcome in EXPECTED[kind]:
        return True
    if one.ending is Ending.LEFT:
        return one.call.leave is not None
    if outcome == "429 rate_limit_exceeded":
        return one.call.tenant == NARROW and kind not in KEPT_BACK
    return any(
        _touches(one, window, outcome)
        for window in windows
        if kind not in KEPT_BACK or window.trouble is Trouble.WORKER_KILLED
    )


def _touches(one: Seen, window: Window, outcome: str) -> bool:
    outcomes, after = _BY_TROUBLE.get(window.trouble, (frozenset(), 0.0))
    if outcome not in outcomes:
        return False
    killed = window.trouble is Trouble.WORKER_KILLED
    if killed and one.told:
        return False  # the dead tell nothing
    # A worker is dead at once; another takes its place long after.
    ended = window.began if killed else window.ended
    return one.began <= ended + after and one.ended >= window.began


def _kept_back(ran: Ran) -> Claim:
    """Of what must not reach the engine nothing did, by the engine's own word."""
    came = [f"{kind} {nonce}" for nonce, kind in ran.reached.items() if kind in KEPT_BACK]
    held = not came and not ran.strangers and ran.most_tokens <= LIMIT_TOKENS
    meant = sum(one.call.kind in KEPT_BACK for one in ran.seen)
    over = sum(one.call.kind is Kind.OVER_LIMIT for one in ran.seen)
    return Claim(
        "nothing refused reaches the engine",
        held,
        f"0 of {meant:,} ({over:,} over the limit); the longest prompt that did: "
        f"{ran.most_tokens:,} tokens of {LIMIT_TOKENS:,}"
        if held
        else f"{len(came)} came, {ran.strangers} strangers, the longest {ran.most_tokens}",
        came[:DETAILS],
    )


def _gives_back(quiets: Sequence[Quiet]) -> Claim:
    bad = [
        f"round {quiet.round}: {quiet.in_flight} in flight, {quiet.places} places"
        for quiet in quiets
        if quiet.in_flight or quiet.places
    ]
    slowest = max(quiet.waited for quiet in quiets)
    return Claim(
        "all places are back and nothing is in flight after each round",
        not bad,
        f"{len(quiets)} quiet phases, the last place back after {slowest:.1f} s",
        bad,
    )


def _memory(ran: Ran, process: str) -> Claim:
    warm = [one for one in ran.samples if one.process == process and one.at >= ran.warm_at]
    told = f"memory of {process} is flat"
    if len({one.pid for one in warm}) != 1:
        return Claim(told, False, "it was another process meanwhile")
    first, last = thirds(warm)
    grown = last / first
    return Claim(
        told,
        grown <= GROWTH,
        f"{first / 2**20:.0f} MiB to {last / 2**20:.0f} MiB ({grown - 1:+.1%}),"
        f" {len(warm)} samples",
    )


def thirds(samples: Sequence[Sample]) -> tuple[float, float]:
    """Median of the first and of the last third, in bytes."""
    third = max(1, len(samples) // 3)
    return median(s.rss for s in samples[:third]), median(s.rss for s in samples[-third:])


def _constant(quiets: Sequence[Quiet], callers: int) -> Iterator[Claim]:
    """What is held in quiet phases, from the end of the first round on."""
    for what, spare, held in (
        ("open files but for kept connections", SPARE_FILES, [quiet.files for quiet in quiets]),
        ("asyncio tasks", SPARE_TASKS, [quiet.tasks for quiet in quiets]),
    ):
        series = {name: [one[name] for one in held if name in one] for name in held[0]}
        grown = {name: values for name, values in series.items() if max(values) > values[0] + spare}
        told = "; ".join(f"{name} {' '.join(map(str, v))}" for name, v in series.items())
        yield Claim(f"{what} are constant in quiet phases", not grown, told)
    for whom, most, held in (
        ("store", STORE_CONNECTIONS, [quiet.to_store for quiet in quiets]),
        ("engine", callers + PROBES, [quiet.to_engine for quiet in quiets]),
    ):
        kept = [number for one in held for number in one.values()]
        yield Claim(
            f"kept connections to the {whom} are bounded",
            max(kept) <= most,
            f"{max(kept)} a process at most, of {most}",
        )


def _labels(quiets: Sequence[Quiet]) -> Claim:
    """No name that was not there after the first round; words of our own may come later."""
    first, last = quiets[0], quiets[-1]
    clients = [
        f"{name}={value}"
        for quiet in quiets
        for name, values in quiet.labels.items()
        for value in values
        if CLIENTS_MARK in value or NONCE.search(value)
    ]
    new = [
        f"{name}={value}"
        for name, values in last.labels.items()
        if name in NAMED
        for value in values - first.labels.get(name, frozenset())
    ]
    values = sum(len(found) for found in last.labels.values())
    return Claim(
        "label sets are flat, whatever clients send",
        not clients and not new,
        f"{values} label values; series {' '.join(str(quiet.series) for quiet in quiets)}",
        [*clients, *new][:DETAILS],
    )


def _log(ran: Ran) -> Claim:
    """One record a request, of one form."""
    lines = [json.loads(line) for line in ran.logged.splitlines()]
    ids = Counter(line["request_id"] for line in lines)
    twice = [name for name, count in ids.items() if count > 1]
    kills = [w.began for w in ran.windows if w.trouble is Trouble.WORKER_KILLED]
    missing = [
        one.request_id
        for one in ran.seen
        if one.request_id
        and one.request_id not in ids
        and not any(-LOST_LOG <= at - one.ended <= LOST_LOG for at in kills)
    ]
    forms = {tuple(line) for line in lines}
    kinds = {
        (line["dialect"], line["backend"], line["tenant"], line["outcome"], line["status"])
        for line in lines
    }
    return Claim(
        "one access record for each request, of one form",
        not twice and not missing and len(forms) <= 1,
        f"{len(lines):,} lines of {len(kinds)} kinds",
        [*(f"twice {name}" for name in twice), *(f"missing {name}" for name in missing)][:DETAILS],
    )


def _private(ran: Ran) -> Claim:
    """Nothing that a client wrote is in logs or metrics, but for a model's name in its record."""
    secrets = [CLIENTS_MARK, *(key_of(tenant) for tenant in TENANTS)]
    found = [
        f"{where}: {secret}"
        for where, text in (
            ("access log", _without_models(ran.logged)),
            ("standard error", ran.said),
            ("metrics", "".join(quiet.metrics for quiet in ran.quiets)),
        )
        for secret in (*secrets, *NONCE.findall(text)[:1])
        if secret in text
    ]
    size = len(ran.logged) + len(ran.said)
    return Claim("no text, key or client's name is logged", not found, f"{size:,} bytes", found)


def _without_models(logged: str) -> str:
    """Access records but for the model's name, which docs/logs.md says is the client's word."""
    lines = (json.loads(line) for line in logged.splitlines())
    return "\n".join(json.dumps({**line, "model": None}) for line in lines)


def _stderr(ran: Ran) -> Claim:
    """Known kinds of lines, and no more of them than reasons for them."""
    lines = ran.said.splitlines()
    kinds = Counter(line_kind(line) for line in lines)
    bad = [kind for kind in kinds if "Traceback" in kind or "failed:" in kind or "ERROR" in kind]
    bad = [kind for kind in bad if not _told_of_a_trouble(kind)]
    odd = [line for line in lines if not re.match(r"\d{4}-\d\d-\d\d ", line)]
    odd = [line for line in odd if not re.match(r"backends", line.strip())]
    incidents = sum(count for kind, count in kinds.items() if "INCIDENT" in kind)
    rest = len(lines) - incidents - len(odd)
    bound = 12 * len(ran.windows) + 40
    return Claim(
        "standard error: no traceback, and few lines",
        not bad and not odd and rest <= bound,
        f"{incidents} incidents, {rest} others for {len(ran.windows)} troubles; {len(kinds)} kinds",
        [*bad, *odd][:DETAILS],
    )


def line_kind(line: str) -> str:
    """A line of standard error without its numbers; incidents are one kind."""
    text = re.sub(r"^\S+ \S+ ", "", line)
    if '"kind":' in text:
        return "INCIDENT"
    return re.sub(r"\d+(\.\d+)?", "N", text)


def _told_of_a_trouble(kind: str) -> bool:
    return "reload refused" in kind or "was killed by" in kind or "exited with" in kind


def _coverage(ran: Ran) -> Claim:
    """That what the run is about did happen in it."""
    kinds = {one.call.kind for one in ran.seen}
    left = [one.call.leave for one in ran.seen if one.ending is Ending.LEFT]
    moments = {leave.moment for leave in left if leave}
    troubles = Counter(str(window.trouble) for window in ran.windows)
    missing = [*(set(Kind) - kinds), *(set(Moment) - moments)]
    missing += [trouble for trouble in Trouble if str(trouble) not in troubles]
    told = ", ".join(f"{name} {count}" for name, count in sorted(troubles.items()))
    return Claim("every fault was there", not missing, told, [str(one) for one in missing])


def _none(claim: str, found: Sequence[Seen]) -> Claim:
    ordered = sorted(found, key=_sort)
    examples = [
        f"{len(list(same))} x {kind}: {outcome}"
        for (kind, outcome), same in groupby(ordered, key=_sort)
    ]
    numbers = [f"call {one.call.number}" for one in found[:DETAILS]]
    return Claim(claim, not found, f"{len(found)}", [*examples, *numbers])


def _sort(one: Seen) -> tuple[str, str]:
    return str(one.call.kind), one.outcome
