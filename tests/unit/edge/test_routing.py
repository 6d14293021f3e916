"""Which backends are offered a request, and in which order."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from gateway.core.admission import Outcomes
from gateway.core.choice import Load
from gateway.core.outlier import Failure, Health
from gateway.core.quarantine import Case, Clue, Mark, State
from gateway.edge.backends import MODELS_REMEMBERED
from gateway.edge.clock import wall_clock
from gateway.edge.routing import Policy, Routing
from gateway.errors import Kind, Rejection
from gateway.types import ChatPrompt, Evidence, ParsedRequest
from unit.edge.test_backends import backend, seen

TENANT, OTHER = SimpleNamespace(id="t"), SimpleNamespace(id="u")


def request(model="m", text="hello", **more):
    body = {"messages": [{"role": "user", "content": text}], **more}
    return ParsedRequest(
        "openai_chat", "/", text.encode(), body, model, False, ChatPrompt("openai_chat", body)
    )


def some(*names, **more):
    made = [backend(name, **more) for name in names]
    for _, discovery, _ in made:
        discovery.snapshot = seen(100)
    return [one for one, _, _ in made]


def names(routing, parsed=None, *options, **more):
    return [one.name for one in routing.order(parsed or request(), *options, **more)]


def put(one, state):
    clue = Clue(wall_clock(), "x", "t", Evidence.STRONG, False)
    out = Mark(clue.at, "x") if state is State.QUARANTINED else None
    one.past.case = Case(clues=(clue,), out=out)


def rewire(one, **changes):
    one.wiring = replace(one.wiring, **changes)
    one.plain = one.wiring.plain


def eject(one, until):
    one.past.health = Health(0, 1, until, 0.0, Failure.CONNECT)


def refusal(routing, parsed=None):
    with pytest.raises(Rejection) as caught:
        routing.order(parsed or request())
    return caught.value


def test_the_least_outstanding_tokens_come_first_whatever_the_requests():
    few, many, idle = some("few", "many", "idle")
    few.past.load = Load(prefilling=9000)  # one long prompt
    many.past.load = Load(prefilling=800, decoding=8)  # twelve short ones
    assert names(Routing([few, many, idle], Policy(stream_tokens=100))) == ["idle", "many", "few"]
    assert names(Routing([few, many], Policy(stream_tokens=2000))) == ["few", "many"]


def test_idle_backends_take_turns():
    routing = Routing(some("a", "b", "c"), Policy())
    assert [names(routing)[0] for _ in range(4)] == ["a", "b", "c", "a"]


def test_models_are_matched_by_pattern_and_unserved_ones_refused():
    glm, _, _ = backend("glm", models=("glm-*",))
    routing = Routing([glm], Policy())
    assert names(routing, request("glm-5")) == ["glm"]
    assert refusal(routing, request("GLM-5")).kind is Kind.MODEL_NOT_FOUND


def test_names_from_requests_do_not_pile_up():
    routing = Routing(some("a"), Policy())
    for number in range(2 * MODELS_REMEMBERED):
        routing.serving(f"m{number}")
        with pytest.raises(Rejection):
            Routing([], Policy()).serving(f"m{number}")
    assert len(routing._by_model) <= MODELS_REMEMBERED


def test_the_suspect_come_last_and_the_quarantined_never():
    good, suspect, out = some("good", "suspect", "out")
    put(suspect, State.SUSPECT)
    put(out, State.QUARANTINED)
    good.past.load = Load(10**6, 9)
    assert names(Routing([out, suspect, good], Policy())) == ["good", "suspect"]
    assert refusal(Routing([out], Policy())).kind is Kind.QUARANTINED


def test_suspicion_ends_by_time():
    one, other = some("a", "b")
    put(one, State.SUSPECT)
    one._standings._clock = lambda: wall_clock() + 10**6
    other.past.load = Load(1)
    assert names(Routing([one, other], Policy()))[0] == "a"


def test_one_that_would_take_any_prompt_comes_after_those_of_known_limit():
    known, silent, suspect = some("known", "silent", "suspect")
    for one in (known, silent, suspect):
        rewire(one, outcomes=Outcomes(allow_unknown_limit=True))
    silent.discovery.snapshot = seen(None)
    put(suspect, State.SUSPECT)
    known.past.load = Load(5000)
    assert names(Routing([silent, suspect, known], Policy())) == ["known", "silent", "suspect"]


# --- ejection -----------------------------------------------------------------------------------


def test_the_ejected_are_left_out_until_their_time_and_then_have_one_trial():
    out, clock = backend("out")[0::2]
    out.discovery.snapshot = seen(100)
    [other] = some("other")
    routing = Routing([out, other], Policy())
    eject(out, 10.0)
    assert names(routing) == ["other"]
    clock.now = 10.0
    assert set(names(routing)) == {"out", "other"}
    assert out.ejections.begin_trial(out)
    assert not out.ejections.begin_trial(out)
    assert names(routing) == ["other"]
    out.ejections.end_trial(out)
    assert set(names(routing)) == {"out", "other"}


def test_where_only_the_ejected_are_left_the_refusal_says_when_to_come_back():
    soon, late, leaking = some("soon", "late", "leaking")
    eject(soon, 7.5)
    eject(late, 20.0)
    put(leaking, State.QUARANTINED)
    why = refusal(Routing([soon, late, leaking], Policy()))
    assert (why.kind, why.retry_after) == (Kind.EJECTED, 8)
    eject(leaking, 1.0)  # both: what comes back by an operator's word alone is no hope
    assert refusal(Routing([soon, late, leaking], Policy())).retry_after == 8
    assert refusal(Routing([leaking], Policy())).kind is Kind.QUARANTINED


# --- affinity -----------------------------------------------------------------------------------


def affine(backends, secret=b"k" * 16, **more):
    return Routing(backends, Policy(secret=secret, **more))


def key(routing, parsed, tenant=TENANT, **headers):
    return routing.affinity(SimpleNamespace(headers=headers), tenant, parsed)


def test_one_beginning_goes_to_one_backend_and_others_elsewhere():
    routing = affine(some(*"abcdefgh"))
    keys = [key(routing, request(text=f"chat {number}")) for number in range(50)]
    first = [names(routing, request(), each)[0] for each in keys]
    assert first == [names(routing, request(), each)[0] for each in keys]
    assert len(set(first)) > 4


def test_the_choice_is_the_same_on_every_gateway_with_the_secret_in_any_order():
    one, other = affine(some(*"abcd")), affine(some(*"dcba"))
    different = affine(some(*"abcd"), b"x" * 16)
    keys = [key(routing, request()) for routing in (one, other, different)]
    assert keys[0] == keys[1] != keys[2]
    assert names(one, request(), keys[0]) == names(other, request(), keys[1])


def test_no_tenant_finds_anothers_key():
    routing = affine(some("a"))
    assert key(routing, request()) != key(routing, request(), OTHER)


def test_without_affinity_or_without_text_there_is_no_key():
    assert key(Routing(some("a"), Policy()), request()) == 0
    assert key(affine(some("a")), request(text="")) == 0


def test_a_session_is_the_clients_word_where_that_is_configured():
    one, other = request(text="one", user="anna"), request(text="other", user="anna")
    by_prompt = affine(some("a"))
    assert key(by_prompt, one) != key(by_prompt, other)
    by_user = affine(some("a"), session="user")
    assert key(by_user, one) == key(by_user, other) != key(by_user, request(user="ben"))
    assert key(by_user, request()) == key(by_prompt, request())  # says no user
    by_header = affine(some("a"), session="header", session_header="x-chat")
    assert key(by_header, one, **{"x-chat": "7"}) == key(by_header, other, **{"x-chat": "7"})
    assert key(by_header, one, **{"x-chat": "8"}) != key(by_header, one, **{"x-chat": "7"})


def test_the_overloaded_one_is_passed_over():
    backends = some(*"abcd")
    routing = affine(backends)
    number = key(routing, request())
    first, second, *_ = names(routing, request(), number)
    next(one for one in backends if one.name == first).past.load = Load(10_000)
    assert names(routing, request(), number)[0] == second
    assert names(routing, request(), number)[-1] == first


def test_a_canary_is_sent_nothing_before_its_probe_and_is_not_what_is_left(monkeypatch):
    canary, good = some("canary", "good")
    schedule = object()
    rewire(canary, probes=schedule)
    monkeypatch.setattr("gateway.edge.backends.held", lambda probes, *_: probes is schedule)
    assert names(Routing([canary, good], Policy())) == ["good"]
    good.ejections._standings.configure(good.ejections._standings.rules, [canary, good])
    for _ in range(9):
        good.ejections.failed(good, Failure.CONNECT, trial=False)
    assert names(Routing([canary, good], Policy())) == ["good"]
    monkeypatch.undo()
    rewire(canary, probes=None)
    good.ejections.failed(good, Failure.CONNECT, trial=False)
    assert names(Routing([canary, good], Policy())) == ["canary"]
