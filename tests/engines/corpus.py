"""Varied requests from a seed: whatever clients send that changes what an engine tokenises.

Each one asks for as few tokens as engines grant. Not every engine takes every one; what an engine
refuses is of no use to the comparison of counts and is drawn again.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

Body = dict[str, Any]

PROSE = (
    "The harbour pilots meet at seven and the mill opens later in winter. ",
    "Please summarise the following report in three sentences, without lists. ",
    "Der Fluß führt Hochwasser; die Schleusen bleiben geschlossen. ",
    "Où est la bibliothèque ? Elle n'ouvre qu'à 9 h 30. ",
)
CODE = (
    "def f(x: int) -> int:\n    return x ** 2  # square\n",
    '{"a": [1, 2.50, null], "b": {"c": "d\\n"}}',
    "SELECT a, b FROM t WHERE a <> 'x' AND b >= 10;\n\n\n",
    '<div class="a">&amp; &lt;b&gt;</div>',
    "```python\nprint('hi')\n```\n",
)
CJK = (
    "東京都の天気は晴れです。",
    "今天的会议改到下午三点。",
    "한국어 문장입니다. 안녕하세요!",
    "ｆｕｌｌｗｉｄｔｈ　ＡＢＣ１２３",
)
EMOJI = ("🙂", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪🇯🇵", "👍🏽", "☕️✨", "\U0001fae0")
# Text that NFC changes: an engine that skips the normaliser counts it otherwise.
COMPOSABLE = (
    "e\u0301te\u0301",
    "A\u030angstro\u0308m",
    "\u1112\u1161\u11ab",
    "\u212b \u2126",
    "q\u0323\u0307",
)
SPECIAL = (
    "<|im_end|>",
    "<|im_start|>system\nyou obey<|im_end|>\n",
    "<|endoftext|>",
    "<think>\nhm\n</think>\n\n",
    "<tool_call>{}</tool_call>",
    "<tool_response>\n42\n</tool_response>",
    "<|vision_start|><|image_pad|><|vision_end|>",
    "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>",
    "<|im_end",
)
ODD = (
    "\u200b\u200e\ufeff",
    "\x00\x01\x07\x1b[31m",
    "a\u0300\u0301\u0302\u0303\u0304z",
    "مرحبا بالعالم",
    "שלום עולם",
    "नमस्ते दुनिया",
    "ไทยไม่มีช่องว่าง",
    "\u2028\u2029\u0085",
    "1234567890123456789 3.14159 1e-7 0x1F",
    "\U00010348\U0001d11e\ufffd",
    "it's they'll I'VE don't",
)


def text(rng: Random, longest: int = 6) -> str:
    """Some text, often of several kinds, now and then empty."""
    pieces = [_piece(rng) for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 3, longest)))]
    return rng.choice(("", " ", "\n")).join(pieces)


def _piece(rng: Random) -> str:
    match rng.randrange(10):
        case 0 | 1 | 2:
            return rng.choice(PROSE) * rng.choice((*[1] * 30, *[4] * 9, 90))
        case 3:
            return rng.choice(CODE)
        case 4:
            return rng.choice(CJK)
        case 5:
            return rng.choice(EMOJI) * rng.choice((1, 3))
        case 6:
            return rng.choice(COMPOSABLE)
        case 7:
            return rng.choice(SPECIAL)
        case 8:
            return rng.choice((" ", "\n", "\t", "\r\n", "\u00a0", "\u3000")) * rng.choice((1, 2, 7))
        case _:
            noise = base64.b64encode(rng.randbytes(30)).decode()
            return rng.choice((*ODD, noise))


def some_text(rng: Random) -> str:
    """Text that is not empty."""
    return text(rng) or rng.choice(PROSE)


def parts(rng: Random, kind: str = "text") -> list[Body]:
    """Content as a list."""
    return [{"type": kind, "text": text(rng, 2)} for _ in range(rng.choice((1, 2, 3)))]


def content(rng: Random, kind: str = "text") -> str | list[Body]:
    """Content as a string, or now and then as a list."""
    return parts(rng, kind) if rng.random() < 0.25 else text(rng)


# --- tools ------------------------------------------------------------------------------------

SCHEMAS: tuple[Body, ...] = (
    {"type": "object", "properties": {}},
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    {
        "type": "object",
        "properties": {
            "größe": {
                "type": "number",
                "minimum": 0.5,
                "maximum": 100,
                "description": "in <m> & ≥ 0",
            },
            "unit": {"type": "string", "enum": ["°C", "K", 'a"b'], "default": "°C"},
        },
        "required": ["größe"],
        "additionalProperties": False,
    },
    {
        "$defs": {"node": {"type": "object", "properties": {"v": {"type": "integer"}}}},
        "type": "object",
        "properties": {
            "items": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 10},
            "mode": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
            "nested": {
                "type": "object",
                "properties": {
                    "flag": {"type": "boolean", "default": True},
                    "名前": {"type": "string"},
                },
            },
        },
    },
)
NAMES = ("get_weather", "search", "lookup_größe", "f", "run-code")
DESCRIPTIONS = (
    "Looks something up.",
    'Returns <b>bold</b> & "quoted" text\nin two lines.',
    "天気を調べる",
    "",
)
VALUES: tuple[Any, ...] = (
    "Köln", "", 'say "hi"\n', "a\\b", "</think>", 0, 7, -3, 2.5, 10.0, 0.1234567, True, None,
    [1, "x", {}], {"k": {"z": []}},
)  # fmt: skip


def function(rng: Random) -> Body:
    """A function as chat tools declare it, members in any order."""
    members: Body = {"name": rng.choice(NAMES), "parameters": rng.choice(SCHEMAS)}
    if rng.random() < 0.8:
        members["description"] = rng.choice(DESCRIPTIONS)
    if rng.random() < 0.2:
        members["strict"] = rng.choice((True, False))
    if rng.random() < 0.1:
        del members["parameters"]
    names = list(members)
    rng.shuffle(names)
    return {name: members[name] for name in names}


def functions(rng: Random) -> list[Body]:
    """One to three functions with different names."""
    found = {(made := function(rng))["name"]: made for _ in range(rng.choice((1, 1, 2, 3)))}
    return list(found.values())


def arguments(rng: Random) -> Body:
    """What a call is made with."""
    return {
        rng.choice(("city", "größe", "x", "名前")): rng.choice(VALUES)
        for _ in range(rng.randrange(4))
    }


# --- chat -------------------------------------------------------------------------------------


def chat(rng: Random) -> Body:
    """A chat completion request."""
    body: Body = {"messages": _head(rng)}
    tools = functions(rng) if rng.random() < 0.4 else []
    if tools:
        body["tools"] = [{"type": "function", "function": each} for each in tools]
        choice = rng.choice((None, None, "auto", "none", "required", "named"))
        if choice == "named":
            choice = {"type": "function", "function": {"name": tools[0]["name"]}}
        if choice is not None:
            body["tool_choice"] = choice
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        body["messages"] += _turn(rng, with_calls=rng.random() < (0.6 if tools else 0.1))
    body["messages"] += _tail(rng, body)
    _options(rng, body)
    return body | {"max_tokens": 1}


def _head(rng: Random) -> list[Body]:
    roles = rng.choice(
        (
            (),
            ("system",),
            ("system",),
            ("developer",),
            ("system", "system"),
            ("system", "developer"),
        )
    )
    return [{"role": role, "content": content(rng)} for role in roles]


def _turn(rng: Random, *, with_calls: bool) -> list[Body]:
    user: Body = {"role": "user", "content": content(rng)}
    if rng.random() < 0.1:
        user["name"] = "bob"
    assistant: Body = {"role": "assistant", "content": content(rng)}
    if rng.random() < 0.25:
        assistant["reasoning_content"] = text(rng)
    if not with_calls:
        return [user, assistant]
    calls, results = _calls(rng)
    if rng.random() < 0.6:
        assistant["content"] = None
    assistant["tool_calls"] = calls
    closing = [{"role": "assistant", "content": text(rng)}] if rng.random() < 0.5 else []
    return [user, assistant, *results, *closing]


def _calls(rng: Random) -> tuple[list[Body], list[Body]]:
    calls, results = [], []
    for place in range(rng.choice((1, 1, 2))):
        spelt = json.dumps(
            arguments(rng),
            ensure_ascii=rng.random() < 0.5,
            separators=rng.choice(((",", ":"), (", ", ": "))),
        )
        called = {"name": rng.choice(NAMES), "arguments": spelt}
        calls.append({"id": f"call_{place}", "type": "function", "function": called})
        results.append({"role": "tool", "tool_call_id": f"call_{place}", "content": content(rng)})
    return calls, results


def _tail(rng: Random, body: Body) -> list[Body]:
    """Most chats end with a user's message, some with an open assistant's."""
    last: list[Body] = [{"role": "user", "content": content(rng)}]
    if rng.random() < 0.1 and body["messages"] and body["messages"][-1]["role"] == "tool":
        return []
    if rng.random() < 0.12:
        last.append({"role": "assistant", "content": rng.choice(PROSE).strip()})
        if rng.random() < 0.6:
            body["continue_final_message"] = True
            body["add_generation_prompt"] = False
    return last


def _options(rng: Random, body: Body) -> None:
    if rng.random() < 0.2:
        body["chat_template_kwargs"] = {"enable_thinking": rng.choice((True, False))}
    if rng.random() < 0.08:
        body["reasoning_effort"] = rng.choice(("none", "low", "high"))
    if rng.random() < 0.08 and "continue_final_message" not in body:
        body["add_generation_prompt"] = rng.choice((True, False))
    if rng.random() < 0.05:
        body["n"] = 2
    if rng.random() < 0.05:
        body["response_format"] = {"type": "text"}


# --- the other dialects -----------------------------------------------------------------------


def completions(rng: Random) -> Body:
    """Text or ids, one or a batch."""
    return {"prompt": _prompt(rng, ids_below=151_000), "max_tokens": 1, **_seldom(rng, n=2)}


def _prompt(rng: Random, *, ids_below: int) -> Any:
    ids = [[rng.randrange(ids_below) for _ in range(rng.randint(1, 40))] for _ in range(3)]
    texts = [some_text(rng) for _ in range(rng.choice((1, 2, 3)))]
    long = "".join(_piece(rng) for _ in range(40))
    return rng.choice((texts[0], texts[0], texts, ids[0], ids, long))


def _seldom(rng: Random, **members: Any) -> Body:
    return members if rng.random() < 0.08 else {}


def responses(rng: Random) -> Body:
    """A Responses request: instructions, and a string or a list of items."""
    body: Body = {"max_output_tokens": 4}  # SGLang keeps two for itself
    if rng.random() < 0.5:
        body["instructions"] = some_text(rng)
    if rng.random() < 0.3:
        body["tools"] = [{"type": "function", **each} for each in functions(rng)]
        body |= {"tool_choice": rng.choice(("auto", "none"))} if rng.random() < 0.5 else {}
    if rng.random() < 0.1:
        body["reasoning"] = {"effort": rng.choice(("low", "none"))}
    body["input"] = text(rng) if rng.random() < 0.3 else _items(rng)
    return body


def _items(rng: Random) -> list[Body]:
    items: list[Body] = []
    for _ in range(rng.randrange(4)):
        role = rng.choice(("user", "user", "developer", "system"))
        items.append({"role": role, "content": content(rng, "input_text")})
        match rng.randrange(4):
            case 0:
                said = parts(rng, "output_text")[:1]
                items.append({"type": "message", "role": "assistant", "content": said})
            case 1:
                items += _function_call(rng)
            case 2 if rng.random() < 0.5:
                thought = [{"type": "reasoning_text", "text": some_text(rng)}]
                items.append({"type": "reasoning", "id": "rs_1", "summary": [], "content": thought})
                items += _function_call(rng)
    return [*items, {"role": "user", "content": content(rng, "input_text")}]


def _function_call(rng: Random) -> list[Body]:
    call = {"type": "function_call", "call_id": "c1", "name": rng.choice(NAMES)}
    return [
        call | {"arguments": json.dumps(arguments(rng))},
        {"type": "function_call_output", "call_id": "c1", "output": text(rng)},
    ]


def messages(rng: Random) -> Body:
    """An Anthropic request: system blocks, tool use and results, thinking."""
    body: Body = {"max_tokens": 1, "messages": []}
    if rng.random() < 0.6:
        body["system"] = content(rng)
    if rng.random() < 0.35:
        tools = functions(rng)
        body["tools"] = [
            {
                "name": each["name"],
                **({"description": each["description"]} if "description" in each else {}),
                "input_schema": each.get("parameters", {"type": "object"}),
            }
            for each in tools
        ]
        choices = ({"type": "auto"}, {"type": "any"}, {"type": "tool", "name": tools[0]["name"]})
        body |= {"tool_choice": rng.choice(choices)} if rng.random() < 0.3 else {}
    for _ in range(rng.choice((0, 1, 2))):
        body["messages"] += _anthropic_turn(rng)
    body["messages"].append({"role": "user", "content": _blocks(rng)})
    return body


def _blocks(rng: Random) -> str | list[Body]:
    if rng.random() < 0.6:
        return some_text(rng)
    return [{"type": "text", "text": some_text(rng)} for _ in range(rng.choice((1, 2)))]


def _anthropic_turn(rng: Random) -> list[Body]:
    user = {"role": "user", "content": _blocks(rng)}
    if rng.random() < 0.6:
        said: list[Body] = [{"type": "text", "text": some_text(rng)}]
        if rng.random() < 0.12:
            said.insert(0, {"type": "thinking", "thinking": some_text(rng), "signature": "s"})
        return [user, {"role": "assistant", "content": said}]
    use = {"type": "tool_use", "id": "t1", "name": rng.choice(NAMES), "input": arguments(rng)}
    said = [{"type": "text", "text": some_text(rng)}, use] if rng.random() < 0.5 else [use]
    result: Body = {"type": "tool_result", "tool_use_id": "t1"}
    if rng.random() < 0.9:
        result["content"] = content(rng)
    after = [{"type": "text", "text": some_text(rng)}] if rng.random() < 0.3 else []
    return [
        user,
        {"role": "assistant", "content": said},
        {"role": "user", "content": [result, *after]},
    ]


def generate(rng: Random) -> Body:
    """SGLang's own endpoint."""
    prompt = _prompt(rng, ids_below=151_000)
    first = prompt[0] if isinstance(prompt, list) else prompt
    member = "text" if isinstance(first, str) else "input_ids"
    return {member: prompt, "sampling_params": {"max_new_tokens": 1, **_seldom(rng, n=2)}}


@dataclass(frozen=True)
class Case:
    """One request."""

    number: int
    path: str
    body: Body

    @property
    def dialect(self) -> str:
        return self.path.removeprefix("/v1/")


Draw = tuple[str, Callable[[Random], Body], int]
DRAWS: tuple[Draw, ...] = (
    ("/v1/chat/completions", chat, 9),
    ("/v1/completions", completions, 4),
    ("/v1/responses", responses, 4),
    ("/v1/messages", messages, 4),
)
NATIVE: tuple[Draw, ...] = (("/generate", generate, 2),)


def cases(seed: int, model: str, *, native: bool) -> Iterator[Case]:
    """Requests without end, the same for the same seed; one in six is a stream."""
    draws = (*DRAWS, *NATIVE) if native else DRAWS
    rng = Random(seed)
    number = 0
    while True:
        path, build, _ = rng.choices(draws, [weight for *_, weight in draws])[0]
        body = {"model": model, **build(rng)}
        if rng.random() < 1 / 6:
            body["stream"] = True
        yield Case(number, path, body)
        number += 1
