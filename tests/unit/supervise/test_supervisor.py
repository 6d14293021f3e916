"""Reloads over several workers, and pauses between restarts."""

from __future__ import annotations

import signal

import pytest

from gateway.settings import NoSecrets, Problem, SettingsError
from gateway.supervise.handover import written
from gateway.supervise.supervisor import LONGEST_DELAY, Supervisor, pause
from supervise_stubs import StubWorker

REFUSAL = [Problem("backends[0].tokenizer", "is not there")]


def configuration(limit):
    _, made = written(
        "workers: 3\nlimits: {store: 'redis://h'}\n"
        f"backends: [{{name: a, url: 'http://h:1', limit: {{max_prompt_tokens: {limit}}}}}]\n",
        NoSecrets(),
    )
    return made


OLD, NEW = configuration(1), configuration(2)


def supervisor(*refusals):
    """One whose workers serve under OLD and have this against NEW; None: they do not answer."""
    made = Supervisor(OLD.settings(), OLD, {}, access_log=False)
    workers = [StubWorker(n, handed=OLD, refuses=refuses) for n, refuses in enumerate(refusals)]
    for slot, worker in zip(made._slots, workers, strict=True):
        slot.worker = worker
    return made, workers


async def test_a_reload_reaches_all():
    made, workers = supervisor([], [], [])
    await made.reload(NEW.settings(), NEW)
    assert [worker.handed for worker in workers] == [NEW] * 3
    assert [worker.signals for worker in workers] == [[], [], []]
    assert made.settings == NEW.settings()


@pytest.mark.parametrize(
    ("refusal", "signals", "told"),
    [(REFUSAL, [], "is not there"), (None, [signal.SIGKILL], "does not answer")],
)
async def test_what_the_first_does_not_take_reaches_none(refusal, signals, told):
    made, workers = supervisor(refusal, [], [])
    with pytest.raises(SettingsError, match=told):
        await made.reload(NEW.settings(), NEW)
    assert [worker.handed for worker in workers] == [OLD] * 3
    assert [worker.signals for worker in workers] == [signals, [], []]
    assert made.settings == OLD.settings()
    assert made._handover.written is OLD  # what the next worker is started with


@pytest.mark.parametrize(
    ("refusal", "signals"), [(REFUSAL, [signal.SIGTERM]), (None, [signal.SIGKILL, signal.SIGTERM])]
)
async def test_a_later_one_that_does_not_take_it_is_started_again(refusal, signals, caplog):
    made, workers = supervisor([], refusal, [])
    await made.reload(NEW.settings(), NEW)
    assert [worker.handed for worker in workers] == [NEW, OLD, NEW]
    assert [worker.signals for worker in workers] == [[], signals, []]
    assert made._handover.written is NEW
    assert "worker 1 refuses the configuration in force" in caplog.text


async def test_without_a_worker_to_try_it_nothing_changes():
    made, workers = supervisor([], [], [])
    for worker in workers:
        worker.up = False
    with pytest.raises(SettingsError, match="no worker is up"):
        await made.reload(NEW.settings(), NEW)
    assert made._handover.written is OLD


def test_pauses_double_up_to_the_longest():
    pauses = [pause(failures) for failures in range(1, 12)]
    assert pauses[:4] == [0.1, 0.2, 0.4, 0.8]
    assert pauses == sorted(pauses)
    assert pauses[-1] == pause(10_000) == LONGEST_DELAY
