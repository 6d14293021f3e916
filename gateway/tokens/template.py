"""Chat templates: found beside the tokenizer, looked at once, rendered by transformers' rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
import msgspec

from gateway.rendering.common import LateSystem, Templates, TemplateTraits
from gateway.tokens.assets import AssetError, TokenizerFiles
from gateway.tokens.content_loops import iterates_content, named_content_loops
from gateway.tokens.rules import Rules, Shortcut, load_rules, shortcut, takes_shortcut
from gateway.types import TemplateCall

# The attributes transformers hands to every template (special_tokens_map).
SPECIAL_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
EFFORTS = ("low", "medium", "high", "xhigh", "max")
SENTINEL = "poolgate-late-system"


class TemplateRefused(Exception):
    """The template cannot render this conversation: the engine refuses it too.

    Carries no text of the template's own message, which may quote the conversation.
    """


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A model's templates, the tokens they may name, and transformers' way of rendering them."""

    templates: Templates
    special_tokens: Mapping[str, str]
    rules: Rules
    shortcuts: Mapping[str, Shortcut] = field(default_factory=dict)  # by the template's source

    def render(self, call: TemplateCall) -> str:
        """The prompt text of a chat.

        Raises:
            TemplateRefused: the template raised, or the messages do not fit it.
        """
        try:
            return self._render(call, call.tools)
        except TemplateRefused:
            if not (call.flat_tools_retry and call.tools):
                raise
            return self._render(call, [tool.get("function", tool) for tool in call.tools])

    def _render(self, call: TemplateCall, tools: Sequence[Mapping[str, Any]] | None) -> str:
        source = self.templates.select(has_tools=tools is not None).source
        variables = {**self.special_tokens, **call.kwargs}
        short = self.shortcuts.get(source) if takes_shortcut(call) else None
        try:
            if short is not None:
                return short.render(call, tools, variables)
            rendered, _ = self.rules(
                conversations=[call.messages],
                tools=tools,
                documents=call.documents,
                chat_template=source,
                continue_final_message=call.continue_final_message,
                add_generation_prompt=call.add_generation_prompt,
                **variables,
            )
        except Exception as error:  # a template can raise anything: it is the model's code
            raise TemplateRefused(type(error).__name__) from None
        return rendered[0]


def load_template(files: TokenizerFiles, override: Path | None = None) -> ChatTemplate | None:
    """The templates beside a tokenizer (or the one at ``override``); None where there is none.

    Raises:
        AssetError: a file is malformed, or a template does not compile.
    """
    config = _read_json(files.path("tokenizer_config.json"))
    sources = _sources(files, config) if override is None else {"default": override.read_text()}
    if not sources:
        return None
    if "default" not in sources:
        raise AssetError(f"tokenizer {files.name}: none of its chat templates is the default")
    rules = load_rules()
    special = _special_tokens(config)
    try:
        traits = {
            name: examine(source, partial(rules, **special)) for name, source in sources.items()
        }
        ways = {source: shortcut(source) for source in sources.values()}
    except jinja2.TemplateError as error:
        raise AssetError(f"tokenizer {files.name}: chat template: {error}") from error
    return ChatTemplate(
        Templates(traits["default"], traits.get("tool_use")),
        special,
        rules,
        {source: way for source, way in ways.items() if way is not None},
    )


def examine(source: str, rules: Rules) -> TemplateTraits:
    """Look at a template as engines do at start, and try it.

    Raises:
        jinja2.TemplateError: it does not compile.
    """
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    rules(conversations=[], chat_template=source)  # compiles with all of transformers' tags
    tree = _parse(environment, source)
    return TemplateTraits(
        source=source,
        iterates_content=iterates_content(tree),
        content_loop_names=named_content_loops(tree),
        late_system=_late_system(environment, source),
        obeys_effort_none=_obeys_effort_none(source, rules),
    )


def _parse(environment: jinja2.Environment, source: str) -> jinja2.nodes.Template:
    # transformers' own tag; as a plain statement it does not matter to what is looked for here.
    plain = source
    for tag in ("generation", "endgeneration"):
        for left, right in (("{%", "%}"), ("{%-", "%}"), ("{%", "-%}"), ("{%-", "-%}")):
            plain = plain.replace(f"{left} {tag} {right}", "")
    return environment.parse(plain)


def _late_system(environment: jinja2.Environment, source: str) -> LateSystem:
    """Engines try this in a bare environment, where transformers' helpers raise as well."""
    turns = [("system", "t"), ("user", "t"), ("system", SENTINEL), ("user", "t")]
    messages = [{"role": role, "content": content} for role, content in turns]
    try:
        text = environment.from_string(source).render(
            messages=messages, add_generation_prompt=False
        )
    except Exception:  # engines take any failure for a refusal
        return LateSystem.REFUSED
    return LateSystem.RENDERED if SENTINEL in text else LateSystem.DROPPED


def _obeys_effort_none(source: str, rules: Rules) -> bool:
    def attempt(effort: str) -> str | None:
        try:
            rendered, _ = rules(
                conversations=[[{"role": "user", "content": "Hi"}]],
                chat_template=source,
                add_generation_prompt=True,
                reasoning_effort=effort,
                enable_thinking=effort != "none",
            )
        except Exception:  # the template refuses this effort
            return None
        return rendered[0]

    none = attempt("none")
    return none is not None and all(attempt(effort) != none for effort in EFFORTS)


def _sources(files: TokenizerFiles, config: Mapping[str, Any]) -> dict[str, str]:
    """Templates by name. A file of its own wins over the tokenizer's configuration."""
    jinja = files.path("chat_template.jinja")
    if jinja is not None:
        return {"default": jinja.read_text("utf-8")}
    found = config.get("chat_template")
    if found is None:
        found = _read_json(files.path("chat_template.json")).get("chat_template")
    if found is None:
        return {}
    if isinstance(found, str):
        return {"default": found}
    if isinstance(found, list):
        found = {item["name"]: item["template"] for item in found}
    return dict(found)


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    tokens = {name: config.get(name) for name in SPECIAL_TOKENS}
    return {
        name: token if isinstance(token, str) else token["content"]
        for name, token in tokens.items()
        if token is not None
    }


def _read_json(path: Path | None) -> Mapping[str, Any]:
    if path is None:
        return {}
    try:
        value = msgspec.json.decode(path.read_bytes())
    except msgspec.DecodeError as error:
        raise AssetError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise AssetError(f"{path} is not a JSON object")
    return value
