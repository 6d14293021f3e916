"""The state machine: where the boundary lies, what crosses it, and that pages are conserved."""

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.simulate.engine import Engine, EngineRefusal, Stage, Work
from gateway.simulate.pages import FreeOrder

Make = Callable[..., Engine]
LIMIT = 1017  # min(context 4096, prefill 1024, decode 4096) - 7


def victims(engine: Engine, ask: Callable, count: int = 6) -> dict[str, list[int]]:
    """Earlier tenants, each with tokens nobody else has in that order."""
    prompts = {
        f"victim-{tenant}": [1 + (7 * k + 131 * tenant) % 900 for k in range(900)]
        for tenant in range(count)
    }
    for owner, prompt in prompts.items():
        ask(engine, owner, prompt, max_new_tokens=4)
    return prompts


def contains(haystack: list[int], needle: list[int]) -> bool:
    width = len(needle)
    return any(haystack[at : at + width] == needle for at in range(len(haystack) - width + 1))


@pytest.mark.parametrize("offset", [-2, -1, 0, 1, 2])
@pytest.mark.parametrize("faults", [(), ("to_finish",), ("to_finish", "len_check")])
def test_boundary_table(make_engine: Make, ask: Callable, faults: tuple[str, ...], offset: int):
    engine = make_engine(*faults)
    victims(engine, ask)
    prompt = [950] * (LIMIT + offset)
    if offset <= 0:
        sequence = ask(engine, "asker", prompt, max_new_tokens=400, ignore_eos=True)
        assert sequence.stage is Stage.FINISHED
        assert not sequence.copied
        assert engine.truth(sequence).exposed_tokens == 0
    elif faults == ():
        with pytest.raises(EngineRefusal, match=r"exceeds the maximum allowed length \(1018") as no:
            ask(engine, "asker", prompt)
        assert no.value.status == 400
    elif "len_check" in faults:
        with pytest.raises(EngineRefusal, match=rf"received 1 of {len(prompt)}") as no:
            ask(engine, "asker", prompt)
        assert no.value.status == 500
    else:
        sequence = ask(engine, "asker", prompt, max_new_tokens=400, ignore_eos=True)
        truth = engine.truth(sequence)
        assert truth.leaked
        assert truth.exposed_tokens == len(prompt) - 1
    assert engine.decode_memory.free_pages == engine.decode_memory.page_count


def test_the_books_of_both_sides_disagree_only_in_the_incident(make_engine: Make, ask: Callable):
    engine = make_engine("to_finish")
    victims(engine, ask)
    leaked = engine.truth(ask(engine, "over", [950] * 1020))
    assert (leaked.prompt_tokens, leaked.prefill_tokens) == (1020, 1)
    assert (leaked.reserved_pages, leaked.sent_pages, leaked.received_tokens) == (16, 1, 1)
    clean = engine.truth(ask(engine, "under", [950] * 1000))
    assert (clean.reserved_pages, clean.sent_pages, clean.received_tokens) == (16, 16, 1000)


def test_leaked_tokens_are_runs_of_the_named_victims_prompts(make_engine: Make, ask: Callable):
    engine = make_engine("to_finish")
    prompts = victims(engine, ask)
    sequence = ask(engine, "over", [950] * 1500, max_new_tokens=600, ignore_eos=True)
    truth = engine.truth(sequence)
    assert set(truth.copied) <= set(prompts)
    assert sum(truth.copied.values()) > 100
    for owner in truth.copied:
        assert any(
            contains(prompts[owner], sequence.output[at : at + 8])
            for at in range(len(sequence.output) - 8)
        ), owner


def test_scrubbing_leaves_nothing_to_leak(make_engine: Make, ask: Callable):
    engine = make_engine("to_finish", scrub_on_free=True, prefix_cache=False)
    victims(engine, ask)
    truth = engine.truth(ask(engine, "over", [950] * 1500, max_new_tokens=600, ignore_eos=True))
    assert not truth.leaked


def test_nothing_leaks_at_or_under_the_limit(make_engine: Make, ask: Callable):
    engine = make_engine("to_finish")
    for number in range(300):
        length = 1 + (number * 397) % LIMIT
        prompt = [1 + (number * 31 + k * 7) % 900 for k in range(length)]
        truth = engine.truth(ask(engine, f"r{number}", prompt, max_new_tokens=60))
        assert not truth.leaked
        assert truth.exposed_tokens == 0


@pytest.mark.parametrize(
    ("length", "new", "message"),
    [
        (4096, None, r"The input \(4096 tokens\) is longer than the model's context length"),
        (4000, 97, r"You requested a total of 4097 tokens"),
        (0, None, "empty"),
    ],
)
def test_the_context_is_always_enforced(
    make_engine: Make, length: int, new: int | None, message: str
):
    engine = make_engine("to_finish")
    with pytest.raises(EngineRefusal, match=message) as refused:
        engine.receive(Work("r", "r", [1] * length, new))
    assert not refused.value.in_stream


def test_decodes_own_pool_is_enforced_whatever_the_fault(make_engine: Make):
    engine = make_engine("to_finish", decode_pool=512)
    engine.receive(Work("r", "r", [1] * 505))
    with pytest.raises(EngineRefusal, match=r"maximum allowed length \(506 tokens\)"):
        engine.receive(Work("s", "s", [1] * 506))


