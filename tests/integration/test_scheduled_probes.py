"""Probes that the gateway sends by itself: when, what they find, what ends a quarantine."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import aiohttp
import pytest

from gateway.app import App
from gateway.core.lexicon import lexicon
from gateway.core.quarantine import Clue, State
from gateway.edge import gate_watch, probe_task
from gateway.simulate import INSTANT, Faults, Habits, SimulateSettings, Timing, running
from gateway.types import Evidence
from integration.conftest import settings_for
from valkey_server import free_port
from waiting import until

SIZES = SimulateSettings(
    context=2048,
    prefill_pool=1024,
    decode_pool=2048,
    timing=INSTANT,
    habits=Habits(q_copy=1.0, mean_run=20.0),
)
SLOW = Timing(base=0.0, prefill_tokens_per_second=20_000.0, inter_token=0.001, spread=0.0)
SOON = {"every": "10m", "retry": "50ms", "idle": "10ms"}
RELEASE = {"detection": "1", "bound": 0.2, "after": 2}  # 15 clean answers
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}


@dataclass
class Site:
    """A gateway of one backend, ``sim``."""

    app: App
    http: aiohttp.ClientSession

    @property
    def backend(self):
        return self.app.generation.runtime.backends[0]

    @property
    def history(self):
        return self.backend.past.probed

    def runs(self, result):
        labels = {"backend": "sim", "result": result}
        return self.app.metrics.registry.get_sample_value("poolgate_probe_runs_total", labels)

    async def chat(self):
        async with self.http.post(self.app.data_url + "/v1/chat/completions", json=CHAT) as answer:
            return answer.status

    async def status(self):
        async with self.http.get(self.app.admin_url + "/status") as answer:
            return (await answer.json())["backends"][0]

    async def metrics(self):
        async with self.http.get(self.app.admin_url + "/metrics") as answer:
            return await answer.text()

    def convict(self):
        """As a finding in a tenant's answer would."""
        clue = Clue(self.app._standings.now(), "binding", "t", Evidence.CERTAIN, forgeable=False)
        self.app._standings.report(self.backend, clue)
        assert self.backend.standing.state is State.QUARANTINED


@asynccontextmanager
async def site(url, probe, *, more=None, **written):
    backend = {"limit": {"refresh": "60ms"}, "probe": {**SOON, **probe}, **(more or {})}
    written.setdefault("integrity", {"quarantine": {"max_share": 1}})
    app = App()
    try:
        async with aiohttp.ClientSession() as http:
            await app.start(settings_for(url, backend=backend, **written))
            yield Site(app, http)
    finally:
        await app.stop()


# --- release -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "timing"),
    [("to_finish", INSTANT), ("salt", INSTANT), ("swap", INSTANT), ("empty200", INSTANT)],
)
async def test_a_leaky_backend_stays_quarantined(fault, timing):
    sim = replace(SIZES, faults=Faults.named([fault]), timing=timing)
    async with running(sim) as engine, site(engine.url, {"release": RELEASE}) as here:
        here.convict()
        # Each answer of this fault waits a quarter of a second for another to change places with.
        await until(lambda: here.runs("fault") >= (1 if fault == "swap" else 3), 60)
        assert here.runs("clean") == 0
        assert here.backend.standing.state is State.QUARANTINED
        assert await here.chat() == 503


async def test_the_writer_that_outlives_its_request_keeps_a_backend_out():
    sizes = {"context": 1024, "decode_pool": 576, "prefill_pool": 1152, "prefix_cache": False}
    timing = replace(SLOW, prefill_tokens_per_second=2_000.0)
    sim = replace(SIZES, faults=Faults.named(["early_free"]), timing=timing, **sizes)
    probe = {"release": RELEASE}
    async with running(sim) as engine, site(engine.url, probe) as here:
        here.convict()
        await until(lambda: here.runs("fault") >= 1, 120)
        found = here.app.recorder.incidents.matching({})[0]["finding"]
        assert (found["reason"], found["verdict"]) == ("abort", "leak")
        assert here.backend.standing.state is State.QUARANTINED


