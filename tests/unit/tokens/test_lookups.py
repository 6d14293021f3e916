"""Templates look up by a shorter way what the sandbox would give: it is the oracle here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jinja2
import jinja2.ext
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2.exceptions import SecurityError
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from gateway.tokens.lookups import hasten, look_up

SANDBOX = ImmutableSandboxedEnvironment()
NAMES = (
    *dir(dict), *dir(str), *dir(list), "role", "content", "index0", "last", "first", "length",
    "previtem", "nextitem", "depth", "cycle", "changed", "_private", "__class__", "mro", "gi_frame",
    "f_globals", "__globals__", "func_code", "unknown", "_iterable", "_undefined",
)  # fmt: skip


def a_loop() -> LoopContext:
    loop = LoopContext(["a", {"b": 1}, [2]], jinja2.Undefined)
    next(loop)
    return loop


def a_generator() -> Iterator[int]:
    yield 1


MAKERS: tuple[Callable[[], Any], ...] = (
    lambda: {"role": "user", "content": None, "items": "hidden by the method"},
    lambda: {},
    lambda: {1: 2},
    lambda: "a text {0}",
    lambda: ["list"],
    lambda: 3,
    lambda: None,
    lambda: Namespace(content="x", role=None, format="{}".format, upper=str.upper, _private=1),
    a_loop,
    a_generator,
    lambda: len,
    lambda: dict,
    lambda: a_loop,
    lambda: jinja2.Undefined(name="missing"),
)


def outcome(look: Callable[[Any, str], Any], value: Any, name: str) -> Any:
    """What came of a lookup, so that two of them can be compared."""
    try:
        found = look(value, name)
    except Exception as error:  # a template sees it
        return type(error), str(error)
    if isinstance(found, jinja2.Undefined):
        told = found._undefined_message, found._undefined_exception, found._undefined_name
        return type(found), told
    if callable(found):  # a bound method is another object each time
        return type(found), getattr(found, "__name__", None), getattr(found, "__wrapped__", None)
    return type(found), repr(found)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("name", sorted(set(NAMES)))
def test_same_as_the_sandbox(make: Callable[[], Any], name: str) -> None:
    value = make()

    def short(value: Any, name: str) -> Any:
        return look_up(SANDBOX.getattr, SANDBOX.undefined, value, name)

    if isinstance(value, LoopContext):
        assert outcome(short, value, name) == outcome(SANDBOX.getattr, make(), name)
    else:
        assert outcome(short, value, name) == outcome(SANDBOX.getattr, value, name)


@given(st.dictionaries(st.text(max_size=4), st.none() | st.text(max_size=4)), st.text(max_size=4))
def test_any_dictionary(value: dict[str, str | None], name: str) -> None:
    def short(value: Any, name: str) -> Any:
        return look_up(SANDBOX.getattr, SANDBOX.undefined, value, name)

    assert outcome(short, value, name) == outcome(SANDBOX.getattr, value, name)


class Marked(dict[str, Any]):
    """Data with an attribute of its own, which no template may see."""

    role = "an attribute"


def test_a_dictionary_of_another_kind_is_a_plain_one() -> None:
    value = Marked(content="x")
    look = partial(look_up, SANDBOX.getattr, SANDBOX.undefined, value)
    assert look("content") == "x"
    assert isinstance(look("role"), jinja2.Undefined)


def hastened(source: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(extensions=[jinja2.ext.loopcontrols])
    found = environment.from_string(source)
    hasten(found)
    return found


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("{{ ''.__class__.mro() }}", SecurityError),
        ("{{ messages.append(1) }}", SecurityError),
        ("{{ messages[0].update({}) }}", SecurityError),
        ("{{ messages[0].clear() }}", SecurityError),
        ("{{ '{0.__class__}'.format(messages) }}", ""),
        ("{% set ns = namespace(f='{0.__class__}'.format) %}{{ ns.f(messages) }}", ""),
    ],
)
def test_the_sandbox_still_holds(source: str, shown: str | type[Exception]) -> None:
    def rendered(template: jinja2.Template) -> str | type[Exception]:
        try:
            return template.render(messages=[{"role": "user"}])
        except SecurityError as error:
            return type(error)

    assert rendered(ImmutableSandboxedEnvironment().from_string(source)) == shown
    assert rendered(hastened(source)) == shown


def test_twice_is_as_once() -> None:
    """A reload comes to the same template again."""
    found = hastened("{{ messages[0].role }}")
    once = found.environment.getattr
    hasten(found)
    assert found.environment.getattr.args[0].func is once.args[0].func  # type: ignore[attr-defined]
    assert found.render(messages=[{"role": "user"}]) == "user"


def test_sandbox_is_asked_little() -> None:
    """Of what a chat's template looks up, nothing goes the long way."""
    source = (
        "{% set ns = namespace(last=0) %}"
        "{% for m in messages %}{{ m.role.upper() }}{{ m.content }}{{ loop.index0 }}{{ loop.last }}"
        "{% set ns.last = loop.index0 %}{{ ns.last }}{% if m.tools %}!{% endif %}{% endfor %}"
    )
    found, asked = hastened(source), []
    shorter = found.environment.getattr
    sandbox = shorter.args[0]  # type: ignore[attr-defined]

    def counted(value: Any, name: str) -> Any:
        asked.append(name)
        return sandbox(value, name)

    environment = found.environment
    environment.getattr = lambda value, name: look_up(  # type: ignore[method-assign]
        counted, environment.undefined, value, name
    )
    assert found.render(messages=[{"role": "user", "content": "x"}]) == "USERx0True0"
    assert asked == []