def test_same_seed_same_answers(make_engine: Make, ask: Callable):
    def outputs(seed: int) -> list[list[int]]:
        engine = make_engine("to_finish", seed=seed, free_order=FreeOrder.RANDOM)
        victims(engine, ask)
        return [ask(engine, f"r{n}", [950] * n, max_new_tokens=80).output for n in (40, 1017, 1300)]

    assert outputs(1) == outputs(1)
    assert outputs(1) != outputs(2)


def test_cached_tokens_follow_the_salt(make_engine: Make, ask: Callable):
    prompt = list(range(1, 200))
    honest, silent, loud = (make_engine(*f) for f in ((), ("cache_silent",), ("salt",)))
    for engine in (honest, silent, loud):
        assert ask(engine, "a", prompt, salt="tenant-a").cached == 0
        assert ask(engine, "b", prompt, salt="tenant-a").cached == 192
    assert ask(honest, "c", prompt, salt="tenant-b").cached == 0
    assert ask(loud, "c", prompt, salt="tenant-b").cached == 192
    sequence = silent.receive(Work("c", "c", prompt, salt="tenant-b"))
    silent.start()
    assert sequence.cached == 0
    assert silent.uncached(sequence) == 7  # it did use the foreign cache: only its word is false


def test_shared_pages_expose_nothing(make_engine: Make, ask: Callable):
    engine = make_engine()
    prompt = list(range(1, 200))
    ask(engine, "a", prompt)
    truth = engine.truth(ask(engine, "b", prompt, max_new_tokens=300, ignore_eos=True))
    assert truth.cached_tokens == 192
    assert truth.exposed_tokens == 0


def test_an_early_free_lets_the_writer_overwrite_the_next_request(make_engine: Make):
    engine = make_engine("early_free", prefix_cache=False, prefill_pool=2048)
    aborted = engine.receive(Work("a", "a", [7] * 900, 1))
    engine.start()
    engine.close(aborted)
    assert aborted.stage is Stage.ABORTED
    # the pool is FIFO, so take what is before the freed pages and then these
    held = engine.decode_memory.allocate(engine.decode_memory.page_count - 15)
    other = engine.receive(Work("b", "b", [8] * 900, 40, ignore_eos=True))
    assert other in engine.start()
    while engine.uncached(other):
        engine.prefill_chunk(other)
    engine.transfer(other)
    while engine.uncached(aborted):
        engine.prefill_chunk(aborted)
    engine.late_transfer(aborted)
    engine.step(other)
    engine.close(other)
    assert engine.truth(other).exposed_tokens == 900
    engine.decode_memory.release(held)
    assert engine.prefill_memory.free_pages == engine.prefill_memory.page_count


def test_an_empty_200_has_no_text_and_no_finish(make_engine: Make, ask: Callable):
    sequence = ask(make_engine("empty200"), "r", [1, 2, 3])
    assert (sequence.output, sequence.finish, sequence.stage) == ([], "empty", Stage.FINISHED)


SCHEDULE = st.lists(
    st.tuples(st.sampled_from(["receive", "advance", "close"]), st.integers(0, 1200)),
    max_size=60,
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    schedule=SCHEDULE,
    bug=st.booleans(),
    cache=st.booleans(),
    order=st.sampled_from(list(FreeOrder)),
)
def test_pages_are_conserved_under_any_schedule(
    make_engine: Make, schedule: list[tuple[str, int]], bug: bool, cache: bool, order: FreeOrder
):
    faults = ("to_finish",) if bug else ()
    engine = make_engine(*faults, prefix_cache=cache, free_order=order, decode_pool=2048)
    live = []
    for serial, (action, number) in enumerate(schedule):
        if action == "receive":
            prompt = [1 + (k * (1 + number % 3)) % 900 for k in range(number)]
            try:
                work = Work(f"r{serial}", f"r{serial}", prompt, 30)
                live.append(engine.receive(work))
            except EngineRefusal:
                continue
        elif live:
            sequence = live[number % len(live)]
            if action == "close":
                live.remove(sequence)
                assert engine.close(sequence)
            else:
                advance(engine, sequence)
        tables = [page for s in live for page in s.decode_table]
        assert len(set(tables)) == len(tables)
        assert len(tables) + engine.decode_memory.free_pages == engine.decode_memory.page_count
    for sequence in live:
        engine.close(sequence)
        assert not engine.close(sequence)
    assert engine.decode_memory.free_pages == engine.decode_memory.page_count
    free = engine.prefill_memory.free_pages + engine.cache.held_pages
    assert free == engine.prefill_memory.page_count
    assert engine.prefilling == engine.waiting == 0


def advance(engine: Engine, sequence) -> None:
    """Let one sequence do whatever comes next for it."""
    engine.start()
    if sequence.stage is Stage.PREFILL:
        if engine.uncached(sequence):
            engine.prefill_chunk(sequence)
        else:
            engine.transfer(sequence)
    elif sequence.stage is Stage.DECODE:
        engine.step(sequence)
