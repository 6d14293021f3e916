"""Record what SGLang's own code renders: run with the Python of an SGLang 0.5.23 environment.

No engine is started: the handlers are made without their constructors, given what a server with
no reasoning or tool parser would have, and stopped where they would tokenise.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

with suppress(ImportError):
    import sglang_stubs  # noqa: F401 -- stands in for GPU libraries on a CPU machine

import sglang.srt.entrypoints.openai.serving_chat as serving_chat
from recorded_cases import record
from sglang.srt.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from sglang.srt.entrypoints.anthropic.serving import AnthropicServing
from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest, ResponsesRequest
from sglang.srt.entrypoints.openai.serving_chat import OpenAIServingChat
from sglang.srt.entrypoints.openai.serving_responses import OpenAIServingResponses
from sglang.srt.parser.jinja_template_utils import (
    detect_jinja_template_content_format,
    jinja_template_may_reorder_tool_results,
)
from sglang.srt.parser.template_detection import detect_inline_system_support
from transformers import PreTrainedTokenizerFast


def handler(kind: type, tokenizer: Any, out: dict[str, Any]) -> Any:
    def stop_at_tokenising(messages: Any, **rest: Any) -> tuple[list[int], None]:
        out["text"] = tokenizer.apply_chat_template(
            messages,
            tokenize=False,
            add_generation_prompt=rest.get("add_generation_prompt", True),
            tools=rest["tools"],
            return_dict=False,
            **rest["template_kwargs"],
        )
        return [], None

    def keep_suffix(ids: list[int], suffix: str) -> list[int]:
        out["suffix"] = suffix
        return ids

    template = tokenizer.chat_template
    made: Any = object.__new__(kind)
    made.__dict__ |= {
        "is_minimax_m3": False,
        "default_chat_template_kwargs": {},
        "reasoning_parser": None,
        "tool_call_parser": None,
        "chat_encoding_spec": None,
        "_encoding_adapter": None,
        "is_gpt_oss": False,
        "is_gemma4": False,
        "_reasoning_detector": None,
        "_tokenizer_auto_adds_specials": True,
        "_prompt_text_round_trip_is_lossy": False,
        "_template_reads_reasoning_content": False,
        "supports_inline_system": detect_inline_system_support(template),
        "msg_store": {},
        "template_manager": SimpleNamespace(
            reasoning_config=None,
            chat_template_name=None,
            python_chat_template=None,
            jinja_template_content_format=detect_jinja_template_content_format(template),
            jinja_template_may_reorder_tool_results=jinja_template_may_reorder_tool_results(
                template
            ),
        ),
        "tokenizer_manager": SimpleNamespace(
            tokenizer=tokenizer,
            served_model_name="m",
            model_config=SimpleNamespace(
                hf_config=SimpleNamespace(model_type="x"), is_multimodal=False
            ),
        ),
        "_render_and_encode_chat_template": stop_at_tokenising,
        "_append_assistant_prefix_to_prompt_ids": keep_suffix,
        "_takes_turn_grammar": lambda *_args, **_kwargs: False,
        "_requires_response_template_detokenization": lambda *_args: False,
        "_get_reasoning_from_request": lambda *_args: False,
        "_patch_reasoning_skip_special_tokens": lambda *_args: None,
        "_validate_media_content": lambda *_args: None,
    }
    return made


def render(tokenizer: Any, dialect: str, body: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    chat = handler(OpenAIServingChat, tokenizer, out)
    if dialect == "openai_chat":
        request = ChatCompletionRequest(**{"model": "m", **body})
    elif dialect == "anthropic_messages":
        given = AnthropicMessagesRequest(**body)
        request = AnthropicServing(chat)._convert_to_chat_completion_request(given)
    else:
        chat = handler(OpenAIServingResponses, tokenizer, out)
        request = chat_of_responses(chat, ResponsesRequest(**body))
    refusal = chat._validate_request(request)
    if refusal:
        raise ValueError(refusal)
    chat._process_messages(request, False)
    return out


def chat_of_responses(handler: Any, given: ResponsesRequest) -> ChatCompletionRequest:
    """As the handler's ``_make_request`` builds it."""
    tools = handler._response_tools_to_chat_tools(given)
    choice = handler._chat_tool_choice(given.effective_tool_choice())
    return ChatCompletionRequest(
        model="m",
        messages=handler._construct_input_messages(given),
        tools=tools or None,
        tool_choice=choice if tools else "none",
        reasoning_effort=given.reasoning.effort if given.reasoning else None,
        chat_template_kwargs=given.chat_template_kwargs,
    )


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    settings = {"trust_request_chat_template": False, "allow_auto_truncate": False}
    serving_chat.get_serving = lambda: SimpleNamespace(**settings)
    serving_chat.get_model = lambda: SimpleNamespace(context_length=None)
    serving_chat.normalize_hunyuan_reasoning_effort = lambda *_args, **_kwargs: None
    record("sglang", PreTrainedTokenizerFast.from_pretrained, render)
