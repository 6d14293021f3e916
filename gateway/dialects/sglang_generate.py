"""SGLang's native endpoint: text or token ids, one prompt or a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.dialects import openai_common, prompts, wire
from gateway.dialects.answers import Fold, Forward, tokens
from gateway.types import OpaquePrompt, ParsedRequest, Prompt, Usage

# Fields that add to the prompt what the request does not show in tokens, and what to call it.
_OPAQUE = {
    "image_data": "image",
    "video_data": "video",
    "audio_data": "audio",
    "input_embeds": "input_embeds",
}
_SOURCES = ("text", "input_ids", "input_embeds")


class SglangGenerate(openai_common.OpenAiErrors):
    """POST /generate. Its own errors are ``{"error": {"message": ...}}``, as OpenAI's are."""

    name = "sglang_generate"
    operation = "text_completion"
    paths: Mapping[str, str] = {"/generate": "native generation"}
    subject = "prompt"

    def parse(self, path: str, raw: bytes) -> ParsedRequest:
        """See ``Dialect.parse``. The endpoint needs no model; without one it is empty."""
        body = wire.decode_object(raw)
        sampling = _sampling(body)
        limits = [_number(each, "max_new_tokens", 0) for each in sampling]
        return ParsedRequest(
            dialect=self.name,
            path=path,
            raw=raw,
            body=body,
            model="" if body.get("model") is None else wire.required_name(body, "model"),
            stream=wire.flag(body, "stream") is True,
            prompt=_prompt(body),
            max_output_tokens=max((limit for limit in limits if limit is not None), default=None),
            wants_usage=True,
            choices=max((_number(each, "n", 1) or 1 for each in sampling), default=1),
        )

    def fold(self, request: ParsedRequest, /) -> Fold:
        """One ``meta_info`` for each choice of each prompt."""
        return MetaInfoFold(prompts.items(request.prompt), request.choices)


def _number(sampling: Mapping[str, Any], name: str, least: int) -> int | None:
    return wire.whole_number(sampling, name, least=least, prefix="sampling_params.")


def _sampling(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The sampling parameters: one set for all prompts, or one for each."""
    if isinstance(body.get("sampling_params"), list):
        return list(wire.objects(body, "sampling_params"))
    return [wire.nested(body, "sampling_params")]


def _prompt(body: Mapping[str, Any]) -> Prompt:
    given = [name for name in _SOURCES if body.get(name) is not None]
    if len(given) != 1:
        raise wire.malformed(f"Exactly one of {', '.join(_SOURCES)} must be given.", "text")
    for name, reason in _OPAQUE.items():
        if body.get(name) is not None:
            return OpaquePrompt(reason)
    [source] = given
    prompt = prompts.text_or_ids(body[source], source)
    prompts.refuse_empty(body[source], source)
    return prompts.truncation(body) or prompt


class MetaInfoFold(Fold):
    """Adds up ``meta_info``; a batch is told apart by ``index``, or by place in a list.

    ``items`` prompts with ``choices`` answers each: every prompt's count comes once a choice.
    """

    members = ("meta_info", "index", "text")
    markers = (b'"finish_reason":{', b'"finish_reason": {', b"[DONE]")
    ends_with_done = True
    unread_speaks = True

    def __init__(self, items: int, choices: int) -> None:
        super().__init__()
        self._choices = choices
        self._expected = items * choices
        self._seen: dict[int, Mapping[str, Any]] = {}

    def body(self, value: Mapping[str, Any]) -> None:
        """One item of the answer."""
        self._meta(value, len(self._seen))

    def event(self, value: Mapping[str, Any]) -> Forward:
        """One step of one item; the numbers are running totals."""
        index = value.get("index")
        self._meta(value, index if type(index) is int else 0)
        return Forward.KEEP

    def _meta(self, value: Mapping[str, Any], index: int) -> None:
        meta = value.get("meta_info")
        if not isinstance(meta, dict):
            return
        self.identify(meta)
        self.spoke = self.spoke or bool(value.get("text"))
        self._seen[index] = meta
        reason = meta.get("finish_reason")
        if isinstance(reason, dict) and isinstance(kind := reason.get("type"), str):
            self.finish[index] = kind
            self.failed |= kind == "abort"

    def usage(self) -> Usage | None:
        """Sums over the items; of the prompt only once every item reported.

        Several choices of one prompt reuse each other's pages, so what they call cached says
        nothing of what was there before; it is not reported.
        """
        if not self._seen:
            return None
        complete = len(self._seen) >= self._expected
        prompt, cached = self._sum("prompt_tokens"), self._sum("cached_tokens")
        return Usage(
            prompt_tokens=prompt // self._choices if complete and prompt is not None else None,
            completion_tokens=self._sum("completion_tokens"),
            cached_tokens=cached if complete and self._choices == 1 else None,
        )

    def _sum(self, name: str) -> int | None:
        numbers = [tokens(meta, name) for meta in self._seen.values()]
        known = [number for number in numbers if number is not None]
        return sum(known) if len(known) == len(numbers) else None

    @property
    def finished(self) -> bool:
        """All items gave their reason."""
        return len(self.finish) >= self._expected
