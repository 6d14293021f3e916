"""Gateways that share a store: what one finds, all know. Two apps here, one real server."""

from __future__ import annotations

import asyncio
import contextlib
import re
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path

import aiohttp
import numpy as np
import pytest
import redis

from fakes.raw_engine import RawEngine
from gateway.app import App
from gateway.core.fingerprint.index import Kind
from gateway.core.fingerprint.shingles import sample as sample_hashes
from gateway.core.quarantine import Clue, State
from gateway.edge.metrics import Metrics
from gateway.edge.replicas.fingerprints import Outbox
from gateway.settings import NoSecrets, parse
from gateway.types import Evidence
from integration.faulty import (
    BODY,
    QUARANTINE,
    SWAPPED,
    admin,
    standing,
    two_engines,
)
from integration.test_checks import raw_post, sample
from integration.test_fingerprints import whole
from simulated import secret
from valkey_server import server
from waiting import own_clock, until

SECRET = "shared by all of these gateways"
EVERY = "50ms"


@pytest.fixture(scope="module")
def valkey():
    with server() as running:
        yield running


@pytest.fixture
def store(valkey):
    with valkey.client() as client:
        client.flushall()
    return valkey


def settings(store, engines, *, secret=SECRET, every=EVERY, integrity=None, **more):
    shared = {"store": store.url, "every": every}
    written = {
        "listen": "127.0.0.1:0",
        "admin": "127.0.0.1:0",
        "backends": [
            {"name": name, "url": engine.url, "tokenizer": "poolgate-tiny"}
            | {"calibration": {"every": "0s"}}
            for name, engine in zip("abc", engines, strict=False)
        ],
        "integrity": {**QUARANTINE, "secret": secret, "shared": shared, **(integrity or {})},
        **more,
    }
    return parse(written, NoSecrets())


@asynccontextmanager
async def replica(store, *engines, **more):
    app = App()
    try:
        await app.start(settings(store, engines, **more))
        yield app
    finally:
        await app.stop()


@asynccontextmanager
async def two_replicas(store, *engines, **more):
    async with replica(store, *engines, **more) as one, replica(store, *engines, **more) as other:
        yield one, other


def member(app, name):
    return next(each for each in app.generation.runtime.backends if each.name == name)


def state(app, name):
    return member(app, name).standing.state


def report(app, name, tenant="a", check="latency", evidence=Evidence.STRONG, forgeable=True):
    """A finding, as ``Actions`` tells it."""
    standings = app._standings
    incident = f"inc_{tenant}_{check}"
    who = app.recorder.incidents.pseudonym(tenant)
    standings.report(
        member(app, name), Clue(standings.now(), check, who, evidence, forgeable, incident)
    )


def certain(app, name):
    report(app, name, check="binding", evidence=Evidence.CERTAIN, forgeable=False)


def out(app):
    return {
        each.name
        for each in app.generation.runtime.backends
        if each.standing.state is State.QUARANTINED
    }


def serving(app):
    return all(each.standing.state is State.SERVING for each in app.generation.runtime.backends)


# --- quarantines -------------------------------------------------------------------------------


async def test_a_quarantine_by_one_stops_traffic_at_all(store):
    async with two_engines() as (one, other):
        async with two_replicas(store, one, other) as (first, second):
            one.script = SWAPPED
            assert (await raw_post(first, BODY))[0] == 200  # from the other backend
            assert state(first, "a") is State.QUARANTINED
            async with own_clock() as clock:
                await until(lambda: state(second, "a") is State.QUARANTINED)
                assert clock() < 1.0
            asked = len(one.received)
            for _ in range(6):
                assert (await raw_post(second, BODY))[0] == 200
            assert len(one.received) == asked
            told, there = await standing(first, "a"), await standing(second, "a")
            assert (there["state"], there["reason"]) == ("quarantined", "binding")
            assert there["incidents"] == told["incidents"]


async def test_two_findings_at_two_replicas_convict(store):
    async with two_engines() as engines, two_replicas(store, *engines) as (first, second):
        report(first, "a", tenant="x")
        await until(lambda: state(second, "a") is State.SUSPECT)
        report(second, "a", tenant="y")
        assert state(second, "a") is State.QUARANTINED
        await until(lambda: state(first, "a") is State.QUARANTINED)


