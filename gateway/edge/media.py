"""Bounds for prompts that hold images, sounds, videos or files.

No tokenizer counts those. Their text is measured without them, against a limit from which the
most they can become has been taken; the two together are a bound. A text that then is over proves
nothing about the whole, so such a prompt has the operator's answer for what cannot be counted.
"""

from __future__ import annotations

from msgspec.structs import replace

from gateway.core.media import Rules, bound
from gateway.edge.counting import Measurer, Threads
from gateway.rendering.media import Taken, may_hold_media, take_media
from gateway.types import Bounded, ChatPrompt, Counted, ParsedRequest, PromptLength, Unverifiable

OVER_BOUND = "media_over_bound"
# Messages and parts looked at on the loop, some 0.2 ms: a chat of more is looked at on a thread.
LOOKED_AT = 2000


class MediaMeasurer:
    """Another measurer, with bounds for chats whose parts the operator's rules know.

    Every other prompt is the other measurer's affair, and so is the exact count: there is none.
    """

    def __init__(self, inner: Measurer, rules: Rules, threads: Threads) -> None:
        self._inner = inner
        self._rules = rules
        self._threads = threads

    async def measure(self, request: ParsedRequest, limit: int | None, tenant: str) -> PromptLength:
        """A bound of text and media where that is within ``limit``; a chat without media as ever.

        Raises ``Rejection`` as the other measurer does.
        """
        taken = await self._taken(request)
        media = bound(taken.parts, self._rules) if taken and taken.parts else None
        if taken is None or media is None:
            return await self._inner.measure(request, limit, tenant)
        room = None if limit is None else limit - media
        if room is not None and room < 0:
            return Unverifiable(OVER_BOUND)
        text = await self._inner.measure(replace(request, prompt=taken.prompt), room, tenant)
        return _with_media(text, media, room)

    async def exact(self, request: ParsedRequest, tenant: str) -> PromptLength:
        """As the other measurer: a prompt with media has none."""
        return await self._inner.exact(request, tenant)

    async def _taken(self, request: ParsedRequest) -> Taken | None:
        """The media of a chat; on a thread where the body is large and may hold some."""
        prompt = request.prompt
        if not isinstance(prompt, ChatPrompt) or not may_hold_media(prompt, LOOKED_AT):
            return None
        if len(request.raw) <= self._threads.inline_bytes:
            return take_media(prompt)
        return await self._threads.on_thread(lambda: take_media(prompt))


def _with_media(text: PromptLength, media: int, room: int | None) -> PromptLength:
    if isinstance(text, Unverifiable):
        return text
    if isinstance(text, Counted | Bounded) and (room is None or text.longest <= room):
        return Bounded(text.longest + media, text.total + media)
    return Unverifiable(OVER_BOUND)
