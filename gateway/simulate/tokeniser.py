"""Tokenising as SGLang 0.5.23 does it, on its own feet.

The gateway's counting (``gateway.tokens``, ``gateway.rendering``) is deliberately not used: two
counts that agree are evidence only while neither is the other. Rules: ``serving_chat.py`` and
``jinja_template_utils.py`` of the 0.5.23 wheel.
"""

from __future__ import annotations

import importlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
import jinja2.nodes
from tokenizers import Tokenizer

from gateway.simulate.engine import EngineRefusal
from gateway.simulate.vision import Vision

MEDIA_WORDS = ("image", "audio", "video", "vision")
INLINE_PROBE = "poolgate inline system probe"
DRIFT_TEXT = "Follow the house rules."


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation in OpenAI's shape, whatever dialect it came in.

    ``generation_prompt`` None is the endpoint's default: on, and a trailing assistant message is
    then turned into a user's, as the engine does.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    continue_final: bool = False
    generation_prompt: bool | None = None


class Tokeniser:
    """One tokenizer directory: ``tokenizer.json`` and ``tokenizer_config.json``.

    Raises OSError or ValueError when they are missing or unreadable. ``drift`` makes the chat
    template differ from the file's by a system line, as an engine with another template would.
    Without ``vision`` images cost nothing.
    """

    def __init__(
        self, directory: Path, *, drift: bool = False, vision: Vision | None = None
    ) -> None:
        config = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
        vocabulary = (directory / "tokenizer.json").read_text(encoding="utf-8")
        try:
            self._tokenizer = Tokenizer.from_str(vocabulary)
        except Exception as error:  # the library raises bare Exception
            raise ValueError(f"{directory / 'tokenizer.json'}: {error}") from error
        self._template = _chat_template(config, directory)
        self._special_names = {
            name: value["content"] if isinstance(value, dict) else value
            for name, value in config.items()
            if name.endswith("_token") and value
        }
        self._drift = drift
        self._vision = vision
        self._hf = _transformers_templates()
        self._structured = _wants_structured_content(self._template)
        self.special = frozenset(
            token
            for token, added in self._tokenizer.get_added_tokens_decoder().items()
            if added.special
        )
        self._vocabulary = self._tokenizer.get_vocab_size(with_added_tokens=True)
        eos = self._special_names.get("eos_token")
        self.eos: int | None = self._tokenizer.token_to_id(eos) if eos else None
        self.model_max_length = int(min(config.get("model_max_length", 131_072), 2**53))
        self.inline_system = self._keeps_inline_system()

    def encode(self, texts: Sequence[str], *, add_special_tokens: bool = True) -> list[list[int]]:
        """Token ids of each text."""
        encoded = self._tokenizer.encode_batch_fast(
            list(texts), add_special_tokens=add_special_tokens
        )
        return [encoding.ids for encoding in encoded]

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of an answer; special tokens are left out."""
        return self._tokenizer.decode(tokens, skip_special_tokens=True)

    def knows(self, token: int) -> bool:
        """Whether the vocabulary has this id."""
        return 0 <= token < self._vocabulary

    def encode_chat(self, chat: Chat) -> list[int]:
        """Token ids of a conversation. Raises EngineRefusal (400) where the template fails."""
        messages = [self._prepare(message) for message in chat.messages]
        if self._drift:
            messages.insert(0, {"role": "system", "content": DRIFT_TEXT})
        prefix = ""
        if messages and (chat.generation_prompt is None or chat.continue_final):
            messages, prefix = _settle_last_assistant(messages, chat.continue_final)
        text = self._render(messages, chat)
        ids = self.encode([text], add_special_tokens=False)[0]
        ids += [self.eos or 0] * self._image_tokens(chat)
        return ids + self.encode([prefix], add_special_tokens=False)[0] if prefix else ids

    def _render(self, messages: Sequence[Mapping[str, Any]], chat: Chat) -> str:
        """The template's text; tools are tried wrapped, then flat, as the engine does."""
        flat = [tool.get("function", tool) for tool in chat.tools] if chat.tools else None
        for tools in (chat.tools, flat):
            try:
                rendered, _ = self._hf.render_jinja_template(
                    conversations=[messages],
                    tools=tools,
                    chat_template=self._template,
                    add_generation_prompt=chat.generation_prompt is not False,
                    **(self._special_names | dict(chat.kwargs)),
                )
            except (jinja2.TemplateError, TypeError, ValueError, KeyError) as error:
                failure = error
                continue
            return str(rendered[0])
        raise EngineRefusal(f"The chat template failed: {type(failure).__name__}.")

    def _image_tokens(self, chat: Chat) -> int:
        try:
            return self._vision.tokens(chat.messages) if self._vision is not None else 0
        except ValueError as error:
            raise EngineRefusal(str(error)) from None

    def _prepare(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """One message as the template gets it."""
        prepared = {key: value for key, value in message.items() if value is not None}
        prepared["role"] = str(prepared.get("role", "")).lower()
        if prepared["role"] == "assistant" and isinstance(prepared.get("tool_calls"), list):
            prepared["tool_calls"] = [_parsed_call(call) for call in prepared["tool_calls"]]
        content = prepared.get("content", "")
        if isinstance(content, list):
            flat = not self._structured or (prepared["role"] == "tool" and _all_text(content))
            content = " ".join(_texts(content)) if flat else [_template_part(p) for p in content]
        prepared["content"] = content
        return prepared

    def _keeps_inline_system(self) -> bool:
        """Whether a system message in the middle survives the template; else it is merged."""
        roles = ("system", "user", "system", "user")
        texts = ("t", "t", INLINE_PROBE, "t")
        messages = [{"role": r, "content": t} for r, t in zip(roles, texts, strict=True)]
        try:
            return INLINE_PROBE in self._render(messages, Chat((), generation_prompt=False))
        except EngineRefusal:
            return False


class Detokeniser:
    """Turns one answer's tokens into text piece by piece; the pieces join to the whole.

    A token may end inside a character: the piece is then held back until it is whole.
    """

    def __init__(self, tokeniser: Tokeniser) -> None:
        self._decode = tokeniser.decode
        self._tokens: list[int] = []
        self._start = 0  # where the window of context begins
        self._read = 0  # up to where the text was given out

    def add(self, token: int) -> str:
        """Take a token; the text that is now whole."""
        self._tokens.append(token)
        text = self._piece()
        if text.endswith("\ufffd"):
            return ""
        self._start, self._read = self._read, len(self._tokens)
        return text

    def flush(self) -> str:
        """What was held back at the end of the answer."""
        text = self._piece()
        self._start = self._read = len(self._tokens)
        return text

    def _piece(self) -> str:
        given = self._decode(self._tokens[self._start : self._read])
        return self._decode(self._tokens[self._start :])[len(given) :]


def _chat_template(config: Mapping[str, Any], directory: Path) -> str:
    separate = directory / "chat_template.jinja"
    template = config.get("chat_template")
    if template is None and separate.is_file():
        template = separate.read_text(encoding="utf-8")
    if isinstance(template, str):
        return template
    raise ValueError(f"{directory}: no chat template")


@contextmanager
def _quiet() -> Iterator[None]:
    """transformers warns on import that torch is missing; only its template code is used here."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _transformers_templates() -> Any:
    with _quiet():
        return importlib.import_module("transformers.utils.chat_template_utils")


def _wants_structured_content(template: str) -> bool:
    """Whether the template iterates over content parts; such a template gets the list."""
    if any(word in template for word in MEDIA_WORDS):
        return True
    environment = jinja2.Environment(  # noqa: S701 - parsed only, never rendered
        extensions=["jinja2.ext.loopcontrols"]
    )
    try:
        tree = environment.parse(template)
    except jinja2.TemplateError:
        return False
    return any(_is_content(loop.iter) for loop in tree.find_all(jinja2.nodes.For))


def _is_content(node: jinja2.nodes.Node) -> bool:
    """``message.content``, ``message['content']`` (or msg, m), filtered or sliced."""
    if isinstance(node, jinja2.nodes.Filter | jinja2.nodes.Test):
        return node.node is not None and _is_content(node.node)
    if isinstance(node, jinja2.nodes.Getitem) and isinstance(node.arg, jinja2.nodes.Slice):
        return _is_content(node.node)
    if isinstance(node, jinja2.nodes.Getitem):
        key = node.arg.value if isinstance(node.arg, jinja2.nodes.Const) else None
    elif isinstance(node, jinja2.nodes.Getattr):
        key = node.attr
    else:
        return False
    owner = node.node
    named = isinstance(owner, jinja2.nodes.Name) and owner.name in ("message", "msg", "m")
    return named and key == "content"


def _parsed_call(call: Any) -> Any:
    """A tool call whose arguments are an object, as templates want them."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        raise EngineRefusal("Assistant tool call function.arguments must be valid JSON.") from None
    if not isinstance(arguments, dict):
        raise EngineRefusal("Assistant tool call function.arguments must be a JSON object.")
    return {**call, "function": {**function, "arguments": arguments}}


def _texts(parts: Sequence[Any]) -> list[str]:
    return [
        str(part.get("text", "")) if isinstance(part, dict) else part
        for part in parts
        if isinstance(part, str)
        or (isinstance(part, dict) and part.get("type") in ("text", "input_text"))
    ]


def _all_text(parts: Sequence[Any]) -> bool:
    return len(_texts(parts)) == len(parts)


def _template_part(part: Any) -> Any:
    """A content part under the names that templates know."""
    if not isinstance(part, dict):
        return part
    kind = str(part.get("type", ""))
    if kind in ("text", "input_text"):
        return {"type": "text", "text": part.get("text", "")}
    for media in ("image", "video", "audio"):
        if media in kind:
            return {"type": media}
    return part


def _settle_last_assistant(
    messages: list[dict[str, Any]], continue_final: bool
) -> tuple[list[dict[str, Any]], str]:
    """A trailing assistant text is continued where asked for, else becomes a user's turn."""
    last = messages[-1]
    if last.get("role") != "assistant" or not isinstance(last.get("content"), str):
        return messages, ""
    if continue_final:
        return messages[:-1], last["content"]
    return [*messages[:-1], {"role": "user", "content": last["content"]}], ""