async def test_findings_at_the_same_moment_convict_as_well(store):
    async with two_engines() as engines, two_replicas(store, *engines) as (first, second):
        report(first, "a", tenant="x")
        report(second, "a", tenant="y")
        assert (state(first, "a"), state(second, "a")) == (State.SUSPECT, State.SUSPECT)
        await until(lambda: out(first) == out(second) == {"a"})


async def test_one_tenant_that_repeats_itself_at_two_replicas_convicts_nobody(store):
    async with two_engines() as engines, two_replicas(store, *engines) as (first, second):
        report(first, "a", tenant="x")
        report(second, "a", tenant="x")
        await until(lambda: second.generation.replicas is not None and len(store.keys_like("*")))
        await asyncio.sleep(0.6)
        assert (state(first, "a"), state(second, "a")) == (State.SUSPECT, State.SUSPECT)
        assert not member(first, "a").standing.capped


async def test_a_release_at_one_releases_at_all(store):
    async with two_engines() as engines, two_replicas(store, *engines) as (first, second):
        certain(first, "a")
        await until(lambda: state(second, "a") is State.QUARANTINED)
        status, _ = await admin(second, "/backends/a/release", "POST")
        assert status == 200
        await until(lambda: state(first, "a") is State.SERVING)
        assert (await standing(first, "a"))["reason"] == "released by operator"
        await asyncio.sleep(0.5)
        assert state(second, "a") is State.SERVING  # the first does not tell it again
        certain(first, "a")
        await until(lambda: state(second, "a") is State.QUARANTINED)


async def test_a_replica_that_comes_later_knows_before_its_first_request(store):
    async with two_engines() as engines:
        async with replica(store, *engines) as first:
            certain(first, "a")
        async with replica(store, *engines) as later:
            assert state(later, "a") is State.QUARANTINED
        with store.client() as client:
            assert all(client.ttl(key) > 0 for key in client.scan_iter("*"))


async def test_backends_are_known_by_name_and_url(store):
    async with two_engines() as (one, other):
        async with replica(store, one, other) as first, replica(store, other, one) as second:
            certain(first, "a")
            await asyncio.sleep(0.5)
            assert out(second) == set()


async def test_a_reload_brings_in_a_backend_that_others_took_out(store):
    async with two_engines() as (one, other), RawEngine().running() as third:
        async with replica(store, one, other) as first, replica(store, third) as second:
            certain(first, "a")
            await asyncio.sleep(0.3)
            assert out(second) == set()
            await second.reload(settings(store, (one, other)))
            await until(lambda: out(second) == {"a"})


@pytest.mark.parametrize("pause", [0.0, 0.003])
async def test_the_cap_holds_whoever_is_faster(store, pause):
    async with two_engines() as engines, two_replicas(store, *engines) as (first, second):
        won = set()
        for turn in range(25):
            apps = (first, second) if turn % 2 else (second, first)
            certain(apps[0], "a")
            await asyncio.sleep(pause)
            certain(apps[1], "b")
            for _ in range(30):
                assert len(out(first)) <= 1
                assert len(out(second)) <= 1
                await asyncio.sleep(0)
            await until(lambda: out(first) == out(second))
            [name] = out(first)
            won.add(name)
            spared = "b" if name == "a" else "a"
            await until(lambda name=spared: member(first, name).standing.capped)
            await until(lambda name=spared: member(second, name).standing.capped)
            for released in (spared, name):
                first._standings.release(released, "test")
            await until(lambda: serving(first) and serving(second))
        assert won >= {"a"}


async def test_what_the_cap_spared_goes_out_with_the_next_finding_that_finds_room(store):
    async with two_engines() as engines, two_replicas(store, *engines) as (first, second):
        certain(first, "a")
        await until(lambda: out(second) == {"a"})
        certain(second, "b")
        assert member(second, "b").standing.capped
        await until(lambda: member(first, "b").standing.capped)
        first._standings.release("a", "operator")
        await until(lambda: state(second, "a") is State.SERVING)
        assert out(first) == out(second) == set()
        report(first, "b", tenant="x")
        await until(lambda: out(first) == out(second) == {"b"})


