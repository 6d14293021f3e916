"""What is taken out of a chat, what stays in its place, and what leaves it without a bound."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.core.media import Kind, MediaPart
from gateway.engines.asking import shows_media
from gateway.rendering import sglang, vllm
from gateway.rendering.common import Templates, TemplateTraits
from gateway.rendering.media import (
    HEAD_CHARS,
    OVERRIDES,
    STAND_IN,
    MediaMark,
    may_hold_media,
    take_media,
)
from gateway.types import ChatPrompt, OpaquePrompt, TemplateCall

PNG = (Path(__file__).parents[2] / "data/images/plain-64x48.png").read_bytes()
BASE64 = base64.b64encode(PNG).decode()
INLINE = f"data:image/png;base64,{BASE64}"
REMOTE = "https://example.com/cat.png"
TEXT = {"type": "text", "text": "What is this?"}


def image(url: Any = INLINE, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}, **more}


def block(data: str = BASE64, **more: Any) -> dict[str, Any]:
    source = {"type": "base64", "media_type": "image/png", "data": data}
    return {"type": "image", "source": source | more}


def chat(*parts: Any, role: str = "user", **body: Any) -> ChatPrompt:
    message = {"role": role, "content": list(parts)}
    return ChatPrompt("openai_chat", {"messages": [message], **body})


def responses(*items: Any) -> ChatPrompt:
    return ChatPrompt("openai_responses", {"input": list(items)})


def anthropic(*blocks: Any, role: str = "user") -> ChatPrompt:
    return ChatPrompt("anthropic_messages", {"messages": [{"role": role, "content": list(blocks)}]})


def tool_result(*blocks: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "t", "content": list(blocks)}


def user_item(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


INPUT_IMAGE = {"type": "input_image", "image_url": INLINE}


# --- what is taken ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "prompt",
    [
        chat(TEXT, image()),
        chat(image(), role="tool"),
        chat({"type": "input_image", "image_url": INLINE, "detail": "auto"}),
        responses(user_item(INPUT_IMAGE)),
        responses({"type": "message", **user_item(INPUT_IMAGE)}),
        responses({"type": "function_call_output", "call_id": "c", "output": [INPUT_IMAGE]}),
        anthropic(block()),
        anthropic({"type": "image", "source": {"type": "url", "url": INLINE}}),
        anthropic(tool_result(block())),
    ],
)
def test_an_inline_image_is_taken_with_its_first_bytes(prompt: ChatPrompt) -> None:
    assert may_hold_media(prompt, 99)
    before = json.dumps(prompt.body)
    taken = take_media(prompt)
    assert taken is not None
    assert taken.parts == (MediaPart(Kind.IMAGE, PNG),)
    assert BASE64 not in json.dumps(taken.prompt.body)
    assert json.dumps(prompt.body) == before


@pytest.mark.parametrize(
    ("part", "kind", "elsewhere"),
    [
        (image(REMOTE), Kind.IMAGE, True),
        (image("file:///etc/passwd"), Kind.IMAGE, True),
        (image(BASE64), Kind.IMAGE, True),
        (image("data:image/png;base64,not base64"), Kind.IMAGE, False),
        (image(f"data:image/png,{BASE64}"), Kind.IMAGE, False),
        (image(f"data:x;base64,AAAA#image/png;base64,{BASE64}"), Kind.IMAGE, False),
        ({"type": "image_url", "image_url": {"url": INLINE, "detail": "high"}}, Kind.IMAGE, False),
        ({"type": "audio_url", "audio_url": {"url": REMOTE}}, Kind.AUDIO, True),
        (
            {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}},
            Kind.AUDIO,
            False,
        ),
        ({"type": "video_url", "video_url": {"url": REMOTE}}, Kind.VIDEO, True),
        ({"type": "file", "file": {"file_data": "AAAA"}}, Kind.FILE, True),
    ],
)
def test_other_parts_are_taken_without_bytes(
    part: dict[str, Any], kind: Kind, elsewhere: bool
) -> None:
    prompt = chat(TEXT, part)
    taken = take_media(prompt)
    assert taken is not None
    assert taken.parts == (MediaPart(kind, b"", elsewhere),)
    assert may_hold_media(prompt, 99)


def test_an_anthropic_url_is_elsewhere_and_a_document_too() -> None:
    url = {"type": "image", "source": {"type": "url", "url": REMOTE}}
    taken = take_media(anthropic(url, {"type": "document", "source": {"type": "text"}}))
    assert taken is not None
    assert taken.parts == (
        MediaPart(Kind.IMAGE, elsewhere=True),
        MediaPart(Kind.FILE, elsewhere=True),
    )


def test_only_the_beginning_of_an_image_is_decoded() -> None:
    taken = take_media(chat(image(INLINE.rstrip("=") + "A" * 3 * HEAD_CHARS)))
    assert taken is not None
    [part] = taken.parts or ()
    assert part.head.startswith(PNG[:-3])
    assert len(part.head) == HEAD_CHARS // 4 * 3


@pytest.mark.parametrize("media_type", ["image/png;base64,AAAA#", "a", "image/png,"])
def test_a_media_type_that_smuggles_has_no_bytes(media_type: str) -> None:
    taken = take_media(anthropic(block(media_type=media_type)))
    assert taken is not None
    assert taken.parts == (MediaPart(Kind.IMAGE),)


@pytest.mark.parametrize(
    "prompt",
    [
        chat(TEXT),
        ChatPrompt("openai_chat", {"messages": [{"role": "user", "content": "image_url"}]}),
        ChatPrompt("openai_chat", {"messages": "image"}),
        ChatPrompt("openai_chat", {}),
        ChatPrompt("openai_chat", {"messages": [1, {"role": "user", "content": [2]}]}),
        ChatPrompt("unheard_of", {"messages": [user_item(image())]}),
        # Not where users and tools put parts: left for the renderers to refuse.
        chat(image(), role="assistant"),
        chat(image(), role="system"),
        chat({"image_url": INLINE}),
        chat({"type": "image_embeds", "image_embeds": "AAAA"}),
        chat({"type": "prompt_embeds", "data": "AAAA"}),
        anthropic(tool_result(block()), role="assistant"),
        responses({"type": "computer_call_output", "output": INPUT_IMAGE}),
    ],
)
def test_the_rest_stays_as_it_is(prompt: ChatPrompt) -> None:
    assert take_media(prompt) is None


def test_a_look_ends_after_so_many_messages_and_parts() -> None:
    assert not may_hold_media(chat(TEXT, TEXT), 3)
    assert may_hold_media(chat(TEXT, TEXT), 2)
    assert not may_hold_media(ChatPrompt("unheard_of", {"": [user_item(image())]}), 3)
    for body in ({}, {"messages": "image"}, {"messages": [1, {"content": [2, {"type": []}]}]}):
        assert not may_hold_media(ChatPrompt("openai_chat", body), 9)


# --- what overrides a part's cost -------------------------------------------------------------


@pytest.mark.parametrize("name", OVERRIDES)
def test_a_request_that_overrides_the_processor_has_no_bound(name: str) -> None:
    taken = take_media(chat(image(), **{name: {"max_pixels": 9}}))
    assert taken is not None
    assert taken.parts is None
    assert take_media(chat(TEXT, **{name: {"max_pixels": 9}})) is None
    unset = take_media(chat(image(), **{name: None}))
    assert unset is not None
    assert unset.parts


@pytest.mark.parametrize(
    "part",
    [
        image(max_pixels=9),
        image(uuid="u"),
        image(modalities="video"),
        {"type": "image_url", "image_url": {"url": INLINE, "max_dynamic_patch": 40}},
        {"type": "image_url", "image_url": {"url": INLINE, "content_hash": "h"}},
        {"type": "image_url", "image_url": None},
        {"type": "image_url", "image_url": {"url": 5}},
        {"type": "video_url", "video_url": {"url": REMOTE, "fps": 60}},
    ],
)
def test_a_part_that_overrides_its_cost_has_no_bound(part: dict[str, Any]) -> None:
    taken = take_media(chat(TEXT, part))
    assert taken is not None
    assert taken.parts is None


@pytest.mark.parametrize(
    "source",
    [
        {"type": "base64", "media_type": "image/png", "data": BASE64, "url": REMOTE},
        {"type": "file", "file_id": "f"},
        {"type": "url", "url": REMOTE, "data": BASE64},
        {"type": "base64", "media_type": "image/png", "data": None},
        None,
    ],
)
def test_a_source_of_two_meanings_has_no_bound(source: Any) -> None:
    taken = take_media(anthropic({"type": "image", "source": source}))
    assert taken is not None
    assert taken.parts is None


# --- what stands in its place -----------------------------------------------------------------

PARTS = Templates(
    TemplateTraits(
        "{% for part in message.content %}image{% endfor %}",
        iterates_content=True,
        content_loop_names=frozenset({"message"}),
    )
)
STRING = Templates(TemplateTraits("{{ message.content }}"))


def rendered(render: Any, prompt: ChatPrompt, templates: Templates) -> list[dict[str, Any]]:
    taken = take_media(prompt)
    assert taken is not None
    call = render(taken.prompt, templates)
    assert isinstance(call, TemplateCall), call
    return [{name: m[name] for name in ("role", "content")} for m in call.messages]


@pytest.mark.parametrize("engine", [vllm, sglang])
def test_templates_that_take_parts_are_given_the_engines(engine: Any) -> None:
    content = [TEXT, {"type": "image"}]
    for prompt in (chat(TEXT, image()), anthropic(TEXT, block())):
        assert rendered(engine.render, prompt, PARTS) == [{"role": "user", "content": content}]
    item = user_item({"type": "input_text", "text": TEXT["text"]}, INPUT_IMAGE)
    assert rendered(engine.render, responses(item), PARTS)[0]["content"] == content
    alone = [{"role": "user", "content": [{"type": "image"}]}]
    assert rendered(engine.render, chat(image()), PARTS) == alone
    assert rendered(engine.render, anthropic(block()), PARTS) == alone


@pytest.mark.parametrize("engine", [vllm, sglang])
def test_a_tools_parts_stay_parts(engine: Any) -> None:
    [message] = rendered(engine.render, chat(TEXT, image(), role="tool"), PARTS)
    assert message["content"] == [TEXT, {"type": "image"}]


def test_vllm_gives_a_tools_images_to_a_user() -> None:
    messages = rendered(vllm.render, anthropic(tool_result(TEXT, block())), PARTS)
    assert messages == [
        {"role": "tool", "content": TEXT["text"]},
        {"role": "user", "content": [{"type": "image"}]},
    ]


def test_sglang_leaves_a_tools_images_with_the_tool() -> None:
    messages = rendered(sglang.render, anthropic(tool_result(TEXT, block())), PARTS)
    assert messages == [{"role": "tool", "content": [TEXT, {"type": "image"}]}]


def test_sglang_drops_images_of_a_responses_tool() -> None:
    output = {"type": "function_call_output", "call_id": "c", "output": [INPUT_IMAGE, TEXT]}
    assert rendered(sglang.render, responses(output), PARTS)[0]["content"] == TEXT["text"]


def test_templates_that_take_strings_print_a_text_for_it() -> None:
    assert rendered(vllm.render, chat(image(), TEXT), STRING)[0]["content"] == (
        f"{STAND_IN}\n{TEXT['text']}"
    )
    assert rendered(vllm.render, chat(image()), STRING)[0]["content"] == STAND_IN
    assert rendered(sglang.render, chat(image(), TEXT), STRING)[0]["content"] == TEXT["text"]


def test_an_engine_is_asked_with_a_text_but_never_about_a_tools_part() -> None:
    users, tools = take_media(chat(TEXT, image())), take_media(chat(image(), role="tool"))
    assert users is not None
    assert tools is not None
    assert not shows_media(users.prompt.body)
    assert shows_media(tools.prompt.body)
    for encoded in (json.dumps(users.prompt.body), msgspec.json.encode(users.prompt.body)):
        content = json.loads(encoded)["messages"][0]["content"]
        assert content == [TEXT, {"type": "text", "text": STAND_IN}]


def test_no_client_can_send_a_mark() -> None:
    mark = MediaMark(Kind.IMAGE, "text")
    sent = json.loads(json.dumps(mark))
    assert sent == mark
    assert rendered(vllm.render, chat(sent, image()), PARTS)[0]["content"] == [
        {"type": "text", "text": STAND_IN},
        {"type": "image"},
    ]


def test_media_elsewhere_is_refused_as_ever() -> None:
    body = {"messages": [user_item(image()), {"role": "assistant", "content": [image()]}]}
    taken = take_media(ChatPrompt("openai_chat", body))
    assert taken is not None
    for engine in (vllm, sglang):
        assert engine.render(taken.prompt, PARTS) == OpaquePrompt("image")
