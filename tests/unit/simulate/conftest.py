"""A small engine on invented tokens: prompts are below 1000, filler is 1000 and up."""

from collections.abc import Callable, Sequence
from zlib import crc32

import pytest

from gateway.simulate.engine import Engine, EngineRefusal, Work
from gateway.simulate.engine import Sequence as Running
from gateway.simulate.faults import Faults
from gateway.simulate.settings import SimulateSettings
from gateway.simulate.text import Filler
from gateway.simulate.timing import INSTANT

SPECIAL = frozenset({0})


def fake_encode(text: str) -> Sequence[int]:
    return (1000 + crc32(text.encode()) % 500,)


@pytest.fixture
def make_engine() -> Callable[..., Engine]:
    def make(*faults: str, **changes: object) -> Engine:
        sizes = {"context": 4096, "prefill_pool": 1024, "decode_pool": 4096, "timing": INSTANT}
        settings = SimulateSettings(faults=Faults.named(faults), **(sizes | changes))
        return Engine(settings, Filler(fake_encode), SPECIAL)

    return make


@pytest.fixture
def finish() -> Callable[[Engine, Running], Running]:
    """Drive a received sequence to its end, as the driver would."""

    def run(engine: Engine, sequence: Running) -> Running:
        try:
            assert sequence in engine.start()
            while engine.uncached(sequence):
                engine.prefill_chunk(sequence)
            engine.transfer(sequence)
            while engine.step(sequence) is not None:
                pass
        except EngineRefusal as refusal:
            sequence.status = refusal.status
            raise
        finally:
            engine.close(sequence)
        return sequence

    return run


@pytest.fixture
def ask(finish: Callable[[Engine, Running], Running]) -> Callable[..., Running]:
    """Receive a prompt and drive it to its end."""

    def run(engine: Engine, owner: str, prompt: Sequence[int], **options: object) -> Running:
        return finish(engine, engine.receive(Work(owner, owner, prompt, **options)))

    return run
