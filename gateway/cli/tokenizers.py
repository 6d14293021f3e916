"""``poolgate tokenizers``: what is installed, whether it is sound, and adding one's own."""

from __future__ import annotations

import argparse
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gateway.core.samples import samples
from gateway.engines.base import Answer, Engine, Probe
from gateway.engines.detect import ENGINES, detect
from gateway.tokens.assets import AssetError, AssetMissing, AssetStore, add_local
from gateway.tokens.counters import EngineCounters
from gateway.types import Counted

EXIT_SOUND, EXIT_UNSOUND = 0, 1
TIMEOUT_SECONDS = 30.0
BY_NAME = {engine.name: engine for engine in ENGINES}


@dataclass(frozen=True, slots=True)
class Finding:
    """One checked thing."""

    what: str
    sound: bool
    detail: str = ""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand and its three verbs."""
    parser = subparsers.add_parser("tokenizers", help="list, verify or add tokenizers")
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    listing = verbs.add_parser("list", help="what the manifests name, and what is there")
    listing.set_defaults(run=run_list)
    verify = verbs.add_parser(
        "verify",
        help="check checksums and self-tests, and compare with an engine",
        description="Without names: everything that is there. With --backend, one name: its counts"
        " are compared with the engine's own. Exit 0, or 1 where anything is wrong.",
    )
    verify.add_argument("names", nargs="*", metavar="NAME")
    verify.add_argument("--backend", metavar="URL", help="an engine that serves the same model")
    verify.add_argument("--model", help="the model's name there (default: the first it lists)")
    verify.add_argument("--engine", choices=sorted(BY_NAME), help="default: detected")
    verify.add_argument("--api-key", help="for the engine")
    verify.set_defaults(run=run_verify)
    add = verbs.add_parser("add", help="copy a folder in and record its checksums")
    add.add_argument("name", metavar="NAME")
    add.add_argument("folder", metavar="FOLDER", type=Path)
    add.set_defaults(run=run_add)
    for verb in (listing, verify, add):
        verb.add_argument(
            "--tokenizers", type=Path, metavar="DIR", help="another tokenizers folder"
        )


def run_list(args: argparse.Namespace) -> int:
    """Exit status 0; 1 where there is no manifest."""
    try:
        store = AssetStore.open(args.tokenizers)
    except AssetError as error:
        return _fail(error)
    for name, asset in sorted(store.assets.items()):
        try:
            store.verify(name)
            state = "present"
        except AssetMissing:
            state = "not fetched" if asset.default else "not fetched (by name only)"
        except AssetError:
            state = "ALTERED"
        print(f"{name:<15} {state:<27} {asset.model_licence or '-'}")
    return EXIT_SOUND


def run_verify(args: argparse.Namespace) -> int:
    """Exit status 0 or 1."""
    try:
        store = AssetStore.open(args.tokenizers)
        names = _names(store, args)
        findings = [finding for name in names for finding in _verify(store, name, args)]
    except (AssetError, OSError) as error:
        return _fail(error)
    for finding in findings:
        print(f"{'ok  ' if finding.sound else 'FAIL'} {finding.what}: {finding.detail}")
    sound = all(finding.sound for finding in findings) and bool(findings)
    return EXIT_SOUND if sound else EXIT_UNSOUND


def run_add(args: argparse.Namespace) -> int:
    """Exit status 0 or 1."""
    try:
        store = AssetStore.open(args.tokenizers)
        asset = add_local(store, args.name, args.folder)
    except (AssetError, OSError) as error:
        return _fail(error)
    for file in asset.files:
        print(f"{file.sha256}  {args.name}/{file.name}")
    return EXIT_SOUND


def _fail(error: Exception) -> int:
    print(error, file=sys.stderr)
    return EXIT_UNSOUND


def _names(store: AssetStore, args: argparse.Namespace) -> list[str]:
    """What to verify: what was named, else all that is there."""
    if args.backend and len(args.names) != 1:
        raise AssetError("with --backend, name the one tokenizer to compare")
    present = [name for name in sorted(store.assets) if (store.root / name).is_dir()]
    return args.names or present


def _verify(store: AssetStore, name: str, args: argparse.Namespace) -> Iterator[Finding]:
    """Checksums, then the self-test that loading runs, then the engine where one is given."""
    try:
        counters = EngineCounters(store, name)
        encoder = counters.load("vllm").encoder
    except AssetError as error:
        yield Finding(name, sound=False, detail=str(error))
        return
    detail = f"checksums right, counting with {encoder.library}"
    yield Finding(name, not encoder.warnings, "; ".join((detail, *encoder.warnings)))
    if args.backend:
        yield from compare(counters, Backend(args.backend, args.api_key), args.engine, args.model)


class Backend:
    """An engine's own endpoints, asked one question after another."""

    def __init__(self, url: str, api_key: str | None) -> None:
        if not url.startswith(("http://", "https://")):
            raise AssetError(f"not an http address: {url}")
        self._url = url.rstrip("/")
        self._headers = {"content-type": "application/json"}
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"

    def ask(self, probe: Probe) -> Answer:
        """The answer; status 0 where there is none."""
        body = None if probe.body is None else json.dumps(probe.body).encode()
        request = urllib.request.Request(  # noqa: S310 -- the scheme is checked above
            self._url + probe.path, data=body, headers=self._headers, method=probe.method
        )
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as reply:  # noqa: S310
                return Answer(reply.status, reply.read())
        except urllib.error.HTTPError as error:
            return Answer(error.code, error.read())
        except OSError as error:
            return Answer(0, str(error).encode())


def compare(
    counters: EngineCounters, backend: Backend, engine_name: str | None, model: str | None
) -> Iterator[Finding]:
    """Our counts against the engine's own, on the samples of ``gateway.core.samples``."""
    engine = BY_NAME[engine_name] if engine_name else _detected(backend)
    if engine is None:
        yield Finding("engine", sound=False, detail="not recognised: say --engine")
        return
    model = model or _first_model(backend)
    if model is None:
        yield Finding("engine", sound=False, detail="it lists no model: say --model")
        return
    counter = counters.load(engine.name)
    asked = 0
    for sample in samples():
        ours = counter.count(sample.prompt)
        calls = engine.oracle(sample.prompt, model)
        if calls is None or not isinstance(ours, Counted):
            continue
        counts = [call.count(backend.ask(call.probe)) for call in calls]
        if None in counts:
            continue
        asked += 1
        if tuple(counts) != ours.items:
            detail = f"the engine counts {counts}, we count {list(ours.items)}"
            yield Finding(f"{engine.name} {sample.name}", sound=False, detail=detail)
    detail = f"{asked} prompts compared with {model}"
    yield Finding(engine.name, asked > 0, detail if asked else "the engine counted none of them")


def _detected(backend: Backend) -> Engine | None:
    probes = {probe for engine in ENGINES for probe in engine.probes}
    found = detect({probe: backend.ask(probe) for probe in probes})
    return BY_NAME.get(found.name) if found is not None else None


def _first_model(backend: Backend) -> str | None:
    listing = backend.ask(Probe("GET", "/v1/models")).json()
    models = listing.get("data") if isinstance(listing, dict) else None
    first = models[0] if isinstance(models, list) and models else None
    return first.get("id") if isinstance(first, dict) else None
