"""OpenTelemetry's metrics for generative AI."""

from __future__ import annotations

from types import MappingProxyType

from gateway.edge.series import Maker

# As the semantic conventions have them, and beyond: a long prompt's prefill takes minutes.
_DURATION = tuple(0.01 * 2**power for power in range(17))
_TOKENS = tuple(4.0**power for power in range(14))
_LENGTHS = MappingProxyType({1024: "1k", 8192: "8k", 32768: "32k", 131072: "128k", 524288: "512k"})
_TTFT = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    30,
    60,
    300,
)


class GenAi:
    """OpenTelemetry's metrics for generative AI, in Prometheus' spelling.

    ``gen_ai_provider_name`` is the engine, ``backend`` our own word for which of them.
    """

    def __init__(self, make: Maker) -> None:
        shared = ("backend", "gen_ai_operation_name", "gen_ai_provider_name")
        self.token_usage = make.histogram(
            "gen_ai_client_token_usage",
            "Tokens of one exchange as its engine reported them",
            _TOKENS,
            *shared,
            "gen_ai_token_type",
        )
        self.ttft = make.histogram(
            "gen_ai_server_time_to_first_token_seconds",
            "Time to the first byte of a streamed answer",
            _TTFT,
            *shared,
            "prompt_length",
        )
        self.operation_duration = make.histogram(
            "gen_ai_client_operation_duration_seconds",
            "Time from sending a request to the end of its answer",
            _DURATION,
            *shared,
            "error_type",
        )


def length_class(tokens: int | None) -> str:
    """The label of a prompt's length: the next of a few powers of two, or ``longer``.

    The gen_ai histogram has few series by it, and a prompt's prefill time shows only beside those
    of its like.
    """
    if tokens is None:
        return "unknown"
    return next((name for most, name in _LENGTHS.items() if tokens <= most), "longer")
