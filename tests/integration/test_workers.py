"""Several worker processes under a supervisor, as operators run them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, replace
from hashlib import sha256

import aiohttp
import psutil
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from fakes.raw_engine import chunk, delta, head
from gateway.engines import detect
from gateway.simulate import INSTANT, SimulateSettings, running
from integration.faulty import SWAPPED
from valkey_server import free_port, server
from waiting import PATIENCE, until

# What a round asks of an engine like this one.
QUESTIONS = {*detect.router_probes(), *detect.by_name("sglang").probes}
BODY = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
# Row 71 asks for 50 repeats, which take minutes: by hand, POOLGATE_DRAINS=50.
DRAINS = int(os.environ.get("POOLGATE_DRAINS", "2"))


@pytest.fixture(scope="module")
def store():
    with server() as valkey:
        yield valkey.url


@dataclass
class Served:
    """``poolgate serve`` with workers, and what it wrote."""

    process: asyncio.subprocess.Process
    config: object
    url: str
    admin: str
    http: aiohttp.ClientSession
    out: asyncio.Task
    err: asyncio.Task
    said: bytearray
    key: str

    @property
    def headers(self):
        return {"Connection": "close", "Authorization": f"Bearer {self.key}"}

    async def get(self, path):
        async with self.http.get(self.admin + path) as answer:
            return answer.status, await answer.read()

    async def processes(self):
        return json.loads((await self.get("/status"))[1])["processes"]

    async def until_serving(self, restarts):
        """All workers are up, after so many restarts."""
        async with asyncio.timeout(PATIENCE):
            while True:
                processes = await self.processes()
                up = all(p["state"] == "up" for p in processes)
                if up and sum(p["restarts"] for p in processes) == restarts:
                    return processes
                await asyncio.sleep(0.05)

    async def counters(self):
        """Every sample of counters and histograms."""
        families = text_string_to_metric_families((await self.get("/metrics"))[1].decode())
        return {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in families
            if family.type in ("counter", "histogram")
            for sample in family.samples
        }

    async def post(self, **more):
        """A call on a connection of its own; its status."""
        async with self.http.post(
            self.url + "/v1/chat/completions", json=BODY | more, headers=self.headers
        ) as answer:
            await answer.read()
            return answer.status

    async def stream(self):
        """A stream on a connection of its own, of which the first event has come."""
        answer = await self.http.post(
            self.url + "/v1/chat/completions",
            json=BODY | {"stream": True},
            headers=self.headers,
            raise_for_status=True,
        )
        await answer.content.readuntil(b"\n\n")
        return answer

    async def until_said(self, text, times):
        """So often on standard error."""
        await until(lambda: self.said.count(text) >= times)

    async def ended(self):
        """Its exit status and what it wrote."""
        async with asyncio.timeout(PATIENCE):
            status = await self.process.wait()
            return status, await self.out, (await self.err).decode()


@contextlib.asynccontextmanager
async def serving(folder, settings, *, wait=True, key="any"):
    folder.mkdir(exist_ok=True)
    config = folder / "poolgate.yaml"
    data, admin = free_port(), free_port()
    addresses = {"listen": f"127.0.0.1:{data}", "admin": f"127.0.0.1:{admin}"}
    config.write_text(yaml.safe_dump(addresses | settings))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "serve", "--config", str(config)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    family = psutil.Process(process.pid)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as http, asyncio.TaskGroup() as readers:
        served = Served(
            process,
            config,
            f"http://127.0.0.1:{data}",
            f"http://127.0.0.1:{admin}",
            http,
            readers.create_task(process.stdout.read()),
            readers.create_task(collected(process.stderr, said := bytearray())),
            said,
            key,
        )
        started = []
        try:
            if wait:
                await until_up(served, settings["workers"])
            started = family.children()
            yield served
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                started += family.children()
            for _ in range(2):  # the second one ends what does not end by itself
                with contextlib.suppress(TimeoutError, ProcessLookupError):
                    process.terminate()
                    async with asyncio.timeout(2):
                        await process.wait()
            for child in started:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
            if process.returncode is None:
                process.kill()
            await process.wait()


async def collected(stream, into):
    while piece := await stream.read(65536):
        into += piece
    return bytes(into)


async def until_up(served, workers):
    async with asyncio.timeout(PATIENCE):
        while served.process.returncode is None:
            with contextlib.suppress(aiohttp.ClientError):
                status, body = await served.get("/readyz")
                if status == 200 and json.loads(body)["processes_ready"] == workers:
                    return
            await asyncio.sleep(0.05)


def settings(engine, store, workers, **more):
    backend = {"name": "a", "url": engine.url, **more.pop("backend", {})}
    return {"workers": workers, "limits": {"store": store}, "backends": [backend], **more}


def gated(go_on):
    """Streams of an event at once, and the rest when ``go_on`` is set; whole answers as ever."""

    async def script(request, wire):
        wire.write(head(kind="text/event-stream", chunked=True) + chunk(delta("a")))
        await go_on.wait()
        wire.write(chunk(delta("b", "stop")) + chunk(b"data: [DONE]\n\n") + chunk(b""))

    return script


async def test_rows_73_and_78_a_killed_worker_takes_nobody_with_it(engine, store, tmp_path):
    go_on = asyncio.Event()
    async with serving(tmp_path, settings(engine, store, 4)) as served:
        # They share the connections, and count as one.
        assert Counter(await asyncio.gather(*(served.post() for _ in range(100)))) == {200: 100}
        each = await shares(served)
        assert sum(each) == 100
        assert min(each) >= 5
        requests = ("poolgate_requests_total", *labels("complete"))
        scrapes = [await served.counters() for _ in range(20)]
        assert [scrape[requests] for scrape in scrapes] == [100] * 20
        assert all(scrape == scrapes[0] for scrape in scrapes)

        engine.script = gated(go_on)
        streams = [await served.stream() for _ in range(12)]
        before = await served.processes()
        assert sum(p["status"]["in_flight"] for p in before) == 12
        victim = max(before, key=lambda p: p["status"]["in_flight"])
        assert 0 < victim["status"]["in_flight"] < 12
        os.kill(victim["pid"], signal.SIGKILL)

        seen = [scrapes[-1]]
        serving_again = asyncio.create_task(served.until_serving(restarts=1))
        while not serving_again.done():
            seen.append(await served.counters())
            await asyncio.sleep(0.05)
        for earlier, later in itertools.pairwise(seen):
            assert {k: v for k, v in earlier.items() if later.get(k, -1) < v} == {}
        assert seen[-1][requests] == 100
        assert seen[-1]["poolgate_worker_restarts_total",] == 1
        after = await serving_again
        assert after[victim["process"]]["pid"] != victim["pid"]
        assert after[victim["process"]]["restarts"] == 1

        go_on.set()
        ends = await asyncio.gather(*(s.content.read() for s in streams), return_exceptions=True)
        whole = [e for e in ends if isinstance(e, bytes) and e.endswith(b"data: [DONE]\n\n")]
        cut = [e for e in ends if isinstance(e, aiohttp.ClientError)]
        assert (len(whole), len(cut)) == (
            12 - victim["status"]["in_flight"],
            victim["status"]["in_flight"],
        )
        assert len(list(psutil.Process(served.process.pid).children())) == 4
        assert len(await private_sockets(served)) == 4

        # One that is told to end by itself ends in good order, and leaves its last words.
        engine.script = engine.answer_chat
        assert Counter(await asyncio.gather(*(served.post() for _ in range(20)))) == {200: 20}
        os.kill(after[0]["pid"], signal.SIGTERM)
        await served.until_serving(restarts=2)
        assert (await served.counters())[requests] == 120 + len(whole)
        gauges = (await served.get("/metrics"))[1].decode()
        assert "poolgate_workers 4.0" in gauges
        assert 'poolgate_effective_limit_tokens{backend="a"} 1017.0' in gauges

        served.process.send_signal(signal.SIGTERM)
        status, lines, errors = await served.ended()
        assert status == 0
        assert f"worker {victim['process']} (pid {victim['pid']}) was killed by SIGKILL" in errors
        records = [json.loads(line) for line in lines.splitlines()]  # each line whole
        assert len(records) == 120 + len(whole)


async def test_row_60_one_worker_asks_and_another_when_it_is_killed(engine, store, tmp_path):
    limit = {"limit": {"refresh": "200ms", "stale_after": "5s"}, "calibration": {"every": "0s"}}

    async def askers(served):
        return [
            process["pid"]
            for process in await served.processes()
            if process["state"] == "up" and process["status"]["backends"][0]["asks_it"]
        ]

    async with serving(tmp_path, settings(engine, store, 3, backend=limit)) as served:
        [leader] = await askers(served)
        before, began = engine.probes, time.monotonic()
        await asyncio.sleep(1)
        rounds, seconds = (engine.probes - before) / len(QUESTIONS), time.monotonic() - began
        assert rounds <= 6.5 * seconds  # three would make fifteen a second
        assert "poolgate_probers 1.0" in (await served.get("/metrics"))[1].decode()

        os.kill(leader, signal.SIGKILL)
        engine.limit, engine.generation = 500, 1  # nobody goes on with the limit of before
        async with asyncio.timeout(PATIENCE):
            while True:
                known = [
                    process["status"]["backends"][0]["limit"].get("max_prompt_tokens")
                    for process in await served.processes()
                    if process["state"] == "up" and process["pid"] != leader
                ]
                if len(known) >= 2 and set(known) == {499}:
                    break
                await asyncio.sleep(0.05)
        await served.until_serving(restarts=1)
        [successor] = await askers(served)
        assert successor != leader
        assert await served.post() == 200


def labels(outcome):
    named = {"backend": "a", "dialect": "openai_chat", "outcome": outcome, "tenant": "default"}
    return sorted(named.items())


async def private_sockets(served):
    """The workers' admin planes, in order."""
    paths = [
        {
            c.laddr
            for c in psutil.Process(p["pid"]).net_connections("unix")
            if str(c.laddr).endswith(".sock")
        }
        for p in await served.processes()
    ]
    (folder,) = {os.path.dirname(path) for (path,) in paths}
    assert os.stat(folder).st_mode & 0o777 == 0o700
    left = [name for name in os.listdir(folder) if name.endswith(".sock")]
    assert len(left) == len(paths)  # none is left of those that ended
    return [path for (path,) in paths]