async def test_groups_with_other_secrets_know_nothing_of_each_other(store):
    async with two_engines() as engines:
        async with replica(store, *engines) as first:
            async with replica(store, *engines, secret="quite another secret") as second:
                certain(first, "a")
                await asyncio.sleep(0.5)
                assert out(second) == set()
                assert sample(second, "poolgate_shared_unreadable_total") == 0


async def test_without_a_store_nothing_is_shared(store):
    async with two_engines() as engines:
        shared = {"integrity": QUARANTINE | {"secret": SECRET}}
        async with replica(store, *engines) as first:
            app = App()
            try:
                await app.start(settings_without(engines, shared))
                certain(first, "a")
                await asyncio.sleep(0.3)
                assert out(app) == set()
                assert app.generation.replicas is None
                assert sample(app, "poolgate_shared_state_up") == 1
            finally:
                await app.stop()


def settings_without(engines, more):
    backends = [
        {"name": name, "url": engine.url, "tokenizer": "poolgate-tiny"}
        | {"calibration": {"every": "0s"}}
        for name, engine in zip("ab", engines, strict=True)
    ]
    written = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "backends": backends, **more}
    return parse(written, NoSecrets())


# --- trouble -----------------------------------------------------------------------------------


async def test_a_frozen_store_holds_up_nothing_and_is_caught_up_with(store):
    async with two_engines() as engines, two_replicas(store, *engines) as (first, second):
        certain(first, "a")
        await until(lambda: out(second) == {"a"})
        with store.frozen():
            report(first, "b", tenant="x")  # suspect: the cap keeps it from more
            certain(second, "b")
            async with own_clock() as clock:
                for app in (first, second):
                    for _ in range(3):
                        assert (await raw_post(app, BODY))[0] == 200
                assert clock() < 2.0
            assert out(first) == out(second) == {"a"}
            await until(lambda: sample(first, "poolgate_shared_state_up") == 0)
            _, status = await admin(first, "/status")
            assert status["shared"]["up"] is False
            assert (await admin(first, "/readyz"))[0] == 200
            second._standings.release("a", "operator")
            report(second, "b", tenant="y")
            assert out(second) == {"b"}
            assert out(first) == {"a"}
        await until(lambda: out(first) == out(second) == {"b"})
        await until(lambda: sample(first, "poolgate_shared_state_up") == 1)
        assert sample(first, "poolgate_shared_failures_total") > 0


async def test_a_store_that_was_killed_is_told_again_what_replicas_know(valkey):
    with server() as doomed:
        async with two_engines() as engines:
            async with two_replicas(doomed, *engines) as (first, second):
                certain(first, "a")
                await until(lambda: out(second) == {"a"})
                doomed.kill()
                report(second, "b", tenant="x")
                assert (await raw_post(second, BODY))[0] == 200
                await asyncio.sleep(0.5)
                assert out(first) == out(second) == {"a"}  # stays in force
                doomed.start()
                await until(lambda: state(first, "b") is State.SUSPECT)
                assert out(first) == {"a"}
                async with replica(doomed, *engines) as later:
                    assert out(later) == {"a"}


async def test_two_that_took_out_one_each_while_they_could_not_talk_keep_the_cap_afterwards(valkey):
    with server() as doomed:
        async with two_engines() as engines:
            async with two_replicas(doomed, *engines) as (first, second):
                doomed.kill()
                certain(first, "a")
                certain(second, "b")
                assert (out(first), out(second)) == ({"a"}, {"b"})
                doomed.start()
                await until(lambda: out(first) == out(second))
                [name] = out(first)
                spared = "b" if name == "a" else "a"
                await until(lambda: member(first, spared).standing.capped)
                await until(lambda: member(second, spared).standing.capped)


