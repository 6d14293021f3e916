"""Exact paths only (rows 44 and 64)."""

import pytest

from gateway.dialects import routes


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/chat/completions", "openai_chat"),
        ("/v1/completions", "openai_completions"),
        ("/v1/responses", "openai_responses"),
        ("/v1/embeddings", "openai_embeddings"),
        ("/v1/messages", "anthropic_messages"),
        ("/v1/messages/count_tokens", "anthropic_messages"),
        ("/generate", "sglang_generate"),
    ],
)
def test_inference_paths(path, name):
    assert routes.match("POST", path).name == name
    assert routes.match("POST", path + "?a=%2B+%20").name == name


def test_nothing_else_is_listed():
    assert len(routes.ROUTES) == 7


@pytest.mark.parametrize("path", [path for _, path in routes.ROUTES])
@pytest.mark.parametrize("method", ["GET", "PUT", "post", "OPTIONS", "HEAD", "DELETE", "CONNECT"])
def test_other_methods_are_not(method, path):
    assert routes.match(method, path) is None


@pytest.mark.parametrize(
    "path",
    [
        "/v1/%2e%2e/flush_cache", "/v1/..%2fflush_cache", "//v1/chat/completions",
        "/v1/chat%2Fcompletions", "/V1/chat/completions", "/v1/chat/completions/",
        "/v1/chat/completions;a=1", "/v1/chat/completions#x", "/v1/chat/./completions",
        "http://host/v1/chat/completions", "/x/../v1/chat/completions", "*", "", "/", "?/generate",
        "/v1/chat/completions%20", " /generate", "/generate\\", "/%67enerate",
    ],
)  # fmt: skip
def test_row_44_other_spellings_are_not(path):
    assert routes.match("POST", path) is None


@pytest.mark.parametrize(
    "path",
    [
        "/flush_cache", "/abort_request", "/update_weights_from_disk", "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter", "/reset_prefix_cache", "/sleep", "/wake_up", "/pause",
        "/collective_rpc", "/scale_elastic_ep", "/invocations", "/server_info", "/get_server_info",
        "/metrics", "/start_profile", "/set_internal_state", "/slots/0?action=erase", "/workers",
        "/docs", "/openapi.json", "/tokenize", "/v1/chat/completions/render", "/v1/models",
        "/inference/v1/generate", "/v1/responses/resp_1", "/generate_from_file",
    ],
)  # fmt: skip
def test_row_64_control_paths_are_not(path):
    assert routes.match("POST", path) is None
    assert routes.match("GET", path) is None