async def test_a_fixed_engine_in_its_place_is_released_by_clean_probes():
    port = free_port()
    async with site(f"http://127.0.0.1:{port}", {"release": RELEASE}) as here:
        async with running(replace(SIZES, faults=Faults.named(["to_finish"])), port=port):
            await until(lambda: here.backend.digest)
            here.convict()
            await until(lambda: here.runs("fault") >= 1)
            assert here.backend.standing.state is State.QUARANTINED
        async with running(replace(SIZES, version="0.5.24"), port=port):
            await until(lambda: here.backend.standing.state is State.SERVING)
            # Five answers each, or six where the check of aborts was not too late to count.
            assert here.runs("clean") == 3
            assert here.backend.standing.reason == "released by probe"
            assert await here.chat() == 200
            assert 'poolgate_probe_releases_total{backend="sim"} 1.0' in await here.metrics()
            told = (await here.status())["probe"]
            assert told["last"] == "clean"
            assert 15 <= told["clean_answers"] <= 18
            assert told["leak_rate_excluded"] == pytest.approx(3 / told["clean_answers"])


async def test_without_release_clean_probes_change_nothing():
    async with running(SIZES) as engine, site(engine.url, {}) as here:
        here.convict()
        await until(lambda: here.runs("clean") >= 4)
        assert here.backend.standing.state is State.QUARANTINED


async def test_a_backend_that_serves_is_not_probed_unless_that_is_written():
    async with running(SIZES) as engine, site(engine.url, {}) as here:
        await asyncio.sleep(0.5)
        assert here.history.at is None
        assert engine.counters.prompt_tokens == 0


# --- canaries ----------------------------------------------------------------------------------


async def test_a_canary_takes_no_traffic_before_its_clean_probe():
    sim = replace(SIZES, timing=SLOW)
    async with running(sim) as engine, site(engine.url, {"canary": True, "when": []}) as here:
        assert await here.chat() == 503
        assert (await here.status())["standing"]["reason"] == "canary"
        assert 'poolgate_backend_standing{backend="sim"} 3.0' in await here.metrics()
        await until(lambda: not here.backend.held)
        assert here.runs("clean") == 1
        assert await here.chat() == 200


async def test_a_leaky_canary_never_serves():
    sim = replace(SIZES, faults=Faults.named(["to_finish"]))
    async with running(sim) as engine, site(engine.url, {"canary": True}) as here:
        await until(lambda: here.runs("fault") >= 2)
        assert await here.chat() == 503
        kinds = {incident["kind"] for incident in here.app.recorder.incidents}
        assert kinds == {"probe"}


async def test_an_operators_word_lets_a_canary_serve():
    sim = replace(SIZES, faults=Faults.named(["empty200"]))
    async with running(sim) as engine, site(engine.url, {"canary": True, "when": []}) as here:
        await until(lambda: here.runs("fault") >= 1)
        async with here.http.post(here.app.admin_url + "/backends/sim/release") as answer:
            assert answer.status == 200
        assert here.backend.standing.state is State.SERVING


# --- occasions ---------------------------------------------------------------------------------


async def test_another_version_is_probed():
    port = free_port()
    async with site(f"http://127.0.0.1:{port}", {"when": ["start", "change"]}) as here:
        async with running(SIZES, port=port):
            await until(lambda: here.runs("clean") == 1)
            assert here.history.occasion == "start"
            await asyncio.sleep(0.4)
            assert here.runs("clean") == 1  # once is enough
        leaky = replace(SIZES, version="0.5.24", faults=Faults.named(["to_finish"]))
        async with running(leaky, port=port):
            await until(lambda: here.runs("fault") == 1)
            assert here.history.occasion == "change"
            [incident] = here.app.recorder.incidents
            assert incident["kind"] == "probe"
            assert incident["engine"]["versions"] == ["0.5.24"]
            assert incident["finding"]["reason"] == "over"
            assert here.backend.standing.state is not State.SERVING


