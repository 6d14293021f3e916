"""Takes the images, sounds, videos and files out of a chat, so that its text can be counted.

Where a part was, a ``MediaMark`` stays: renderers hand templates what the engine would, and
engines that are asked for a count see a text in its place. Only the parts of users and of tools
are taken, in shapes whose meaning is known; any other stays, and is refused by the renderers.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from gateway.core.media import Kind, MediaPart
from gateway.rendering.common import Json
from gateway.types import ChatPrompt

# Printed where no template writes a placeholder of its own. The line breaks keep its neighbours
# from merging with each other, as what stands there in the engine does.
STAND_IN = "\n[media]\n"
# What of an inline image is looked at: cameras write up to some 100 kB before the size.
HEAD_CHARS = 2**18

DATA_URL = re.compile(r"data:image/[\w.+-]+;base64,", re.ASCII)
IMAGE_TYPE = re.compile(r"image/[\w.+-]+", re.ASCII)
# A part's type -> its kind, and the member that holds it (Chat Completions and Responses).
PARTS: Mapping[str, tuple[Kind, str]] = {
    "image_url": (Kind.IMAGE, "image_url"),
    "input_image": (Kind.IMAGE, "image_url"),
    "audio_url": (Kind.AUDIO, "audio_url"),
    "input_audio": (Kind.AUDIO, "input_audio"),
    "video_url": (Kind.VIDEO, "video_url"),
    "file": (Kind.FILE, "file"),
    "input_file": (Kind.FILE, "file"),
}
BLOCKS: Mapping[str, Kind] = {"image": Kind.IMAGE, "document": Kind.FILE}  # Anthropic's
# Members beside it that change no count.
PART_MEMBERS = frozenset({"type", "detail", "cache_control", "prompt_cache_breakpoint"})
SOURCE_MEMBERS = frozenset({"url", "detail", "data", "format"})
ORDINARY_DETAIL = (None, "auto", "default")
# Members of a request that change what a part costs.
OVERRIDES = (
    "fps",
    "image_data",
    "images_config",
    "images_kwargs",
    "max_dynamic_patch",
    "max_pixels",
    "media_io_kwargs",
    "min_dynamic_patch",
    "min_pixels",
    "mm_processor_kwargs",
    "multi_modal_data",
    "multi_modal_uuids",
    "use_audio_in_video",
    "video_config",
    "videos_kwargs",
)
TURNS: Mapping[str, str] = {
    "openai_chat": "messages",
    "openai_responses": "input",
    "anthropic_messages": "messages",
}
HOLDERS = frozenset({*PARTS, *BLOCKS, "tool_result"})
TOOL_OUTPUTS = ("function_call_output", "custom_tool_call_output")


class MediaMark(dict[str, Any]):
    """What stands where a part of ``kind`` was. No client can send one.

    For code that does not know it, it is a text part; in a tool's result, where engines treat
    parts by whether all of them are text, it is a part that nobody can be asked about.
    """

    __slots__ = ("kind",)

    def __init__(self, kind: Kind, text_type: str | None) -> None:
        content = {"type": str(kind)} if text_type is None else {"type": text_type}
        super().__init__(content if text_type is None else content | {"text": STAND_IN})
        self.kind = kind

    @property
    def template_part(self) -> dict[str, Any]:
        """What templates that take parts are given. They know no files."""
        if self.kind is Kind.FILE:
            return {"type": "text", "text": STAND_IN}
        return {"type": str(self.kind)}


@dataclass(frozen=True, slots=True)
class Taken:
    """A chat with marks where its parts were; ``parts`` is None where it overrides their cost."""

    prompt: ChatPrompt
    parts: tuple[MediaPart, ...] | None


def may_hold_media(prompt: ChatPrompt, most: int) -> bool:
    """Whether there may be parts to take, from a look at ``most`` messages and parts; True beyond.

    Cheap enough for every chat: texts are not looked into.
    """
    if prompt.dialect not in TURNS:
        return False
    left = most
    for turn in _list(prompt.body, TURNS[prompt.dialect]):
        parts = _list(turn, "content") or _list(turn, "output")
        left -= 1 + len(parts)
        if left < 0 or any(_type(part) in HOLDERS for part in parts):
            return True
    return False


def _list(holder: Any, member: str) -> list[Any]:
    value = holder.get(member) if isinstance(holder, dict) else None
    return value if isinstance(value, list) else []


class _Overridden(Exception):
    """A member whose effect on the count is not known."""


def take_media(prompt: ChatPrompt) -> Taken | None:
    """The parts of a chat and what is left of it; None where there are none that can be taken."""
    take = TAKES.get(prompt.dialect)
    if take is None:
        return None
    parts: list[MediaPart] = []
    try:
        body = _each(prompt.body, TURNS[prompt.dialect], take, parts)
    except _Overridden:
        return Taken(prompt, None)
    if not parts:
        return None
    if any(prompt.body.get(name) not in (None, False) for name in OVERRIDES):
        return Taken(prompt, None)
    return Taken(ChatPrompt(prompt.dialect, body), tuple(parts))


Parts = list[MediaPart]
Take = Callable[[Json, Parts], Json]


def _each(holder: Json, member: str, take: Take, parts: Parts) -> Json:
    """``holder`` with ``take`` done to the objects of a list; itself where there is no list."""
    items = holder.get(member)
    if not isinstance(items, list):
        return holder
    taken = [take(item, parts) if isinstance(item, dict) else item for item in items]
    return {**holder, member: taken}


def _chat_message(message: Json, parts: Parts) -> Json:
    role = message.get("role")
    if role == "user":
        return _each(message, "content", partial(_part, text_type="text"), parts)
    if role == "tool":
        return _each(message, "content", partial(_part, text_type=None), parts)
    return message


def _item(item: Json, parts: Parts) -> Json:
    """A Responses item."""
    kind = item.get("type", "message")
    if kind == "message" and item.get("role") == "user":
        return _each(item, "content", partial(_part, text_type="input_text"), parts)
    if kind in TOOL_OUTPUTS:
        return _each(item, "output", partial(_part, text_type=None), parts)
    return item


def _turn(turn: Json, parts: Parts) -> Json:
    """An Anthropic message. In an assistant's, engines print what they do not expect."""
    return _each(turn, "content", _block, parts) if turn.get("role") == "user" else turn


