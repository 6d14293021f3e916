"""transformers' rules for rendering a chat, and the short way through them.

Its public renderer copies all it is given, since it may be given anything, and checks much of it.
What comes from JSON and our own renderers is plain already, so for most chats that leaves: give
reasoning its second name, and render the compiled template. Tests hold the two ways equal.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from jinja2 import Template

from gateway.tokens.lookups import hasten
from gateway.tokens.sums import summing_at_once
from gateway.types import TemplateCall

Rules = Callable[..., tuple[list[str], Any]]
Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Shortcut:
    """A compiled template, and how transformers names reasoning twice."""

    template: Template
    alias_reasoning: Callable[[Messages], Messages]

    def render(
        self, call: TemplateCall, tools: Sequence[Any] | None, variables: Mapping[str, Any]
    ) -> str:
        """The text of a chat that ``takes_shortcut`` lets through.

        Raises whatever the template does.
        """
        return self.template.render(
            messages=self.alias_reasoning(call.messages),
            tools=tools,
            documents=None,
            add_generation_prompt=call.add_generation_prompt,
            **variables,
        )


def takes_shortcut(call: TemplateCall) -> bool:
    """Whether nothing is asked for that only the whole of transformers' renderer does."""
    return not call.continue_final_message and call.documents is None


def load_rules() -> Rules:
    """transformers' template renderer. Importing it takes about half a second, so at load only."""
    # It warns that no PyTorch is here; nothing of it needs any.
    logger = logging.getLogger("transformers")
    logger.addFilter(_silence)
    try:
        from transformers.utils.chat_template_utils import (  # noqa: PLC0415
            render_jinja_template,
        )
    finally:
        logger.removeFilter(_silence)
    rules: Rules = render_jinja_template
    return rules


def shortcut(source: str) -> Shortcut | None:
    """The short way for a template, once ``load_rules`` was called.

    None where this version of transformers has other insides; then its renderer is all there is.
    """
    utils = import_module("transformers.utils.chat_template_utils")
    compiled = getattr(utils, "_compile_jinja_template", None)
    alias = getattr(utils, "_alias_reasoning_fields", None)
    if compiled is None or alias is None:
        return None
    template = summing_at_once(compiled(source), source)
    hasten(template)
    return Shortcut(template, alias)


def _silence(_record: logging.LogRecord) -> bool:
    return False
