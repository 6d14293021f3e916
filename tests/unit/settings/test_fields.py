from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from gateway.settings import NoSecrets, fields


def accepts(kind: Any, value: object) -> bool:
    try:
        TypeAdapter(kind).validate_python(value, context=fields.Context(NoSecrets()))
    except ValidationError:
        return False
    return True


@pytest.mark.parametrize("value", ["a", "A-1", "0.b_c", "x" * 64])
def test_names(value: str) -> None:
    assert accepts(fields.Name, value)


@pytest.mark.parametrize(
    "value", ["", "-a", ".a", "a b", "a/b", "a:b", "a\n", "é", "e\u0301", "x" * 65, "a{b}", 'a"']
)
def test_no_names(value: str) -> None:
    assert not accepts(fields.Name, value)


@pytest.mark.parametrize("value", ["*", "glm-*", "org/Model-7B.Q4", "a[b]"])
def test_model_patterns(value: str) -> None:
    assert accepts(fields.ModelPattern, value)


@pytest.mark.parametrize("value", ["", " ", "a b", "a\n", "é"])
def test_no_model_patterns(value: str) -> None:
    assert not accepts(fields.ModelPattern, value)


@pytest.mark.parametrize("value", ["qwen3", "./tokenizers/x.json", "tiktoken:o200k_base", "a b"])
def test_tokenizers(value: str) -> None:
    assert accepts(fields.Tokenizer, value)


@pytest.mark.parametrize("value", ["", " a", "a\n", "a\x00b"])
def test_no_tokenizers(value: str) -> None:
    assert not accepts(fields.Tokenizer, value)


@pytest.mark.parametrize("key", ["k y", "k\n", "ké", "k\x00"])
def test_an_api_key_that_no_header_can_carry(key: str) -> None:
    assert accepts(fields.ApiKey, "sk-1234")
    assert not accepts(fields.ApiKey, key)


def test_the_salt_secret_has_a_least_length() -> None:
    assert accepts(fields.SaltSecret, "0123456789abcdef")
    assert not accepts(fields.SaltSecret, "0123456789abcde")


def test_secrets_are_looked_up_nowhere_without_a_context() -> None:
    with pytest.raises(ValidationError, match="HOME is not set"):
        TypeAdapter(fields.ApiKey).validate_python("${HOME}")


@pytest.mark.parametrize("kind", [fields.Whole, fields.Positive, fields.Share, fields.Bool])
@pytest.mark.parametrize("value", ["1", None, [], {}])
def test_nothing_is_converted(kind: Any, value: object) -> None:
    assert not accepts(kind, value)


def test_true_is_no_number_and_one_is_no_truth() -> None:
    assert not accepts(fields.Whole, True)
    assert not accepts(fields.Bool, 1)
    assert not accepts(fields.Whole, 1.0)
    assert accepts(fields.Share, 1)


def test_list_rules_name_the_item() -> None:
    with pytest.raises(ValueError, match="lists b twice"):
        fields.no_duplicates(("a", "b", "b"))
    with pytest.raises(ValueError, match="must not be empty"):
        fields.not_empty(())
    assert fields.no_duplicates(("a", "b")) == fields.not_empty(("a", "b"))