def _block(block: Json, parts: Parts) -> Json:
    if block.get("type") == "tool_result":
        return _each(block, "content", partial(_source_block, text_type=None), parts)
    return _source_block(block, parts, text_type="text")


TAKES: Mapping[str, Take] = {
    "openai_chat": _chat_message,
    "openai_responses": _item,
    "anthropic_messages": _turn,
}


def _part(part: Json, parts: Parts, *, text_type: str | None) -> Json:
    known = PARTS.get(_type(part))
    if known is None:
        return part
    kind, member = known
    if kind is not Kind.FILE:
        _only(part, PART_MEMBERS | {member})
    url, detail = _reference(part.get(member), kind)
    ordinary = part.get("detail") in ORDINARY_DETAIL and detail in ORDINARY_DETAIL
    head = _inline(url) if kind is Kind.IMAGE and ordinary else b""
    parts.append(MediaPart(kind, head, kind is Kind.FILE or _elsewhere(url)))
    return MediaMark(kind, text_type)


def _source_block(block: Json, parts: Parts, *, text_type: str | None) -> Json:
    kind = BLOCKS.get(_type(block))
    if kind is None:
        return block
    if kind is Kind.IMAGE:
        _only(block, PART_MEMBERS | {"source"})
        parts.append(_source(block.get("source")))
    else:
        parts.append(MediaPart(kind, elsewhere=True))
    return MediaMark(kind, text_type)


def _type(part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    return kind if isinstance(kind, str) else ""


def _only(holder: Json, members: frozenset[str]) -> None:
    if not holder.keys() <= members:
        raise _Overridden


def _reference(value: Any, kind: Kind) -> tuple[str, Any]:
    """A part's URL, empty where it is another kind of reference, and the detail asked for."""
    if kind is Kind.FILE:
        return "", None
    if isinstance(value, str):
        return value, None
    if not isinstance(value, dict):
        raise _Overridden
    _only(value, SOURCE_MEMBERS)
    url = value.get("url", "")
    if not isinstance(url, str):
        raise _Overridden
    return url, value.get("detail")


def _source(source: Any) -> MediaPart:
    """An Anthropic image. Engines read other shapes than these each in its own way."""
    given = source if isinstance(source, dict) else {}
    if not all(isinstance(value, str) for value in given.values()):
        raise _Overridden
    if given.keys() == {"type", "url"} and given["type"] == "url":
        return MediaPart(Kind.IMAGE, _inline(given["url"]), _elsewhere(given["url"]))
    if given.keys() != {"type", "media_type", "data"} or given["type"] != "base64":
        raise _Overridden
    known = IMAGE_TYPE.fullmatch(given["media_type"])
    return MediaPart(Kind.IMAGE, _decoded(given["data"]) if known else b"")


def _elsewhere(url: str) -> bool:
    return bool(url) and not url.startswith("data:")


def _inline(url: str) -> bytes:
    """The first bytes of a data URL's image; none of any other URL, which is never fetched."""
    found = DATA_URL.match(url)
    return _decoded(url[found.end() : found.end() + HEAD_CHARS]) if found else b""


def _decoded(text: str) -> bytes:
    """Base64 as strictly as engines take it; nothing where it is not."""
    whole = text[: min(len(text), HEAD_CHARS) // 4 * 4]
    try:
        return base64.b64decode(whole, validate=True)
    except ValueError:
        return b""
