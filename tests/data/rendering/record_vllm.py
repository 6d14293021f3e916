"""Record what vLLM's own code renders: run with the Python of a vLLM 0.32.0 environment.

No engine is started: the request models, the dialect handlers' conversions and the HF renderer's
functions are called as the server calls them.
"""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

from recorded_cases import record
from transformers import PreTrainedTokenizerFast
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.openai.responses.utils import construct_input_messages, construct_tool_dicts
from vllm.renderers import hf
from vllm.renderers.chat_utils import parse_chat_messages
from vllm.renderers.params import merge_kwargs

EFFORTS = ("low", "medium", "high", "xhigh", "max")
MODEL = SimpleNamespace(
    multimodal_config=None,
    enable_prompt_embeds=False,
    tokenizer_revision=None,
    code_revision=None,
    revision=None,
    trust_remote_code=False,
    tokenizer="t",
    model="t",
    is_multimodal_model=False,
    max_model_len=1000,
    hf_config=SimpleNamespace(model_type="x"),
)


def chat_text(tokenizer: Any, request: Any, messages: Any, tools: Any) -> str:
    defaults = merge_kwargs({}, {"tools": tools, "tokenize": False})
    params = request.build_chat_params(None, "auto").with_defaults(defaults)
    content_format = hf.resolve_chat_template_content_format(
        chat_template=None,
        tools=params.chat_template_kwargs.get("tools"),
        given_format="auto",
        tokenizer=tokenizer,
        model_config=MODEL,
    )
    conversation, _, _ = parse_chat_messages(messages, MODEL, content_format=content_format)
    arguments = params.get_apply_chat_template_kwargs()
    return str(hf.safe_apply_chat_template(MODEL, tokenizer, conversation, **arguments))


def of_chat(tokenizer: Any, request: ChatCompletionRequest) -> str:
    tools = None if request.tools is None else [tool.model_dump() for tool in request.tools]
    return chat_text(tokenizer, request, request.messages, tools)


def disabled_effort(tokenizer: Any) -> str:
    """The server's probe at start: whether the template obeys effort "none"."""

    def probe(effort: str) -> str | None:
        turn = [{"role": "user", "content": "Hi"}]
        try:
            return of_chat(tokenizer, ChatCompletionRequest(messages=turn, reasoning_effort=effort))
        except Exception:
            return None

    none = probe("none")
    return "low" if none is None or none in [probe(effort) for effort in EFFORTS] else "none"


def render(tokenizer: Any, dialect: str, body: dict[str, Any]) -> dict[str, Any]:
    if dialect == "openai_responses":
        request = ResponsesRequest.model_validate(body)
        messages = construct_input_messages(
            request_instructions=request.instructions, request_input=request.input
        )
        tools = construct_tool_dicts(request.tools, request.tool_choice)
        text = chat_text(tokenizer, request, messages, tools)
    elif dialect == "anthropic_messages":
        request = AnthropicServingMessages.to_chat_completion_request(
            AnthropicMessagesRequest.model_validate(body),
            merge_inline_system=AnthropicServingMessages._detect_merge_inline_system(
                tokenizer.chat_template
            ),
            disabled_thinking_effort=disabled_effort(tokenizer),
        )
        text = of_chat(tokenizer, request)
    else:
        request = ChatCompletionRequest.model_validate(body)
        text = of_chat(tokenizer, request)
    special = request.build_tok_params(MODEL).add_special_tokens
    return {"text": text, **({"add_special_tokens": True} if special else {})}


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    hf._try_get_processor_chat_template = lambda *_args, **_kwargs: None
    record("vllm", PreTrainedTokenizerFast.from_pretrained, render)