async def test_a_fault_that_is_only_flagged_moves_nothing():
    sim = replace(SIZES, faults=Faults.named(["to_finish"]))
    async with (
        running(sim) as engine,
        site(engine.url, {"when": ["start"], "action": "flag"}) as here,
    ):
        await until(lambda: here.runs("fault") == 1)
        assert here.backend.standing.state is State.SERVING
        assert len(here.app.recorder.incidents) == 1


async def test_it_never_runs_beside_traffic():
    sim = replace(SIZES, timing=SLOW)
    async with running(sim) as engine, site(engine.url, {"when": ["start", "serving"]}) as here:
        run = here.backend.neighbours.begin()
        try:
            await asyncio.sleep(0.5)
            sent = engine.counters.prompt_tokens
            assert (await here.status())["probe"]["due"] == "start"
        finally:
            here.backend.neighbours.end(run)
        assert sent == 0 or here.runs("broken_off") == 1  # one that had begun before
        await until(lambda: here.runs("clean") == 1)


async def test_it_gives_way_to_traffic_that_comes():
    timing = replace(SLOW, prefill_tokens_per_second=2_000.0)
    async with running(replace(SIZES, timing=timing)) as engine:
        async with site(engine.url, {"when": ["start"], "retry": "10m"}) as here:
            await until(lambda: engine.service.driver.running)
            answer = asyncio.create_task(here.chat())
            await until(lambda: here.runs("broken_off") == 1)
            assert await answer == 200
            assert here.runs("clean") == 0
            assert here.history.last == "broken_off"


async def test_what_it_found_before_it_gave_way_counts():
    timing = replace(SLOW, prefill_tokens_per_second=2_000.0)
    sim = replace(SIZES, timing=timing, faults=Faults.named(["to_finish"]))
    async with running(sim) as engine:
        async with site(engine.url, {"when": ["start"], "retry": "10m"}) as here:
            await until(lambda: any(truth.prompt_tokens > 1017 for truth in engine.truths.values()))
            await until(lambda: engine.service.driver.running)  # the check of the salt
            here.backend.neighbours.begin()
            await until(lambda: here.history.last is not None)
            assert here.history.last == "fault"
            assert len(here.app.recorder.incidents) == 1


@pytest.mark.parametrize("on_disconnect", ["cancel", "drain"])
async def test_it_is_cancelled_only_where_that_can_corrupt_nobody(on_disconnect):
    timing = replace(SLOW, prefill_tokens_per_second=2_000.0)
    more = {"on_disconnect": on_disconnect}
    async with running(replace(SIZES, timing=timing)) as engine:
        async with site(engine.url, {"when": ["start"], "retry": "10m"}, more=more) as here:
            await until(lambda: engine.service.driver.running)
            run = here.backend.neighbours.begin()
            await until(lambda: here.runs("broken_off") == 1)
            await until(lambda: engine.idle)
            here.backend.neighbours.end(run)
            stages = {truth.stage for truth in engine.truths.values()}
    assert stages == {"aborted" if on_disconnect == "cancel" else "finished"}


async def test_a_probe_that_cannot_run_is_no_verdict():
    sim = replace(SIZES, context=96, prefill_pool=96, decode_pool=1024, page_size=16)
    async with running(sim) as engine, site(engine.url, {"canary": True}) as here:
        await until(lambda: here.runs("could_not_run") >= 1)
        assert here.backend.held
        assert here.app.recorder.incidents.matching({}) == []


async def test_a_reload_keeps_what_was_found_and_never_probes_twice_at_once():
    sim = replace(SIZES, timing=replace(SLOW, prefill_tokens_per_second=4_000.0))
    async with running(sim) as engine, site(engine.url, {"canary": True}) as here:
        most = 0
        for _ in range(4):
            await until(lambda: engine.service.driver.running)
            await here.app.reload(here.app.settings)
            await asyncio.sleep(0.1)
            most = max(most, engine.service.driver.running)
        assert most <= 2  # the two that are asked together
        await until(lambda: here.runs("clean") >= 1, 60)
        runs = here.runs("clean")
        await here.app.reload(here.app.settings)
        await asyncio.sleep(0.3)
        assert not here.backend.held
        assert here.runs("clean") == runs