async def test_a_store_that_is_down_at_start_keeps_nobody_from_starting():
    with server() as doomed:
        doomed.kill()
        async with two_engines() as engines, replica(doomed, *engines) as first:
            assert (await raw_post(first, BODY))[0] == 200
            certain(first, "a")
            doomed.start()
            async with replica(doomed, *engines) as second:
                await until(lambda: out(second) == {"a"})


async def test_what_others_wrote_there_is_counted_and_replaced(store):
    async with two_engines() as engines, two_replicas(store, *engines) as (first, second):
        certain(first, "a")
        await until(lambda: out(second) == {"a"})
        [key] = store.keys_like("*standings")
        with store.client() as client:
            client.set(key, "[]")
        await until(lambda: any(unreadable(app) for app in (first, second)))
        async with replica(store, *engines) as later:
            assert out(later) == {"a"}
        assert out(first) == out(second) == {"a"}


def unreadable(app):
    return sample(app, "poolgate_shared_unreadable_total")


async def test_a_key_of_another_type_stops_its_part_and_says_so(store):
    async with two_engines() as engines, two_replicas(store, *engines) as (first, second):
        certain(first, "a")
        await until(lambda: out(second) == {"a"})
        key = store.keys_like("*standings")[0].replace("standings", "incidents")
        with store.client() as client:
            client.set(key, "in the way")
        await until(lambda: sample(second, "poolgate_shared_state_up") == 0)
        first._standings.release("a", "operator")
        await until(lambda: out(second) == set())
        with store.client() as client:
            client.delete(key)
        await until(lambda: sample(second, "poolgate_shared_state_up") == 1)


# --- incidents ---------------------------------------------------------------------------------

TENANTS = {
    "tenants": [
        {"id": name, "key_sha256": [sha256(f"{name}-key".encode()).hexdigest()]}
        for name in ("planted-tenant", "other-tenant")
    ]
}


async def ask(app, tenant, text):
    async with aiohttp.ClientSession() as http:
        body = BODY | {"messages": [{"role": "user", "content": text}]}
        headers = {"x-api-key": f"{tenant}-key"}
        async with http.post(
            app.data_url + "/v1/chat/completions", json=body, headers=headers
        ) as reply:
            return reply.status


async def incidents(app, query=""):
    return (await admin(app, f"/incidents{query}"))[1]


async def test_incidents_of_all_are_told_by_each_and_nothing_of_them_is_readable(store):
    async with RawEngine().running() as engine:
        engine.script = SWAPPED
        async with two_replicas(store, engine, **TENANTS) as (first, second):
            assert await ask(first, "planted-tenant", "planted words") == 502
            assert await ask(second, "other-tenant", "planted words") == 502
            for app in (first, second):
                await until(lambda app=app: len(app.recorder.incidents) == 2)
            told = await incidents(first)
            assert told == await incidents(second)
            assert {one["replica"] for one in told} == {
                app.recorder.incidents.replica for app in (first, second)
            }
            assert sample(first, "poolgate_incidents_total", kind="binding") == 1  # its own alone
            _, status = await admin(first, "/status")
            assert status["incidents"] == 1
            [one] = await incidents(second, "?tenant=planted-tenant")
            assert one["replica"] == first.recorder.incidents.replica
            held = everything(store)
            for planted in (b"planted", b"other-tenant", b"-key", b"binding", b"127.0.0.1"):
                assert planted not in held
            for one in told:
                assert one["tenant"].encode() not in held
                assert one["id"].encode() not in held
        async with replica(store, engine, **TENANTS) as later:
            await until(lambda: len(later.recorder.incidents) == 2)
        assert store.without_end() == []


def everything(store):
    """Every key and value in the store, as bytes."""
    held = b""
    with contextlib.closing(redis.Redis(port=store.port)) as client:
        for key in client.scan_iter("*"):
            held += key
            if client.type(key) == b"stream":
                held += b"".join(b"".join((at, *f, *f.values())) for at, f in client.xrange(key))
            else:
                held += client.get(key)
    return held


