from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from assets_at_hand import TINY, counter, template, whole_count
from gateway.errors import Kind, Rejection
from gateway.rendering.common import Templates
from gateway.rendering.registry import EngineRendering
from gateway.tokens.counter import PromptCounter
from gateway.tokens.encoder import Growth, Means, UncountableText
from gateway.tokens.recall import CountCache, NeedsPatience
from gateway.types import (
    AtLeast,
    Bounded,
    ChatPrompt,
    Counted,
    OpaquePrompt,
    TemplateCall,
    TextPrompt,
    TokenIdPrompt,
    Unverifiable,
)

LONG = "some words to count\n" * 20_000


def chat(content: Any = "hi", **more: Any) -> ChatPrompt:
    return ChatPrompt("openai_chat", {"messages": [{"role": "user", "content": content}], **more})


def test_text_and_batch() -> None:
    assert counter().count(TextPrompt(("one two",))) == Counted((whole_count(TINY, "one two"),))
    lengths = tuple(whole_count(TINY, text) for text in ("a", "", "one two"))
    assert counter().count(TextPrompt(("a", "", "one two"))) == Counted(lengths)
    assert counter().count(TextPrompt(())) == Counted(())


def test_chat_is_the_rendered_text() -> None:
    text = template().render(TemplateCall([{"role": "user", "content": "hi"}]))
    assert counter().count(chat()) == Counted((whole_count(TINY, text),))


@pytest.mark.parametrize("field", ["content", "system", "name", "tool result"])
def test_special_token_text_is_counted_in_every_field(field: str) -> None:
    """Case row 13: never a failure, whichever field spells a special token."""
    text = "what is <|endoftext|> and <|im_end|>?"
    user: dict[str, Any] = {"role": "user", "content": "q"}
    messages: list[dict[str, Any]] = {
        "content": [{**user, "content": text}],
        "system": [{"role": "system", "content": text}, user],
        "name": [{**user, "name": text}],
        "tool result": [user, {"role": "tool", "tool_call_id": "1", "content": text}],
    }[field]
    for engine in ("vllm", "sglang"):
        prompt = ChatPrompt("openai_chat", {"messages": messages})
        assert isinstance(counter(engine=engine).count(prompt), Counted)


def test_counting_stops_once_the_limit_is_passed() -> None:
    exact = whole_count(TINY, LONG)
    answer = counter().count(TextPrompt((LONG,)), stop_at=1000)
    assert isinstance(answer, AtLeast)
    assert 1000 < answer.longest < exact
    assert counter().count(TextPrompt((LONG,)), stop_at=exact) == Counted((exact,))
    over = counter().count(TextPrompt((LONG,)), stop_at=exact - 1)
    assert over == Counted((exact,)) or isinstance(over, AtLeast)


def test_batch_stops_at_its_first_long_item() -> None:
    answer = counter().count(TextPrompt(("one two three", LONG, "four")), stop_at=2)
    assert isinstance(answer, AtLeast)
    assert answer.longest == whole_count(TINY, "one two three")


def test_bounds_hold_and_need_no_tokenizer() -> None:
    def never(_text: str) -> int:
        raise AssertionError

    one = counter()
    blind = dataclasses.replace(one, encoder=dataclasses.replace(one.encoder, length=never))
    for prompt in (TextPrompt(("a", LONG)), chat(), chat("中文 e\u0301")):
        bound, exact = blind.bound(prompt), one.count(prompt)
        assert isinstance(bound, Bounded)
        assert isinstance(exact, Counted)
        assert exact.longest <= bound.longest
        assert exact.total <= bound.total


def test_measuring_bounds_what_fits_anyway_and_counts_the_rest() -> None:
    exact = counter().count(TextPrompt((LONG,)))
    bound = counter().bound(TextPrompt((LONG,)))
    assert isinstance(exact, Counted)
    assert isinstance(bound, Bounded)
    assert counter().measure(TextPrompt((LONG,)), None) == bound
    assert counter().measure(TextPrompt((LONG,)), bound.longest) == bound
    for limit in (bound.longest - 1, exact.longest):
        assert counter().measure(TextPrompt((LONG,)), limit) == exact
    over = counter().measure(TextPrompt((LONG, "x")), exact.longest - 1)
    assert isinstance(over, AtLeast)
    assert over.longest >= exact.longest
    assert counter().measure(TokenIdPrompt((3, 4), 5), 3) == Counted((3, 4))
    assert counter().measure(OpaquePrompt("image"), 3) == Unverifiable("image")


