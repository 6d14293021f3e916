"""The kinds of value a setting can be. Each kind carries how the reference names and writes it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    SecretStr,
    Strict,
    StringConstraints,
    ValidationInfo,
)

from gateway.settings import store, units
from gateway.settings.sources import NoSecrets, SecretSource, resolve

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_HEADER_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}", re.ASCII)
_SHA256_HEX = re.compile(r"[0-9a-f]{64}", re.ASCII)
_VISIBLE_ASCII = re.compile(r"[!-~]+", re.ASCII)
_EMPTY_KEY = sha256(b"").hexdigest()
_MIN_SALT_SECRET_CHARS = 16  # with fewer, a tenant could find another's salt by trying

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Kind:
    """How a kind is called in the reference, and how its defaults are written there."""

    name: str
    write: Callable[[Any], str] = str


@dataclass(frozen=True, slots=True)
class Context:
    """What validation needs from outside: where secrets are looked up."""

    secrets: SecretSource


def no_duplicates(values: tuple[_T, ...]) -> tuple[_T, ...]:
    """The values, or ``ValueError`` naming the first that is listed twice."""
    for index, value in enumerate(values):
        if value in values[:index]:
            raise ValueError(f"lists {value} twice")
    return values


def not_empty(values: tuple[_T, ...]) -> tuple[_T, ...]:
    """The values, or ``ValueError`` where there are none.

    A minimum length would also complain of a list whose only item is at fault.
    """
    if not values:
        raise ValueError("must not be empty; leave the key out for its default, if it has one")
    return values


def _name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError(
            "must be 1 to 64 letters, digits, '.', '_' or '-', and begin with a letter or digit"
        )
    return value


def _header_name(value: str) -> str:
    name = value.lower()
    if not _HEADER_NAME.fullmatch(name):
        raise ValueError("must be a header's name: letters, digits and '-'")
    if name in {"authorization", "x-api-key"}:
        raise ValueError("must not be a header that holds a key")
    return name


def _model_pattern(value: str) -> str:
    if not _VISIBLE_ASCII.fullmatch(value):
        raise ValueError("must be a model name or a pattern such as qwen3-*, without spaces")
    return value


def key_hash(value: str) -> str:
    """The SHA-256 in lower case. Raises ``ValueError`` for what is none, or an empty key's."""
    digest = value.lower()
    if not _SHA256_HEX.fullmatch(digest):
        raise ValueError("must be 64 hexadecimal digits: the SHA-256 that `poolgate keys` prints")
    if digest == _EMPTY_KEY:
        raise ValueError("is the SHA-256 of an empty key, which would admit anyone")
    return digest


def _secret(value: object, info: ValidationInfo) -> SecretStr:
    source = info.context.secrets if isinstance(info.context, Context) else NoSecrets()
    return SecretStr(resolve(value, source))


def _header_safe(secret: SecretStr) -> SecretStr:
    if not _VISIBLE_ASCII.fullmatch(secret.get_secret_value()):
        raise ValueError("must be visible ASCII without spaces: it goes into a header")
    return secret


def _header_value(secret: SecretStr) -> SecretStr:
    value = secret.get_secret_value()
    if not (value.isascii() and value.isprintable()) or value != value.strip():
        raise ValueError("must be printable ASCII, without spaces around it: it is a header")
    return secret


def _long_enough(secret: SecretStr) -> SecretStr:
    if len(secret.get_secret_value()) < _MIN_SALT_SECRET_CHARS:
        raise ValueError(f"must have at least {_MIN_SALT_SECRET_CHARS} characters")
    return secret


def _tokenizer(value: str) -> str:
    if not value.strip() or value != value.strip() or not value.isprintable():
        raise ValueError("must be a name in tokenizers/, a path, tiktoken:ENCODING or engine")
    return value


def _store(value: object, info: ValidationInfo) -> store.Store:
    """A URL may hold a password: it may be a reference as any secret, and is never repeated."""
    if isinstance(value, store.Store):
        return value
    return store.parse_store(_secret(value, info).get_secret_value())


def _margin(value: object) -> object:
    if isinstance(value, str) and value != "auto":
        raise ValueError("must be auto or a whole number of tokens")
    return 0 if value == "auto" else value


Bool = Annotated[bool, Strict(), Kind("true or false", lambda value: str(value).lower())]
Whole = Annotated[int, Strict(), Field(ge=0), Kind("whole number")]
Margin = Annotated[
    int,
    Strict(),
    Field(ge=0),
    BeforeValidator(_margin),
    Kind("`auto` or whole number", lambda value: str(value) if value else "auto"),
]
Positive = Annotated[int, Strict(), Field(ge=1), Kind("positive whole number")]
Workers = Annotated[Positive, Field(le=256)]
Share = Annotated[float, Strict(), Field(ge=0, le=1), Kind("number from 0 to 1", "{:g}".format)]
Factor = Annotated[
    float, Strict(), Field(ge=1, le=1000), Kind("number from 1 to 1000", "{:g}".format)
]
Weight = Annotated[
    float, Strict(), Field(ge=0.001, le=1000), Kind("number from 0.001 to 1000", "{:g}".format)
]
Duration = Annotated[
    float,
    BeforeValidator(units.duration),
    Field(gt=0, le=366 * 86400),
    Kind("duration", units.duration_text),
]
DurationOrZero = Annotated[
    float,
    BeforeValidator(units.duration),
    Field(ge=0, le=366 * 86400),
    Kind("duration", units.duration_text),
]
Size = Annotated[
    int, BeforeValidator(units.size), Field(ge=1, le=2**40), Kind("size", units.size_text)
]
SizeOrZero = Annotated[
    int, BeforeValidator(units.size), Field(ge=0, le=2**40), Kind("size or 0", units.size_text)
]
Address = Annotated[
    units.HostPort,
    PlainValidator(units.host_port),
    PlainSerializer(str),
    Kind("HOST:PORT"),
]
Url = Annotated[str, BeforeValidator(units.base_url), Kind("URL")]
HeaderName = Annotated[str, AfterValidator(_header_name), Kind("header name")]
Name = Annotated[str, AfterValidator(_name), Kind("name")]
ModelPattern = Annotated[str, AfterValidator(_model_pattern), Kind("model pattern")]
Instant = Annotated[
    datetime, BeforeValidator(units.instant), Kind("date and time", datetime.isoformat)
]
KeyHash = Annotated[str, AfterValidator(key_hash), Kind("SHA-256 in hex")]
Tokenizer = Annotated[str, AfterValidator(_tokenizer), Kind("tokenizer")]
FilePath = Annotated[str, StringConstraints(min_length=1), Kind("path")]
ApiKey = Annotated[
    SecretStr, AfterValidator(_header_safe), BeforeValidator(_secret), Kind("secret")
]
HeaderValue = Annotated[
    SecretStr, AfterValidator(_header_value), BeforeValidator(_secret), Kind("secret")
]
SaltSecret = Annotated[
    SecretStr, AfterValidator(_long_enough), BeforeValidator(_secret), Kind("secret")
]
Store = Annotated[
    store.Store, PlainValidator(_store), PlainSerializer(str), Kind("`memory` or store URL")
]