# --- the gate while it serves ------------------------------------------------------------------


def gate_series(text, level):
    return {
        line
        for line in text.splitlines()
        if line.startswith("poolgate_gate_findings{") and f'level="{level}"' in line
    }


async def test_a_smaller_pool_is_found_when_the_engine_changes():
    port = free_port()
    covered = replace(SIZES, prefill_pool=4096, decode_pool=4096)
    gate = {"gate": {"action": "quarantine"}}
    async with site(f"http://127.0.0.1:{port}", {}, more=gate) as here:
        async with running(covered, port=port):
            await until(lambda: here.backend.gate().findings)
            assert gate_series(await here.metrics(), "fail") == set()
            assert (await here.status())["gate"]["verdict"] == "pass"
        async with running(replace(covered, prefill_pool=1024), port=port):
            await until(lambda: len(here.app.recorder.incidents) == 1)
            [failed] = [
                one for one in gate_series(await here.metrics(), "fail") if 'check="pool"' in one
            ]
            assert failed == ('poolgate_gate_findings{backend="sim",check="pool",level="fail"} 1.0')
            [incident] = here.app.recorder.incidents
            assert incident["kind"] == "gate"
            assert incident["finding"]["reason"] == "limit,pool"
            assert here.backend.standing.state is State.SUSPECT
            assert (await here.status())["gate"]["verdict"] == "fail"
            await asyncio.sleep(0.3)
            assert len(here.app.recorder.incidents) == 1  # told once


async def test_a_pool_below_its_context_is_only_shown_by_default():
    async with running(SIZES) as engine, site(engine.url, {}) as here:
        await until(lambda: here.backend.gate().findings)
        assert gate_series(await here.metrics(), "fail")
        assert here.app.recorder.incidents.matching({}) == []
        assert here.backend.standing.state is State.SERVING


async def test_tokens_that_were_never_sent_are_found_while_it_serves(monkeypatch):
    monkeypatch.setattr(gate_watch, "BOOKS_EVERY", 0.05)
    sim = replace(SIZES, faults=Faults.named(["to_finish"]))
    async with running(sim) as engine, site(engine.url, {}) as here:
        await until(lambda: here.backend.gate().findings)
        body = {"model": "m", "sampling_params": {"max_new_tokens": 4}}
        for number in range(3):  # past the gateway; the first is within the slack
            body |= {"input_ids": [1500] * 1900, "rid": f"r{number}"}
            async with here.http.post(engine.url + "/generate", json=body) as answer:
                assert answer.status == 200
        await until(
            lambda: any(
                (one.check, one.level) == ("transfer", "fail")
                for one in here.backend.gate().findings
            )
        )


async def test_a_bug_in_a_probe_is_told_and_not_its_end(monkeypatch, caplog):
    def broken(*_):
        raise ZeroDivisionError

    async with running(SIZES) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(probe_task, "local_measure", broken)
            async with site(engine.url, {"canary": True}) as here:
                await until(lambda: here.runs("could_not_run") >= 1)
                assert "it failed: ZeroDivisionError" in caplog.text
                patch.undo()
                await until(lambda: not here.backend.held)


# --- privacy -----------------------------------------------------------------------------------


async def test_no_words_of_a_probe_are_told(caplog):
    sim = replace(SIZES, faults=Faults.named(["to_finish"]))
    async with running(sim) as engine, site(engine.url, {"canary": True}) as here:
        await until(lambda: here.runs("fault") >= 1)
        told = json.dumps([*here.app.recorder.incidents, await here.status()]) + caplog.text
        assert "tag:" not in told
        words = set(lexicon().words)
        said = [word in words for word in told.lower().replace('"', " ").split()]
        runs = "".join("x" if one else " " for one in said).split()
        assert max(map(len, runs), default=0) < 5