async def shares(served):
    """How many requests each worker has answered."""
    counts = []
    for path in await private_sockets(served):
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(path)) as private:
            text = await (await private.get("http://worker/metrics")).text()
        families = text_string_to_metric_families(text)
        samples = (sample for family in families for sample in family.samples)
        counts.append(sum(s.value for s in samples if s.name == "poolgate_requests_total"))
    return counts


@pytest.mark.parametrize("repeat", range(DRAINS))
async def test_row_71_sigterm_cuts_no_stream(engine, store, tmp_path, repeat):
    go_on = asyncio.Event()
    engine.script = gated(go_on)
    async with serving(tmp_path, settings(engine, store, 4, drain="10m")) as served:
        streams = [await served.stream() for _ in range(12)]
        assert (await served.http.get(served.url + "/v1/models")).status == 200  # kept alive
        served.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE):
            while (await served.get("/readyz"))[0] == 200:
                await asyncio.sleep(0.01)
            while await accepts(served.url):
                await asyncio.sleep(0.01)
        assert (await served.get("/healthz"))[0] == 200
        await asyncio.sleep(0.2)
        assert served.process.returncode is None
        go_on.set()
        ends = await asyncio.gather(*(stream.content.read() for stream in streams))
        assert all(end.endswith(b"data: [DONE]\n\n") for end in ends)
        status, lines, _ = await served.ended()
        assert status == 0
        outcomes = Counter(json.loads(line)["outcome"] for line in lines.splitlines())
        assert outcomes == {"complete": 12, "answered": 1}


