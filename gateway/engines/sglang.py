"""SGLang: the limit is ``max_req_input_len - 1`` of ``/server_info``, never the pool itself."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gateway.engines import mini_lb, sglang_info
from gateway.engines.asking import (
    ask,
    ask_anthropic,
    ask_each,
    constrains_format,
    picked,
    sets_any,
    shows_media,
)
from gateway.engines.base import (
    Answers,
    OracleCall,
    Probe,
    StatedLimit,
    Traits,
    Unreadable,
)
from gateway.engines.reading import MODELS, SERVER_INFO, body_of, model_cards, trouble
from gateway.engines.refusals import Wording, stated_in
from gateway.types import ChatPrompt, TextPrompt, WorkerFacts

OLD_SERVER_INFO = Probe("GET", "/get_server_info")  # the only name up to about 0.5.5

WORDINGS = (
    Wording(
        re.compile(
            r"The input \(\d+ tokens\) is longer than the model's context length "
            r"\((?P<limit>\d+) tokens\)"
        )
    ),
    Wording(
        re.compile(
            r"Input length \(\d+ tokens\) exceeds the maximum allowed length "
            r"\((?P<limit>\d+) tokens\)"
        )
    ),
    Wording(
        re.compile(
            r"Requested token count exceeds the model's maximum context length of "
            r"(?P<limit>\d+) tokens\. You requested a total of \d+ tokens: (?P<given>\d+) tokens"
        )
    ),
)

CHAT_FIELDS = (
    "messages", "tools", "tool_choice", "reasoning_effort", "chat_template_kwargs",
    "continue_final_message",
)  # fmt: skip
# Reach the prompt of a chat request, but /tokenize does not take them.
CHAT_FIELDS_UNKNOWN_TO_TOKENIZE = ("input_ids", "thinking", "task", "mm_processor_kwargs")


class Sglang:
    """SGLang workers, alone or shown by mini_lb. Seen running: 0.5.23."""

    __slots__ = ()

    name: str = "sglang"
    traits: Traits = Traits(
        salt_fields={
            "openai_chat": "cache_salt",
            "openai_completions": "cache_salt",
            "openai_responses": "cache_salt",
            "sglang_generate": "cache_salt",
        },
        id_fields={
            "openai_chat": "rid",
            "openai_completions": "rid",
            "openai_responses": "request_id",
            "sglang_generate": "rid",
        },
    )
    probes: tuple[Probe, ...] = (SERVER_INFO, OLD_SERVER_INFO, MODELS)

    def recognises(self, answers: Answers) -> bool:
        """A ``/server_info`` with SGLang's limits, or mini_lb's collection of them."""
        return _info(answers) is not None

    def read(self, worker: str, answers: Answers) -> tuple[WorkerFacts, ...] | Unreadable:
        """Facts of the worker, or of all workers behind a mini_lb."""
        info = _info(answers)
        if info is None:
            return Unreadable(f"SGLang: {trouble(answers, SERVER_INFO)}")
        if not mini_lb.is_mini_lb(info):
            return sglang_info.read(worker, info, model_cards(answers))
        members = mini_lb.members(worker, info)
        return members if isinstance(members, Unreadable) else _read_all(members, answers)

    def stated_limit(self, status: int, body: bytes) -> StatedLimit | None:
        """Refused with 400, or inside a 200 stream when the scheduler was the one to refuse."""
        return stated_in(status, body, WORDINGS)

    def oracle(self, prompt: ChatPrompt | TextPrompt, model: str) -> tuple[OracleCall, ...] | None:
        """``/tokenize`` renders chats too since 0.5.2x; images are not expanded there."""
        if isinstance(prompt, TextPrompt):
            special = prompt.add_special_tokens
            more = {} if special is None else {"add_special_tokens": special}
            return ask_each(prompt, "/tokenize", "prompt", "count", model=model, **more)
        body = prompt.body
        if shows_media(body.get("messages")):
            return None
        if prompt.dialect == "anthropic_messages":
            return ask_anthropic(body, model)
        unknown = sets_any(body, CHAT_FIELDS_UNKNOWN_TO_TOKENIZE) or constrains_format(body)
        if prompt.dialect != "openai_chat" or unknown:
            return None
        return (ask("/tokenize", {"model": model, **picked(body, CHAT_FIELDS)}, "count"),)


def _info(answers: Answers) -> Mapping[str, Any] | None:
    for probe in (SERVER_INFO, OLD_SERVER_INFO):
        info = body_of(answers, probe)
        if sglang_info.is_worker(info) or mini_lb.is_mini_lb(info):
            return info
    return None


def _read_all(
    members: tuple[mini_lb.Member, ...], answers: Answers
) -> tuple[WorkerFacts, ...] | Unreadable:
    cards = model_cards(answers)
    found: list[WorkerFacts] = []
    for label, info in members:
        word = sglang_info.read(label, info, cards)
        if isinstance(word, Unreadable):
            return Unreadable(f"{label}: {word.reason}")
        found.extend(word)
    return tuple(found)
