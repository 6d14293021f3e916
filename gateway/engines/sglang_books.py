"""What the two legs of a disaggregated SGLang have counted, from their metrics pages.

Each leg counts the prompt tokens of the requests it finished by its own copy of the prompt. In the
incident prefill had computed a placeholder of one token where decode answered for the whole
prompt: the two counts are the one place where both sides of the transfer show from outside.
Needs ``--enable-metrics``. Tokens that were transferred have no series of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.engines.base import Answers
from gateway.engines.prometheus_text import Series, series_of
from gateway.engines.reading import METRICS
from gateway.types import Books, Role

PROBE = METRICS
PROMPT_TOKENS = "sglang:prompt_tokens_total"
REQUESTS = "sglang:num_requests_total"
FAILED = "sglang:num_transfer_failed_reqs_total"
LEG = "engine_type"  # the label: prefill, decode or unified; older versions have none


def books(answers: Answers, role: Role, *, alone: bool) -> Books | None:
    """A leg's counts; None where the page does not tell them.

    ``alone``: the page is that of one leg, so that series without its name are its own.
    """
    tokens = _total(series_of(answers, PROBE, PROMPT_TOKENS), role, alone=alone)
    requests = _total(series_of(answers, PROBE, REQUESTS), role, alone=alone)
    if tokens is None or requests is None:
        return None
    return Books(requests, tokens, _total(series_of(answers, PROBE, FAILED), role, alone=alone))


def _total(series: Sequence[Series], role: Role, *, alone: bool) -> int | None:
    own = [one.value for one in series if one.labels.get(LEG) == role]
    if not own and alone:
        own = [one.value for one in series if one.labels.get(LEG) in (None, "unified")]
    return int(sum(own)) if own else None