async def accepts(url):
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    except ConnectionError:  # refused, or reset: it came in the moment the listener closed
        return False
    writer.close()
    return True


@pytest.mark.parametrize("told", ["twice", "once"])
async def test_a_stream_without_end_ends_at_the_second_sigterm_or_the_budget(
    engine, store, tmp_path, told
):
    engine.script = gated(asyncio.Event())
    drain = "10m" if told == "twice" else "3s"
    async with serving(tmp_path, settings(engine, store, 2, drain=drain)) as served:
        stream = await served.stream()
        served.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.3)
        assert served.process.returncode is None
        if told == "twice":
            served.process.send_signal(signal.SIGTERM)
        status, lines, errors = await served.ended()
        assert status == 0
        with pytest.raises(aiohttp.ClientPayloadError):  # visibly cut
            await stream.content.read()
        stream.close()
        assert len(lines.splitlines()) == 1
        assert ("once more" if told == "twice" else "1 requests cut off") in errors


async def test_a_reload_reaches_every_worker_or_none(engine, store, tmp_path):
    secret = tmp_path / "key"
    secret.write_text("first-key")
    backend = {"api_key": f"file:{secret}", "limit": {"max_prompt_tokens": 100}}
    async with serving(tmp_path, settings(engine, store, 2, backend=backend)) as served:
        text = served.config.read_text()

        async def reload(changed, until):
            served.config.write_text(changed)
            served.process.send_signal(signal.SIGHUP)
            async with asyncio.timeout(PATIENCE):
                while not await until():
                    await asyncio.sleep(0.05)

        async def limits():
            return [
                p["status"] and p["status"]["backends"][0]["limit"]["max_prompt_tokens"]
                for p in await served.processes()
            ]

        async def keys():
            engine.received.clear()
            for _ in range(12):
                assert await served.post() == 200
            return {key for got in engine.received for key in got.header("Authorization")}

        async def limits_are_50():
            return await limits() == [50, 50]

        assert await limits() == [100, 100]
        many = "# tenants can be many\n" * 100_000  # beyond what a body holds by default
        await reload(text.replace("100", "50") + many, limits_are_50)
        # What the file and the secret say by now is nobody's business until the next reload.
        secret.write_text("second-key")
        bad = [
            "nonsense: [",
            text.replace("100", "70").replace("workers: 2", "workers: 3"),
            text.replace("100", "70").replace("max_prompt_tokens: 70", "max_prompt_tokens: -1"),
            text.replace("100", "70").replace("limit:", "tokenizer: nonesuch\n  limit:"),
        ]
        for times, changed in enumerate(bad, 1):
            served.config.write_text(changed)
            served.process.send_signal(signal.SIGHUP)
            await served.until_said(b"reload refused", times)
            assert await limits() == [50, 50], changed
        pid = (await served.processes())[1]["pid"]
        os.kill(pid, signal.SIGKILL)
        await served.until_serving(restarts=1)
        assert await limits() == [50, 50]
        assert await keys() == {"Bearer first-key"}
        salts = {got.json.get("extra_key") or got.json.get("cache_salt") for got in engine.received}
        assert len(salts) == 1
        assert None not in salts
        served.process.send_signal(signal.SIGTERM)
        _, _, errors = await served.ended()
        assert errors.count("reload refused") == len(bad)
        assert errors.count("configuration reloaded") == 1


