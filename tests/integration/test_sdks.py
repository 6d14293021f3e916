"""The official SDKs work unchanged, and see their own BadRequestError with both numbers."""

from __future__ import annotations

import anthropic
import openai
import pytest

from integration.conftest import gateway_and_engine

LONG = "word " * 9000


@pytest.fixture
async def live():
    async with gateway_and_engine() as running_gateway:
        yield running_gateway


@pytest.fixture
async def client(live):
    async with openai.AsyncOpenAI(base_url=live.url + "/v1", api_key="any", max_retries=0) as sdk:
        yield sdk


@pytest.fixture
async def claude(live):
    async with anthropic.AsyncAnthropic(base_url=live.url, api_key="any", max_retries=0) as sdk:
        yield sdk


def numbers_readable(error, limit):
    """Both integers in the message a user sees."""
    digits = "".join(c if c.isdigit() else " " for c in str(error)).split()
    assert str(limit) in digits
    assert any(int(number) > limit for number in digits if len(number) < 8)
    return True


async def test_openai_chat(client):
    answer = await client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "hello"}], max_tokens=8
    )
    assert answer.choices[0].finish_reason in ("length", "stop")
    assert answer.usage.prompt_tokens > 0


async def test_openai_chat_stream_has_usage_only_where_asked(client):
    async def collect(**more):
        stream = await client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": "hello"}],
            max_tokens=8,
            stream=True,
            **more,
        )
        return [chunk async for chunk in stream]

    plain = await collect()
    assert all(chunk.usage is None and chunk.choices for chunk in plain)
    asked = await collect(stream_options={"include_usage": True})
    assert asked[-1].usage.prompt_tokens > 0
    assert asked[-1].choices == []


@pytest.mark.parametrize("stream", [True, False])
async def test_openai_raises_its_own_bad_request(client, live, stream):
    limit = live.app.generation.runtime.backends[0].capacity().tokens
    with pytest.raises(openai.BadRequestError) as chat:
        await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": LONG}], stream=stream
        )
    with pytest.raises(openai.BadRequestError) as completions:
        await client.completions.create(model="m", prompt=LONG, stream=stream)
    with pytest.raises(openai.BadRequestError) as responses:
        await client.responses.create(model="m", input=LONG, stream=stream)
    for error in (chat.value, completions.value, responses.value):
        assert error.code == "context_length_exceeded"
        assert error.type == "invalid_request_error"
        assert "maximum context length is" in str(error)
        assert numbers_readable(error, limit)
    params = (chat.value.param, completions.value.param, responses.value.param)
    assert params == ("messages", "prompt", "input")


async def test_openai_completions_batches_and_token_ids(client):
    batch = await client.completions.create(model="m", prompt=["a b", "c"], max_tokens=4)
    assert len(batch.choices) == 2
    ids = await client.completions.create(model="m", prompt=[5, 6, 7], max_tokens=4)
    assert ids.usage.prompt_tokens == 3
    stream = await client.completions.create(model="m", prompt="a b", max_tokens=4, stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream])


async def test_openai_responses(client):
    answer = await client.responses.create(model="m", input="hello", max_output_tokens=8)
    assert answer.usage.input_tokens > 0
    stream = await client.responses.create(
        model="m", input="hello", max_output_tokens=8, stream=True
    )
    kinds = [event.type async for event in stream]
    assert kinds[0] == "response.created"
    assert kinds[-1] in ("response.completed", "response.incomplete")


async def test_openai_embeddings_and_models(client, live):
    answer = await client.embeddings.create(model="m", input=["a", "b c"])
    assert len(answer.data) == 2
    with pytest.raises(openai.BadRequestError) as error:
        await client.embeddings.create(model="m", input=LONG)
    assert error.value.param == "input"
    models = [model.id async for model in client.models.list()]
    assert models == ["poolgate-sim"]


async def test_anthropic_messages(claude):
    answer = await claude.messages.create(
        model="m", messages=[{"role": "user", "content": "hello"}], max_tokens=8
    )
    assert answer.usage.input_tokens > 0
    async with claude.messages.stream(
        model="m", messages=[{"role": "user", "content": "hello"}], max_tokens=8
    ) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        final = await stream.get_final_message()
    assert text == final.content[0].text


@pytest.mark.parametrize("stream", [True, False])
async def test_anthropic_raises_its_own_bad_request(claude, live, stream):
    limit = live.app.generation.runtime.backends[0].capacity().tokens
    with pytest.raises(anthropic.BadRequestError) as error:
        await claude.messages.create(
            model="m", messages=[{"role": "user", "content": LONG}], max_tokens=8, stream=stream
        )
    message = error.value.body["error"]["message"]
    assert message.startswith("prompt is too long: ")
    assert message.endswith(f" > {limit} maximum")
    assert numbers_readable(error.value, limit)


async def test_anthropic_counts_tokens_through_the_gateway(claude):
    count = await claude.messages.count_tokens(
        model="m", messages=[{"role": "user", "content": "hello"}]
    )
    assert count.input_tokens > 0


async def test_the_engine_saw_none_of_the_long_prompts(client, claude, live):
    before = len(live.engine.counters.prompt_lengths)
    for call in (
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": LONG}]),
        client.completions.create(model="m", prompt=LONG),
        claude.messages.create(
            model="m", messages=[{"role": "user", "content": LONG}], max_tokens=8
        ),
    ):
        with pytest.raises((openai.BadRequestError, anthropic.BadRequestError)):
            await call
    assert len(live.engine.counters.prompt_lengths) == before
