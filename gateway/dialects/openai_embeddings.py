"""OpenAI embeddings: prompts in, vectors out, nothing generated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.dialects import answers, openai_common, prompts, wire
from gateway.types import OpaquePrompt, ParsedRequest, Prompt


class OpenAiEmbeddings(openai_common.OpenAiErrors):
    """POST /v1/embeddings."""

    name = "openai_embeddings"
    operation = "embeddings"
    paths: Mapping[str, str] = {"/v1/embeddings": "embeddings"}
    subject = "input"

    def parse(self, path: str, raw: bytes) -> ParsedRequest:
        """See ``Dialect.parse``."""
        body = wire.decode_object(raw)
        return ParsedRequest(
            dialect=self.name,
            path=path,
            raw=raw,
            body=body,
            model=wire.required_name(body, "model"),
            stream=False,
            prompt=_prompt(body),
            generates=False,
        )

    def fold(self, _request: ParsedRequest, /) -> answers.Fold:
        """Usage as in chat; there are no choices."""
        return openai_common.ChoicesFold(expected=0, strip=False)


def _prompt(body: Mapping[str, Any]) -> Prompt:
    if body.get("input") is None and body.get("messages") is not None:
        return OpaquePrompt("chat_embedding")  # vLLM's own: a conversation through a template
    add_special_tokens = wire.flag(body, "add_special_tokens")
    prompt = prompts.text_or_ids(body.get("input"), "input", add_special_tokens)
    return prompts.truncation(body) or prompt