def counting_renders(one: PromptCounter) -> tuple[PromptCounter, list[None]]:
    """The same counter, and a list that is as long as it has rendered prompts."""
    rendered: list[None] = []

    def render(prompt: ChatPrompt, templates: Templates) -> TemplateCall | OpaquePrompt:
        rendered.append(None)
        return one.rendering.render(prompt, templates)

    rendering = dataclasses.replace(one.rendering, render=render)
    return dataclasses.replace(one, rendering=rendering), rendered


@pytest.mark.parametrize("bounding", ["glance", "measure"])
def test_what_was_rendered_for_the_bound_is_counted_and_let_go(bounding: str) -> None:
    one, rendered = counting_renders(counter())
    prompt = chat(LONG)
    bounds = [
        one.glance(prompt) if bounding == "glance" else one.measure(prompt, None) for _ in range(2)
    ]
    assert bounds[0] == bounds[1]
    assert one.count(prompt) == counter().count(chat(LONG))
    assert len(rendered) == 1
    assert prompt == chat(LONG)  # with nothing kept
    assert one.count(prompt) == counter().count(chat(LONG))
    assert len(rendered) == 2


def test_one_counter_does_not_count_what_another_rendered() -> None:
    prompt = chat(LONG)
    counter(engine="vllm").glance(prompt)
    one, rendered = counting_renders(counter(engine="sglang"))
    assert one.count(prompt) == counter(engine="sglang").count(chat(LONG))
    assert len(rendered) == 1


def test_a_count_that_is_begun_again_with_more_patience_renders_once() -> None:
    one, rendered = counting_renders(counter())
    prompt, recall = chat(LONG), CountCache(2**20, b"secret").of_tenant("a", fresh=10)
    with pytest.raises(NeedsPatience):
        one.count(prompt, None, Means(recall))
    assert one.count(prompt) == counter().count(chat(LONG))
    assert len(rendered) == 1


def test_no_bound_where_none_is_proved() -> None:
    one = counter()
    unsure = dataclasses.replace(
        one, encoder=dataclasses.replace(one.encoder, growth=Growth.UNKNOWN)
    )
    assert unsure.bound(TextPrompt(("a",))) is None
    assert one.bound(OpaquePrompt("image")) is None


def test_token_ids_are_exact() -> None:
    prompt = TokenIdPrompt(lengths=(3, 5), highest_id=7)
    assert counter().count(prompt) == Counted((3, 5))
    assert counter().bound(prompt) == Bounded(5, 8)


def test_ids_beyond_the_vocabulary_are_refused() -> None:
    size = counter().encoder.vocab_size
    counter().count(TokenIdPrompt((1,), size - 1))
    for ask in (counter().count, counter().bound):
        with pytest.raises(Rejection) as caught:
            ask(TokenIdPrompt((1,), size))
        assert caught.value.kind is Kind.MALFORMED
        assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    ("prompt", "param"),
    [(TextPrompt(("a\ud800",)), "prompt"), (chat("a\ud800"), "messages")],
)
def test_lone_surrogate_is_a_clear_refusal(prompt: Any, param: str) -> None:
    with pytest.raises(Rejection) as caught:
        counter().count(prompt)
    assert caught.value.kind is Kind.MALFORMED
    assert caught.value.param == param
    assert counter().bound(prompt) is None


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        (OpaquePrompt("server_history"), "server_history"),
        (chat([{"type": "image_url", "image_url": {"url": "data:,"}}]), "image"),
        (chat(chat_template="x"), "request_template"),
    ],
)
def test_what_cannot_be_counted_says_why(prompt: Any, reason: str) -> None:
    assert counter().count(prompt) == Unverifiable(reason, transient=False)