async def test_rows_28_and_33_workers_of_two_instances_count_as_one(engine, store, tmp_path):
    go_on = asyncio.Event()
    tenants = [
        {"id": name, "key_sha256": [sha256(name.encode()).hexdigest()], "policy": name}
        for name in ("rate", "slots")
    ]
    policies = {"rate": {"requests_per_minute": 8}, "slots": {"concurrent": 6}}
    limits = {"store": store, "lease": "6s", "timeout": "2s"}
    given = settings(engine, store, 2, tenants=tenants, policies=policies) | {"limits": limits}
    async with (
        serving(tmp_path / "one", given, key="rate") as one,
        serving(tmp_path / "other", given, key="rate") as other,
    ):
        calls = (served.post() for served in (one, other) for _ in range(20))
        assert Counter(await asyncio.gather(*calls)) == {200: 8, 429: 32}  # row 28

        one.key = other.key = "slots"
        engine.script = gated(go_on)
        streams = [await served.stream() for served in (one, other) * 3]
        assert [await one.post(), await other.post()] == [429, 429]
        victim = max(await one.processes(), key=lambda p: p["status"]["in_flight"])
        lost = victim["status"]["in_flight"]
        os.kill(victim["pid"], signal.SIGKILL)
        killed = time.monotonic()
        assert await other.post() == 429  # its lease has not ended
        while len(streams) < 6 + lost:  # row 33
            assert time.monotonic() < killed + 6 + 10
            with contextlib.suppress(aiohttp.ClientResponseError):
                streams.append(await other.stream())
            await asyncio.sleep(0.05)
        assert await other.post() == 429
        go_on.set()
        ends = await asyncio.gather(*(s.content.read() for s in streams), return_exceptions=True)
        assert sum(isinstance(end, bytes) for end in ends) == 6


async def test_workers_outlive_no_supervisor(engine, store, tmp_path):
    go_on = asyncio.Event()
    engine.script = gated(go_on)
    async with serving(tmp_path, settings(engine, store, 2)) as served:
        stream = await served.stream()
        workers = [psutil.Process(p["pid"]) for p in await served.processes()]
        folder = os.path.dirname((await private_sockets(served))[0])
        served.process.kill()
        await asyncio.sleep(0.3)
        go_on.set()
        assert (await stream.content.read()).endswith(b"data: [DONE]\n\n")
        _, alive = await asyncio.to_thread(psutil.wait_procs, workers, PATIENCE)
        assert alive == []
        assert not os.path.exists(folder)


async def test_several_workers_with_a_memory_store_are_refused(engine, tmp_path):
    async with serving(tmp_path, settings(engine, "memory", 2), wait=False) as served:
        status, _, errors = await served.ended()
        assert status == 2
        assert errors.startswith("workers: more than one needs limits.store to be a redis store")


async def test_a_taken_port_is_told_once(engine, store, tmp_path):
    taken = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    address = "{}:{}".format(*taken.sockets[0].getsockname())
    async with taken:
        given = settings(engine, store, 2, listen=address)
        async with serving(tmp_path, given, wait=False) as served:
            status, _, errors = await served.ended()
    assert (status, errors.count("cannot listen"), errors.count("\n")) == (1, 1, 1)


