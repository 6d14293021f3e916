"""Which requests are inference, and in which dialect. What is not listed here does not exist."""

from __future__ import annotations

from types import MappingProxyType

from gateway.dialects.anthropic_messages import AnthropicMessages
from gateway.dialects.base import Dialect
from gateway.dialects.openai_chat import OpenAiChat
from gateway.dialects.openai_completions import OpenAiCompletions
from gateway.dialects.openai_embeddings import OpenAiEmbeddings
from gateway.dialects.openai_responses import OpenAiResponses
from gateway.dialects.sglang_generate import SglangGenerate

DEFAULT: Dialect = OpenAiChat()  # speaks where no route tells the dialect

DIALECTS: tuple[Dialect, ...] = (
    DEFAULT,
    OpenAiCompletions(),
    OpenAiResponses(),
    OpenAiEmbeddings(),
    AnthropicMessages(),
    SglangGenerate(),
)
ROUTES = MappingProxyType(
    {("POST", path): dialect for dialect in DIALECTS for path in dialect.paths}
)


def match(method: str, raw_path: str) -> Dialect | None:
    """The dialect of a request target, or None: then it must not be forwarded.

    The path before ``?`` is compared as it was sent, undecoded: a path that needs decoding or
    normalising to match would be matched in one form and forwarded in another.
    """
    return ROUTES.get((method, raw_path.partition("?")[0]))
