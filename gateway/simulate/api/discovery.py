"""What the engine says of itself: health, model, limits of both legs, metrics."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from gateway.simulate.api.service import Service, json_answer, service
from gateway.simulate.pages import PageMemory

LEGS = ("prefill", "decode")


async def health(request: web.Request) -> web.StreamResponse:
    """The process is alive."""
    del request
    return web.Response()


async def models(request: web.Request) -> web.StreamResponse:
    """The one model. Its ``max_model_len`` is the context, never the pool."""
    here = service(request)
    name = here.settings.model
    card = {
        "id": name,
        "object": "model",
        "created": here.now(),
        "owned_by": "sglang",
        "root": name,
        "parent": None,
        "max_model_len": here.settings.context,
    }
    return json_answer({"object": "list", "data": [card]})


async def model_info(request: web.Request) -> web.StreamResponse:
    """What kind of model it is; no limits."""
    settings = service(request).settings
    return json_answer(
        {
            "model_path": settings.model,
            "served_model_name": settings.model,
            "tokenizer_path": str(settings.tokenizer),
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": "default",
            "reasoning_parser": None,
            "tool_call_parser": None,
            "disaggregation_mode": "prefill",
            "has_image_understanding": False,
            "has_audio_understanding": False,
            "model_type": "simulated",
            "architectures": ["SimulatedForCausalLM"],
        }
    )


async def server_info(request: web.Request) -> web.StreamResponse:
    """Both legs in mini_lb's shape, or the prefill worker's alone where there is no router.

    As there, the top-level ``internal_states`` are decode's only: reading nothing else hides the
    smaller pool.
    """
    here = service(request)
    prefill, decode = (worker_info(here, leg) for leg in LEGS)
    if not here.settings.router:
        return json_answer(prefill)
    return json_answer(
        {
            "internal_states": decode["internal_states"],
            "prefill": [prefill],
            "decode": [decode],
        }
    )


def worker_info(here: Service, leg: str) -> dict[str, Any]:
    """One worker's ``/server_info``: server arguments flat, then what the scheduler measured."""
    settings = here.settings
    stated = settings.context if settings.faults.server_info else None
    pool = settings.pool(leg) if stated is None else stated
    bound = settings.max_req_input_len(leg) if stated is None else stated - 6
    memory = {
        "weight": 0.0,
        "kvcache": 0.0,
        "startup_available": 0.0,
        "token_capacity": pool,
        "token_capacity_swa": None,
    }
    return {
        "model_path": settings.model,
        "served_model_name": settings.model,
        "tokenizer_path": str(settings.tokenizer),
        "context_length": settings.context,
        "tp_size": 1,
        "dp_size": 1,
        "pp_size": 1,
        "page_size": settings.page_size,
        "max_total_tokens": None,
        "chunked_prefill_size": settings.chunk,
        "allow_auto_truncate": False,
        "enable_cache_report": True,
        "chat_template": None,
        "disable_radix_cache": not settings.prefix_cache,
        "disaggregation_mode": leg,
        "disaggregation_bootstrap_port": 8998,
        "disaggregation_enable_kv_checksum": False,
        "status": "ready",
        "max_total_num_tokens": pool,
        "max_req_input_len": bound,
        "startup_time": {"tokenizer_e2e": here.startup_seconds},
        "kv_events": None,
        "internal_states": [
            {
                "disaggregation_mode": leg,
                "last_gen_throughput": 0.0,
                "effective_max_running_requests_per_dp": 64,
                "memory_usage": memory,
            }
        ],
        "version": settings.version,
        "frontend": "python",
    }


async def metrics(request: web.Request) -> web.StreamResponse:
    """A few of the engine's Prometheus series."""
    here = service(request)
    engine, counters = here.driver.engine, here.driver.counters
    series: list[tuple[str, str, str, float]] = [
        ("generation_tokens_total", "counter", "", counters.generation_tokens),
        ("num_transfer_failed_reqs_total", "counter", "", counters.transfer_failures),
        ("num_running_reqs", "gauge", "", here.driver.running - engine.waiting),
        ("num_queue_reqs", "gauge", "", engine.waiting),
    ]
    for leg, (requests, tokens) in zip(LEGS, (counters.prefilled, counters.answered), strict=True):
        labels = f',engine_type="{leg}"'
        series.append(("prompt_tokens_total", "counter", labels, tokens))
        series.append(("num_requests_total", "counter", labels, requests))
    for leg, memory in zip(LEGS, (engine.prefill_memory, engine.decode_memory), strict=True):
        labels = f',engine_type="{leg}"'
        pool = worker_info(here, leg)["max_total_num_tokens"]
        series.append(("max_total_num_tokens", "gauge", labels, pool))
        series.append(("token_usage", "gauge", labels, _usage(memory)))
    return web.Response(text=_exposition(series, here.settings.model), content_type="text/plain")


def _usage(memory: PageMemory) -> float:
    return 1 - memory.free_pages / memory.page_count


def _exposition(series: list[tuple[str, str, str, float]], model: str) -> str:
    lines: list[str] = []
    for name, kind, labels, value in series:
        head = f"# TYPE sglang:{name} {kind}"
        if head not in lines:
            lines.append(head)
        lines.append(f'sglang:{name}{{model_name="{model}"{labels}}} {value}')
    return "\n".join(lines) + "\n"