def test_chat_without_a_template_cannot_be_counted() -> None:
    bare = counter(with_template=False)
    assert bare.count(chat()) == Unverifiable("no_template", transient=False)
    assert isinstance(bare.count(TextPrompt(("a",))), Counted)


def test_template_refusal_is_a_value() -> None:
    def refuses(**_arguments: object) -> Any:
        raise ValueError

    one = counter()
    assert one.template is not None
    broken = dataclasses.replace(
        one, template=dataclasses.replace(one.template, rules=refuses, shortcuts={})
    )
    assert broken.count(chat()) == Unverifiable("template_refused", transient=False)


def test_text_the_library_cannot_take_is_a_value() -> None:
    def fails(_text: str) -> int:
        raise UncountableText("run_too_long")

    one = counter()
    broken = dataclasses.replace(one, encoder=dataclasses.replace(one.encoder, length=fails))
    assert broken.count(chat()) == Unverifiable("run_too_long", transient=False)


def test_completions_follow_the_engine_on_special_tokens() -> None:
    """Case row 15: BOS on plain prompts by default, not on chats; SGLang ignores the field."""
    for engine, without in (("vllm", 1), ("sglang", 4), ("llama_cpp", 4)):
        one = counter(engine=engine)
        one = dataclasses.replace(one, encoder=dataclasses.replace(one.encoder, added_per_text=3))
        assert one.count(TextPrompt(("a",))) == Counted((4,))
        assert one.count(TextPrompt(("a",), add_special_tokens=True)) == Counted((4,))
        assert one.count(TextPrompt(("a",), add_special_tokens=False)) == Counted((without,))


def test_suffix_is_tokenised_apart() -> None:
    """SGLang appends a continued message's own tokens to the rendered prompt's."""
    begun = {"role": "assistant", "content": "user\nbegun"}
    body = {"messages": [{"role": "user", "content": "q"}, begun], "continue_final_message": True}
    prompt = ChatPrompt("openai_chat", body)
    head = template().render(TemplateCall([{"role": "user", "content": "q"}]))
    expected = whole_count(TINY, head) + whole_count(TINY, "user\nbegun")
    one = counter(engine="sglang")
    assert one.count(prompt) == Counted((expected,))
    bound = one.bound(prompt)
    assert bound is not None
    assert bound.longest >= expected


def test_llama_cpp_does_not_normalise() -> None:
    prompt = TextPrompt(("e\u0301" * 9,))
    plain, normalised = counter(engine="llama_cpp").count(prompt), counter().count(prompt)
    assert isinstance(plain, Counted)
    assert isinstance(normalised, Counted)
    assert plain.total > normalised.total


@pytest.mark.parametrize(
    "messages",
    [[], [{"role": "user"}], [{"role": "user", "content": None}],
     [{"role": "wizard", "content": "a"}],
     [{"role": "user", "content": []}], [{"role": "user", "content": 5}],
     [{"role": "assistant", "content": None, "tool_calls": []}],
     [{"role": "system", "content": "a"}, {"role": "system", "content": "b"}]],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama_cpp", "openai"])
def test_odd_messages_are_counted_or_refused_never_a_crash(engine: str, messages: Any) -> None:
    """Case row 22."""
    answer = counter(engine=engine).count(ChatPrompt("openai_chat", {"messages": messages}))
    assert isinstance(answer, Counted | Unverifiable)


def test_a_tail_is_counted_with_the_text_before_it() -> None:
    """One text: apart they would be two tokens or more."""

    def tailed(prompt: ChatPrompt, templates: Templates) -> TemplateCall:
        call = TemplateCall([{"role": "user", "content": "hi"}], add_generation_prompt=True)
        return msgspec.structs.replace(call, tail="assistant continues")

    one = counter()
    tail = dataclasses.replace(one, rendering=EngineRendering(tailed))
    text = template().render(TemplateCall([{"role": "user", "content": "hi"}]))
    together = whole_count(TINY, text + "assistant continues")
    assert tail.count(chat()) == Counted((together,))
