"""Is this the answer to our request? Our own id, which nobody can guess, must come back in its id.

Which engines carry it (recorded and read in their sources): SGLang takes ``rid`` in the body and
gives it back as the id of chat, completions and /generate; vLLM and transformers take the header
``X-Request-Id`` and put it behind a prefix of the kind of answer; both take ``request_id`` in
/v1/responses. llama.cpp, SGLang's messages and several choices under SGLang have ids of their own.
A router in between may keep or change all that. So an echo is expected where it was seen before;
another request's id is proof wherever it is seen.

A stream tells its id again and again, and the whole of one sequence has one id. TensorRT-LLM made
a new one for every event (its pull request 14708), so that too is expected only where it was seen.
"""

from __future__ import annotations

import re

from gateway.types import CheckResult, Verdict

CHECK = "binding"
ANOTHER = "another_request"
_OURS = re.compile(r"req_[0-9a-f]{32}")


def judge_binding(
    own: str, response_id: str | None, *, expected: bool, changed: bool = False
) -> CheckResult:
    """Whether an answer with ``response_id`` belongs to the request ``own``.

    ``expected``: this backend has echoed ids in answers of this kind. ``changed``: the answer told
    another id before this one, and this backend keeps to one in answers of this kind.
    """
    found = _OURS.search(response_id) if response_id is not None else None
    if found is not None and found.group() != own:
        return CheckResult(CHECK, Verdict.LEAK, ANOTHER, suspect=True)
    if found is None and response_id is not None and expected:
        return CheckResult(CHECK, Verdict.LEAK, "id_lost", suspect=True)
    if changed:
        return CheckResult(CHECK, Verdict.LEAK, "id_changed", suspect=True)
    if found is not None:
        return CheckResult(CHECK, Verdict.OK)
    return CheckResult(CHECK, Verdict.UNVERIFIABLE, "no_id" if response_id is None else "no_echo")
