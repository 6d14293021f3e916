"""Which engine or router answers at an address.

Routers come first: some of them proxy an engine's own endpoints to one worker of many, whose
limit would then pass for everybody's. Among engines the order is from the surest mark to the
least; a server that only lists models comes last.
"""

from __future__ import annotations

from gateway.engines.base import Answers, Engine, Probe, Router
from gateway.engines.llama_cpp import LlamaCpp
from gateway.engines.lmdeploy import LmDeploy
from gateway.engines.ollama import Ollama
from gateway.engines.openai_compatible import OpenAiCompatible
from gateway.engines.routers import LmDeployProxy, OldSglangRouter, ProductionStack, SglGateway
from gateway.engines.sglang import Sglang
from gateway.engines.tensorrt_llm import TensorRtLlm
from gateway.engines.tgi import Tgi
from gateway.engines.vllm import Vllm

ROUTERS: tuple[Router, ...] = (SglGateway(), OldSglangRouter(), LmDeployProxy(), ProductionStack())
ENGINES: tuple[Engine, ...] = (
    Vllm(),
    Sglang(),
    LlamaCpp(),
    Tgi(),
    Ollama(),
    TensorRtLlm(),
    LmDeploy(),
    OpenAiCompatible(),
)
NAMES: tuple[str, ...] = tuple(engine.name for engine in ENGINES)


def detection_probes() -> tuple[Probe, ...]:
    """Everything ``detect`` may need, each question once."""
    of_engines = (probe for engine in ENGINES for probe in engine.probes)
    return tuple(dict.fromkeys((*router_probes(), *of_engines)))


def router_probes() -> tuple[Probe, ...]:
    """Everything ``detect_router`` may need."""
    return tuple(dict.fromkeys(probe for router in ROUTERS for probe in router.probes))


def detect(answers: Answers) -> Engine | Router | None:
    """The router or engine that gave these answers; None where nothing is recognised."""
    return detect_router(answers) or next(
        (engine for engine in ENGINES if engine.recognises(answers)), None
    )


def detect_router(answers: Answers) -> Router | None:
    """The router that gave these answers, also where the operator named the engine behind it."""
    return next((router for router in ROUTERS if router.recognises(answers)), None)


def router_by_name(name: str | None) -> Router | None:
    """The router of that name; None where there is none."""
    return next((router for router in ROUTERS if router.name == name), None)


def by_name(name: str) -> Engine:
    """The adapter of that name. Raises ``ValueError`` with the names there are."""
    for engine in ENGINES:
        if engine.name == name:
            return engine
    raise ValueError(f"unknown engine {name!r}; known are {', '.join(NAMES)}")