async def test_incidents_from_a_time_without_store_are_told_once(store):
    async with RawEngine().running() as engine:
        engine.script = SWAPPED
        async with two_replicas(store, engine) as (first, second):
            with store.frozen():
                for _ in range(3):
                    assert (await raw_post(first, BODY))[0] in (502, 503)
                await until(lambda: sample(first, "poolgate_shared_state_up") == 0)
            count = len(first.recorder.incidents)
            assert count
            await until(lambda: len(second.recorder.incidents) == count)
            await asyncio.sleep(0.5)
            assert len(second.recorder.incidents) == count


async def test_the_stream_of_incidents_is_bounded(store):
    async with RawEngine().running() as engine:
        async with two_replicas(store, engine) as (first, second):
            kept = first.recorder.incidents
            for number in range(1500):
                kept.open(
                    {"id": f"{number}", "time": f"2026-01-01T00:00:{number:06}", "kind": "binding"}
                    | {"backend": "a", "tenant": "t", "source": None}
                )
                await asyncio.sleep(0)
            await until(lambda: not kept.untold)
            [key] = store.keys_like("*incidents")
            with store.client() as client:
                assert client.xlen(key) < 1200
            heard = second.recorder.incidents
            await until(lambda: any(one["id"] == "1499" for one in heard))
            assert len(heard) == 1000
            assert (await incidents(second, "?limit=1"))[0]["id"] == "1499"


# --- fingerprints ------------------------------------------------------------------------------

FOREIGN = secret("harbour pilots")
SHARED = {"action": "block", "learning": "0s", "shared": True}
CHECK = {"fingerprints": SHARED, "latency": {"action": "off"}, "prompt_tokens": {"sample": 0.0}}


@asynccontextmanager
async def watching(store, **more):
    """Two gateways that share fingerprints, in front of one engine."""
    async with RawEngine(limit=50_000, context=90_000).running() as engine:
        more = {"integrity": CHECK, **TENANTS} | more
        async with two_replicas(store, engine, **more) as (first, second):
            yield engine, first, second


def heard(app):
    return sample(app, "poolgate_shared_fingerprints_total", result="heard")


async def test_a_prompt_at_one_is_found_in_an_answer_at_the_other(store):
    async with watching(store) as (engine, first, second):
        assert await ask(first, "planted-tenant", FOREIGN) == 200
        async with own_clock() as clock:
            await until(lambda: heard(second))
            assert clock() < 1.0
        engine.script = whole("Certainly. " + FOREIGN[:600])
        assert await ask(second, "other-tenant", "What is new?") == 502
        [incident] = await incidents(second, "?kind=fingerprints")
        assert incident["finding"]["reason"] == "prompt_run"
        pseudonym = first.recorder.incidents.pseudonym
        assert incident["source"] == pseudonym("planted-tenant")
        assert incident["tenant"] == pseudonym("other-tenant")


async def test_a_tenants_own_prompt_at_one_is_its_own_at_the_other(store):
    async with watching(store) as (engine, first, second):
        assert await ask(first, "planted-tenant", FOREIGN) == 200
        await until(lambda: heard(second))
        engine.script = whole("Certainly. " + FOREIGN[:600])
        assert await ask(second, "planted-tenant", "What did I say?") == 200


async def test_what_two_tenants_sent_to_two_replicas_is_nobodys(store):
    async with watching(store) as (engine, first, second):
        assert await ask(first, "planted-tenant", FOREIGN) == 200
        assert await ask(second, "other-tenant", FOREIGN) == 200
        await until(lambda: heard(first) and heard(second))
        engine.script = whole(FOREIGN[:600])
        for app in (first, second):
            for tenant in ("planted-tenant", "other-tenant"):
                assert await ask(app, tenant, "What is new?") == 200


async def test_no_hash_of_it_is_readable_in_the_store(store):
    async with watching(store) as (_, first, second):
        assert await ask(first, "planted-tenant", FOREIGN) == 200
        await until(lambda: heard(second))
        memories = first.generation.fingerprints.memories
        held = everything(store)
        hashes = sample_hashes(memories.scheme, [FOREIGN])
        assert len(hashes) > 50
        assert not any(int(one).to_bytes(8, "little") in held for one in hashes)
        assert b"Note" not in held
        assert store.without_end() == []


