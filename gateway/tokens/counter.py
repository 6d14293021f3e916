"""The length of a prompt, as the engine at hand will see it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

from msgspec import Struct

from gateway.errors import Kind, Rejection
from gateway.rendering.registry import EngineRendering
from gateway.tokens.encoder import FREELY, Encoder, Means, Tally, UncountableText
from gateway.tokens.recall import NeedsPatience
from gateway.tokens.template import ChatTemplate, TemplateRefused
from gateway.types import (
    AtLeast,
    Bounded,
    ChatPrompt,
    Counted,
    OpaquePrompt,
    Prompt,
    PromptLength,
    TextPrompt,
    TokenIdPrompt,
    Unverifiable,
)


class PromptText(Struct, frozen=True, gc=False):
    """One prompt as text. ``suffix`` is tokenised apart and follows without special tokens."""

    text: str
    add_special_tokens: bool
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class PromptCounter:
    """Counts for one model on one engine. Synchronous, immutable, shared between threads."""

    encoder: Encoder
    template: ChatTemplate | None
    rendering: EngineRendering

    def bound(self, prompt: Prompt) -> Bounded | None:
        """A proved upper bound without tokenising, or None where there is none.

        Raises:
            Rejection: MALFORMED, token ids that no vocabulary has.
        """
        if isinstance(prompt, TokenIdPrompt):
            self._check_ids(prompt)
            return Bounded(max(prompt.lengths, default=0), sum(prompt.lengths))
        texts = self._texts(prompt)
        return None if isinstance(texts, Unverifiable) else self._bound_all(texts)

    def glance(self, prompt: Prompt) -> Bounded | None:
        """The bytes' bound alone: 0.3 ms a megabyte, and usually enough."""
        texts = self._texts(prompt)
        if isinstance(texts, Unverifiable):
            return None
        _keep(prompt, self, texts)
        return self._bound_all(texts, sys.maxsize)

    def measure(self, prompt: Prompt, limit: int | None, means: Means = FREELY) -> PromptLength:
        """Enough to decide against ``limit``: a bound where that settles it, else the count.

        Raises:
            Rejection: as ``count``.
        """
        if isinstance(prompt, TokenIdPrompt):
            return self.count(prompt)
        texts = self._texts(prompt)
        if isinstance(texts, Unverifiable):
            return texts
        # A bound below half the characters is rare: above that it is not worth working out.
        if limit is None or all(len(item.text) <= 2 * limit for item in texts):
            bound = self._bound_all(texts, limit)
            if bound is not None and (limit is None or bound.longest <= limit):
                _keep(prompt, self, texts)
                return bound
        return self._counted(prompt, texts, limit, means)

    def count(
        self, prompt: Prompt, stop_at: int | None = None, means: Means = FREELY
    ) -> PromptLength:
        """The exact length of every item; ``AtLeast`` once an item is known to pass ``stop_at``.

        Raises:
            Rejection: MALFORMED, token ids that no vocabulary has, or text that is no Unicode.
            NeedsPatience: ``means`` has none, and this takes some.
        """
        if isinstance(prompt, TokenIdPrompt):
            self._check_ids(prompt)
            return Counted(prompt.lengths)
        texts = self._texts(prompt)
        if isinstance(texts, Unverifiable):
            return texts
        return self._counted(prompt, texts, stop_at, means)

    def _counted(
        self, prompt: Prompt, texts: tuple[PromptText, ...], stop_at: int | None, means: Means
    ) -> PromptLength:
        try:
            return self._count_all(texts, stop_at, means)
        except UncountableText as error:
            if error.reason == "lone_surrogate":
                raise _not_unicode(prompt) from None
            return Unverifiable(error.reason)
        except NeedsPatience:
            _keep(prompt, self, texts)
            raise

    def _texts(self, prompt: Prompt) -> tuple[PromptText, ...] | Unverifiable:
        """What would be tokenised, an entry an item, or why that is not known."""
        if isinstance(prompt, TextPrompt):
            special = self.rendering.adds_special_tokens(prompt.add_special_tokens)
            return tuple(PromptText(text, special) for text in prompt.texts)
        if isinstance(prompt, ChatPrompt):
            kept: tuple[PromptText, ...] | None = prompt.kept.take(self)
            return kept or self._rendered(prompt)
        reason = prompt.reason if isinstance(prompt, OpaquePrompt) else "unknown_prompt"
        return Unverifiable(reason)

    def _rendered(self, prompt: ChatPrompt) -> tuple[PromptText, ...] | Unverifiable:
        if self.template is None:
            return Unverifiable("no_template")
        call = self.rendering.render(prompt, self.template.templates)
        if isinstance(call, OpaquePrompt):
            return Unverifiable(call.reason)
        try:
            text = self.template.render(call)
        except TemplateRefused:
            return Unverifiable("template_refused")
        return (PromptText(text + call.tail, call.add_special_tokens, call.suffix_text),)

    def _count_all(
        self, texts: tuple[PromptText, ...], stop_at: int | None, means: Means
    ) -> PromptLength:
        items: list[int] = []
        for tally in self._tallies(texts, stop_at, means):
            items.append(tally.tokens)
            over = stop_at is not None and tally.tokens > stop_at
            if over and not (tally.complete and len(items) == len(texts)):
                return AtLeast(max(items))
        return Counted(tuple(items))

    def _tallies(
        self, texts: tuple[PromptText, ...], stop_at: int | None, means: Means
    ) -> Iterator[Tally]:
        for item in texts:
            tally = self.encoder.count_up_to(
                item.text, stop_at, add_special_tokens=item.add_special_tokens, means=means
            )
            if item.suffix and tally.complete:
                tally = Tally(tally.tokens + self.encoder.count(item.suffix, means=means))
            yield tally

    def _bound_all(self, texts: tuple[PromptText, ...], limit: int | None = None) -> Bounded | None:
        bounds = [self._bound(text, limit) for text in texts]
        known = [bound for bound in bounds if bound is not None]
        if len(known) < len(bounds):
            return None
        return Bounded(max(known, default=0), sum(known))

    def _bound(self, item: PromptText, limit: int | None) -> int | None:
        """Bytes where they are within the limit with the suffix's, else what is proved below."""
        suffix = self.encoder.upper_bound(item.suffix) if item.suffix else 0
        bound = self.encoder.upper_bound(
            item.text,
            limit=None if limit is None else limit - (suffix or 0),
            add_special_tokens=item.add_special_tokens,
        )
        return None if bound is None or suffix is None else bound + suffix

    def _check_ids(self, prompt: TokenIdPrompt) -> None:
        if prompt.highest_id >= self.encoder.vocab_size:
            message = f"token ids must be below the vocabulary size, {self.encoder.vocab_size}"
            raise Rejection(Kind.MALFORMED, message, param="prompt")


def _keep(prompt: Prompt, counter: PromptCounter, texts: tuple[PromptText, ...]) -> None:
    """What was rendered, for the next call of the same counter; texts as they come are no work."""
    if isinstance(prompt, ChatPrompt):
        prompt.kept.keep(counter, texts)


def _not_unicode(prompt: Prompt) -> Rejection:
    param = "messages" if isinstance(prompt, ChatPrompt) else "prompt"
    message = "the prompt holds a lone surrogate, which is no Unicode text"
    return Rejection(Kind.MALFORMED, message, param=param)