async def test_what_no_worker_can_serve_ends_the_start(engine, store, tmp_path):
    given = settings(engine, store, 2, backend={"tokenizer": "nonesuch"})
    async with serving(tmp_path, given, wait=False) as served:
        status, _, errors = await served.ended()
        assert status == 2
        assert errors.count("backends[0].tokenizer") == 1
        assert "worker 0 exited with 2 before it served" in errors


# --- probes ------------------------------------------------------------------------------------

PROBED = SimulateSettings(context=4096, prefill_pool=1024, decode_pool=4096, timing=INSTANT)
# A stream lasts until it is closed; the probe's own answers of 256 tokens take a second.
ENDLESS = replace(PROBED, mean_answer=1e6, timing=replace(INSTANT, inter_token=0.004))


def probed(url, store, **probe):
    backend = {"name": "sim", "url": url, "tokenizer": "poolgate-tiny"}
    backend |= {"calibration": {"every": "0s"}, "limit": {"refresh": "200ms"}}
    quick = {"idle": "10ms", "retry": "500ms"}
    return {
        "workers": 2,
        "limits": {"store": store},
        "backends": [{**backend, "probe": {**quick, **probe}}],
    }


def probe_runs(counters):
    return {
        dict(labels)["result"]: value
        for (name, *labels), value in counters.items()
        if name == "poolgate_probe_runs_total"
    }


async def test_one_worker_probes_and_all_know_of_it(tmp_path, store):
    """Ready means that the canary serves at every worker, and one probe was enough."""
    async with running(PROBED) as engine:
        async with serving(tmp_path / "a", probed(engine.url, store, canary=True, when=[])) as up:
            assert probe_runs(await up.counters())["clean"] == 1
            each = [process["status"]["backends"][0] for process in await up.processes()]
            assert [backend["probe"] is not None for backend in each] == [True, False]
            assert [backend["standing"]["state"] for backend in each] == ["serving"] * 2
            assert {await up.post(max_tokens=4) for _ in range(8)} == {200}


async def test_a_probe_waits_for_the_traffic_of_other_workers(tmp_path, store):
    async with running(ENDLESS) as engine:
        settings = probed(engine.url, store, when=["serving"], every="300ms")
        async with serving(tmp_path / "a", settings) as up, asyncio.timeout(60):
            while True:  # until a stream runs at the worker that does not probe
                stream = await up.stream()
                first, second = await up.processes()
                if (first["status"]["in_flight"], second["status"]["in_flight"]) == (0, 1):
                    break
                stream.close()
            await asyncio.sleep(1)  # it is told, and what ran gives way
            before = probe_runs(await up.counters())
            await asyncio.sleep(1.5)
            assert (await up.processes())[1]["status"]["in_flight"] == 1
            assert probe_runs(await up.counters()) == before
            stream.close()
            while probe_runs(await up.counters())["clean"] == before["clean"]:
                await asyncio.sleep(0.2)


async def test_what_one_worker_finds_all_know_and_it_is_told_once(engine, store, tmp_path):
    integrity = {
        "binding": {"action": "quarantine"},
        "quarantine": {"max_share": 1.0},
        "shared": {"every": "100ms"},
    }
    async with serving(tmp_path, settings(engine, store, 3, integrity=integrity)) as served:
        engine.script = SWAPPED
        assert await served.post() == 502
        async with asyncio.timeout(PATIENCE):
            while True:
                processes = await served.processes()
                states = [p["status"]["backends"][0]["standing"]["state"] for p in processes]
                if states == ["quarantined"] * 3:
                    break
                await asyncio.sleep(0.02)
        asked = len(engine.received)
        assert {await served.post() for _ in range(12)} == {503}
        assert len(engine.received) == asked
        told = json.loads((await served.get("/incidents"))[1])
        assert len(told) == 1
        assert json.loads((await served.get("/incidents?kind=binding"))[1]) == told
        status = json.loads((await served.get("/status"))[1])
        assert status["incidents"] == 1
        replicas = {p["status"]["shared"]["replica"] for p in processes}
        assert len(replicas) == 3
        assert told[0]["replica"] in replicas
        assert len({p["status"]["shared"]["group"] for p in processes}) == 1
        engine.script = engine.answer_chat
        async with served.http.post(served.admin + "/backends/a/release") as answer:
            assert answer.status == 200
        assert {await served.post() for _ in range(6)} == {200}
        await asyncio.sleep(0.5)  # nobody tells the old one again
        assert {await served.post() for _ in range(6)} == {200}
