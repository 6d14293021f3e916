from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jinja2
import pytest

from assets_at_hand import TINY, store, template
from gateway.rendering.common import LateSystem
from gateway.tokens.assets import AssetError, TokenizerFiles
from gateway.tokens.template import TemplateRefused, examine, load_template
from gateway.types import TemplateCall

USER = [{"role": "user", "content": "hi"}]


def files(folder: Path, config: object = None, **texts: str) -> TokenizerFiles:
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    for name, text in texts.items():
        (folder / name.replace("__", ".")).write_text(text)
    return TokenizerFiles("mine", folder)


def rendered(found: Any, call: TemplateCall | None = None) -> str:
    return str(found.render(call or TemplateCall(USER)))


def test_chatml() -> None:
    assert rendered(template()) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_importing_the_rules_says_nothing() -> None:
    """transformers would warn on stderr that PyTorch is missing."""
    code = "from gateway.tokens.rules import load_rules; load_rules()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""


def test_rules_are_not_imported_before_they_are_needed() -> None:
    code = "import sys, gateway.tokens.counter; sys.exit('transformers' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_special_tokens_reach_the_template(tmp_path: Path) -> None:
    config = {
        "bos_token": {"content": "<s>", "lstrip": False},
        "eos_token": "</s>",
        "unk_token": None,
        "chat_template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"
        "{{ unk_token is defined }}",
    }
    assert rendered(load_template(files(tmp_path, config))) == "<s>hi</s>False"


def test_variable_of_the_request_wins_over_a_special_token(tmp_path: Path) -> None:
    config = {"bos_token": "<s>", "chat_template": "{{ bos_token }}"}
    call = TemplateCall(USER, kwargs={"bos_token": "x"})
    assert rendered(load_template(files(tmp_path, config)), call) == "x"


def test_file_of_its_own_wins(tmp_path: Path) -> None:
    found = load_template(
        files(tmp_path, {"chat_template": "config"}, chat_template__jinja="jinja")
    )
    assert rendered(found) == "jinja"


def test_processor_file_stands_in(tmp_path: Path) -> None:
    found = load_template(files(tmp_path, {}, chat_template__json='{"chat_template": "processor"}'))
    assert rendered(found) == "processor"


@pytest.mark.parametrize("shape", ["list", "dict"])
def test_named_templates(tmp_path: Path, shape: str) -> None:
    named: Any = {"default": "plain", "tool_use": "tools"}
    if shape == "list":
        named = [{"name": name, "template": text} for name, text in named.items()]
    found = load_template(files(tmp_path, {"chat_template": named}))
    assert rendered(found) == "plain"
    assert rendered(found, TemplateCall(USER, tools=[{"type": "function"}])) == "tools"


def test_no_template_is_none(tmp_path: Path) -> None:
    assert load_template(files(tmp_path, {})) is None
    assert load_template(files(tmp_path)) is None


@pytest.mark.parametrize(
    "config",
    [{"chat_template": {"rag": "x"}}, {"chat_template": "{% if %}"}, []],
    ids=["no default", "does not compile", "no object"],
)
def test_unusable_template_is_an_asset_error(tmp_path: Path, config: object) -> None:
    with pytest.raises(AssetError):
        load_template(files(tmp_path, config))


def test_configuration_that_is_no_json_is_an_asset_error(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(AssetError, match="not JSON"):
        load_template(TokenizerFiles("mine", tmp_path))


@pytest.mark.parametrize(
    "source",
    ["{{ raise_exception('no ' + messages[0].content) }}", "{{ messages[9].content.x }}",
     "{{ 1 / 0 }}", "{{ messages | tojson(indent='x', nothing=1) }}", "{{ nothing | tojson }}"],
)  # fmt: skip
def test_refusal_does_not_quote_the_conversation(tmp_path: Path, source: str) -> None:
    found = load_template(files(tmp_path, {"chat_template": source}))
    with pytest.raises(TemplateRefused) as caught:
        rendered(found, TemplateCall([{"role": "user", "content": "SECRET"}]))
    assert "SECRET" not in str(caught.value)


def test_user_text_is_never_a_template() -> None:
    text = "{{ 7 * 7 }}{% raw %}"
    assert text in rendered(template(), TemplateCall([{"role": "user", "content": text}]))


def test_sandbox_holds(tmp_path: Path) -> None:
    source = "{{ messages.__class__.__mro__ }}"
    found = load_template(files(tmp_path, {"chat_template": source}))
    with pytest.raises(TemplateRefused):
        rendered(found)


def test_continued_message_is_left_open() -> None:
    call = TemplateCall(
        [*USER, {"role": "assistant", "content": "begun"}],
        add_generation_prompt=False,
        continue_final_message=True,
    )
    assert rendered(template(), call).endswith("<|im_start|>assistant\nbegun")


def test_flat_tools_are_tried_only_where_the_engine_does(tmp_path: Path) -> None:
    source = (
        "{% if tools[0].function %}{{ raise_exception('flat only') }}{% endif %}{{ tools[0].name }}"
    )
    found = load_template(files(tmp_path, {"chat_template": source}))
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert rendered(found, TemplateCall(USER, tools=tools, flat_tools_retry=True)) == "f"
    with pytest.raises(TemplateRefused):
        rendered(found, TemplateCall(USER, tools=tools))


@pytest.mark.parametrize(
    ("source", "late"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", LateSystem.RENDERED),
        ("{% for m in messages %}{% if m.role != 'system' %}{{ m.content }}{% endif %}{% endfor %}",
         LateSystem.DROPPED),
        ("{{ raise_exception('x') }}", LateSystem.REFUSED),
        ("{{ tools | tojson }}", LateSystem.REFUSED),
    ],
)  # fmt: skip
def test_late_system_message(source: str, late: LateSystem) -> None:
    assert examine(source, template().rules).late_system is late


@pytest.mark.parametrize(
    ("source", "obeys"),
    [
        ("{{ enable_thinking }}", True),
        ("{{ reasoning_effort }}", True),
        ("fixed", False),
        ("{% if reasoning_effort == 'low' %}a{% else %}b{% endif %}", False),
        ("{% if reasoning_effort == 'none' %}{{ raise_exception('x') }}{% endif %}", False),
    ],
)
def test_whether_effort_none_is_obeyed(source: str, obeys: bool) -> None:
    assert examine(source, template().rules).obeys_effort_none is obeys


def test_template_must_compile() -> None:
    with pytest.raises(jinja2.TemplateError):
        examine("{% if %}", template().rules)


def test_tags_of_transformers_are_known() -> None:
    source = (
        "{% for m in messages %}{%- generation -%}{{ m.content }}{%- endgeneration -%}{% endfor %}"
    )
    assert not examine(source, template().rules).iterates_content


@pytest.mark.assets
def test_real_templates_render_by_transformers_rules() -> None:
    calls = [{"type": "function", "function": {"name": "f", "arguments": {"a": "<é>"}}}]
    chat = [*USER, {"role": "assistant", "content": "", "tool_calls": calls}]
    text = rendered(template("qwen3"), TemplateCall(chat))
    assert '{"name": "f", "arguments": {"a": "<é>"}}' in text  # tojson neither escapes nor sorts
    assert rendered(template("deepseek_v3")).startswith("<｜begin▁of▁sentence｜>")


def test_override_takes_the_place_of_the_tokenizers_own(tmp_path: Path) -> None:
    (tmp_path / "other.jinja").write_text("other")
    assert rendered(load_template(store().resolve(TINY), tmp_path / "other.jinja")) == "other"
