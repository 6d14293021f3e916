from __future__ import annotations

import pytest

from assets_at_hand import template
from gateway.rendering.sglang import content_format
from gateway.tokens.template import examine

# What vLLM 0.32.0 and SGLang 0.5.23 themselves said of each ("parts" or "text").
LOOP = "{% for c in %s %}{{ c.text }}{% endfor %}"
FORMATS = [
    ("{% for message in messages %}{{ message.content }}{% endfor %}", "text", "text"),
    ("{% for message in messages %}%message.content%{% endfor %}", "parts", "parts"),
    ("{% for message in messages %}%message['content']%{% endfor %}", "parts", "parts"),
    ("{% for msg in messages %}%msg.content%{% endfor %}", "parts", "parts"),
    ("{% for zed in messages %}%zed.content%{% endfor %}", "parts", "text"),
    ("{% for message in messages[1:] %}%message.content%{% endfor %}", "parts", "parts"),
    (
        "{% set lm = messages[1:] %}{% for q in lm %}%q.content%{% endfor %}",
        "parts",
        "text",
    ),
    ("{% set lm = messages | list %}{% for q in lm %}%q.content%{% endfor %}", "parts", "text"),
    (
        "{% macro r(x) %}%x%{% endmacro %}{% for m in messages %}{{ r(m.content) }}{% endfor %}",
        "parts",
        "text",
    ),
    (
        "{% macro r(x) %}%x%{% endmacro %}{% for m in messages %}{{ r(x=m.content) }}{% endfor %}",
        "parts",
        "text",
    ),
    (
        "{% macro r(content) %}%content%{% endmacro %}"
        "{% for m in messages %}{{ r(m.foo) }}{% endfor %}",
        "text",
        "text",
    ),
    (
        "{% for m in messages %}{% set content = m.content %}%content%{% endfor %}",
        "parts",
        "text",
    ),
    ("image {% for m in messages %}{{ m.content }}{% endfor %}", "text", "parts"),
    ("{% for message in messages %}%message.content | list%{% endfor %}", "parts", "parts"),
    ("{% for a, b in messages %}%a.content%{% endfor %}", "text", "text"),
    (
        "{% set ns = namespace(m=messages) %}"
        "{% for message in ns.m %}%message.content%{% endfor %}",
        "text",
        "parts",
    ),
    (
        "{% for message in messages %}{% generation %}{{ message.content }}{% endgeneration %}"
        "{% endfor %}",
        "text",
        "text",
    ),
]


def with_loops(source: str) -> str:
    """``%x%`` stands for a loop over ``x``."""
    pieces = source.replace("{%", "\x01").replace("%}", "\x02").split("%")
    loops = [
        LOOP.replace("%s", piece) if index % 2 else piece for index, piece in enumerate(pieces)
    ]
    return "".join(loops).replace("\x01", "{%").replace("\x02", "%}")


@pytest.mark.parametrize(("source", "vllm", "sglang"), FORMATS)
def test_content_format_is_the_one_each_engine_finds(source: str, vllm: str, sglang: str) -> None:
    traits = examine(with_loops(source), template().rules)
    assert traits.iterates_content == (vllm == "parts")
    assert (content_format(traits) == "openai") == (sglang == "parts")
