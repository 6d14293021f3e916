"""The official SDKs work through the gateway on every engine, and see their own error past it."""

from __future__ import annotations

import anthropic
import openai
import pytest

from engines import live

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture
def too_long(pair):
    """A text over the limit by one token at least, whatever is around it."""
    return "x" + " apple" * pair.limit


async def test_openai_sdk(pair, too_long):
    async with openai.AsyncOpenAI(
        base_url=pair.url + "/v1", api_key="any", max_retries=0
    ) as client:
        chat = await client.chat.completions.create(model=live.MODEL, messages=HELLO, max_tokens=2)
        assert chat.usage.prompt_tokens == 9
        stream = await client.chat.completions.create(
            model=live.MODEL, messages=HELLO, max_tokens=2, stream=True
        )
        assert [chunk async for chunk in stream][-1].usage is None  # nobody asked for it
        text = await client.completions.create(model=live.MODEL, prompt="one two", max_tokens=2)
        assert text.usage.prompt_tokens == 2
        answer = await client.responses.create(model=live.MODEL, input="hello", max_output_tokens=4)
        assert answer.usage.input_tokens == 9
        for call in (
            client.chat.completions.create(
                model=live.MODEL, messages=[{"role": "user", "content": too_long}]
            ),
            client.completions.create(model=live.MODEL, prompt=too_long),
            client.responses.create(model=live.MODEL, input=too_long),
        ):
            with pytest.raises(openai.BadRequestError) as error:
                await call
            assert error.value.code == "context_length_exceeded"
            assert f"maximum context length is {pair.limit} tokens" in str(error.value)


async def test_openai_sdk_at_the_limit_and_past_it(pair):
    async with openai.AsyncOpenAI(
        base_url=pair.url + "/v1", api_key="any", max_retries=0
    ) as client:
        fits = await client.completions.create(
            model=live.MODEL, prompt=[23268] * pair.limit, max_tokens=1
        )
        assert fits.usage.prompt_tokens == pair.limit
        before = pair.tap.to_engine
        with pytest.raises(openai.BadRequestError):
            await client.completions.create(
                model=live.MODEL, prompt=[23268] * (pair.limit + 1), max_tokens=1
            )
        assert pair.tap.to_engine == before


async def test_anthropic_sdk(pair, too_long):
    async with anthropic.AsyncAnthropic(base_url=pair.url, api_key="any", max_retries=0) as client:
        answer = await client.messages.create(model=live.MODEL, messages=HELLO, max_tokens=2)
        usage = answer.usage
        assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == 9
        async with client.messages.stream(model=live.MODEL, messages=HELLO, max_tokens=2) as stream:
            final = await stream.get_final_message()
        assert final.stop_reason == "max_tokens"
        with pytest.raises(anthropic.BadRequestError) as error:
            await client.messages.create(
                model=live.MODEL,
                messages=[{"role": "user", "content": too_long}],
                max_tokens=2,
            )
        message = error.value.body["error"]["message"]
        assert message.startswith("prompt is too long: ")
        assert message.endswith(f" tokens > {pair.limit} maximum")