async def test_fingerprints_are_not_shared_unless_asked(store):
    alone = CHECK | {"fingerprints": SHARED | {"shared": False}}
    async with watching(store, integrity=alone) as (_, first, second):
        assert await ask(first, "planted-tenant", FOREIGN) == 200
        await asyncio.sleep(0.4)
        assert heard(second) == 0
        assert store.keys_like("*fingerprints") == []


async def test_a_replica_that_comes_later_reads_what_was_told(store):
    async with watching(store) as (engine, first, second):
        assert await ask(first, "planted-tenant", FOREIGN) == 200
        await until(lambda: heard(second))
        async with replica(store, engine, integrity=CHECK, **TENANTS) as later:
            await until(lambda: heard(later))
            engine.script = whole(FOREIGN[:600])
            assert await ask(later, "other-tenant", "What is new?") == 502


async def test_a_store_that_freezes_holds_back_no_answer_and_gets_it_later(store):
    async with watching(store) as (engine, first, second):
        with store.frozen():
            async with own_clock() as clock:
                assert await ask(first, "planted-tenant", FOREIGN) == 200
                assert clock() < 1.0
            await until(lambda: sample(first, "poolgate_shared_state_up") == 0)
        await until(lambda: heard(second))
        engine.script = whole(FOREIGN[:600])
        assert await ask(second, "other-tenant", "What is new?") == 502


async def test_hashes_that_wait_for_a_dead_store_are_bounded_and_counted():
    metrics = Metrics()
    outbox = Outbox(metrics)
    many = np.arange(300_000, dtype=np.uint64)
    for _ in range(5):
        outbox.put(("a", "http://a"), "t", Kind.PROMPT, many, many[:0])
    assert len(outbox) <= 2**20
    dropped = metrics.registry.get_sample_value(
        "poolgate_shared_fingerprints_total", {"result": "dropped"}
    )
    assert dropped + len(outbox) == 1_500_000
    sizes = []
    while texts := outbox.take():
        sizes.append(sum(text.count for text in texts))
    assert max(sizes) <= 2**13
    assert sum(sizes) == 1_500_000 - dropped
    assert len(outbox) == 0


async def test_what_was_trimmed_before_it_was_read_is_counted(store):
    async with watching(store) as (_, first, second):
        assert await ask(first, "planted-tenant", FOREIGN) == 200
        await until(lambda: heard(second))
        before = heard(second)
        with store.frozen():
            assert await ask(first, "planted-tenant", secret("tide tables")) == 200
            await until(lambda: sample(second, "poolgate_shared_state_up") == 0)
        await until(lambda: heard(second) > before)
        first._outbox.told += 500  # as if so many had been told and trimmed away
        assert await ask(first, "planted-tenant", secret("lock keepers")) == 200
        missed = {"result": "missed"}
        await until(lambda: sample(second, "poolgate_shared_fingerprints_total", **missed) == 500)


async def test_the_rights_that_the_page_names_are_enough(store):
    page = (Path(__file__).parents[2] / "docs/replicas.md").read_text()
    rights = " ".join(re.search(r"needs `(~poolgate.*?)`;", page, re.DOTALL)[1].split())
    with store.client() as client:
        client.execute_command(
            "ACL", "SETUSER", "few", "on", ">word", "resetchannels", *rights.split()
        )
    async with RawEngine(limit=50_000, context=90_000).running() as engine:
        written = {"integrity": CHECK, **TENANTS}
        async with replica(store, engine, **written) as first:
            url = f"redis://few:word@127.0.0.1:{store.port}"
            few = written | {"integrity": CHECK | {"shared": {"store": url, "every": EVERY}}}
            async with replica(store, engine, **few) as second:
                certain(first, "a")
                report(second, "a", tenant="x")
                assert await ask(second, "planted-tenant", FOREIGN) == 200
                await until(lambda: heard(first))
                await until(lambda: member(second, "a").standing.capped)
                engine.script = SWAPPED
                assert await ask(second, "planted-tenant", "again") == 502
                await until(lambda: len(first.recorder.incidents) == 1)
                assert sample(second, "poolgate_shared_failures_total") == 0
