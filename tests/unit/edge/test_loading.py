"""Tokenizers of a configuration, and which of them a reload loads again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gateway.edge.loading import by_backend, load_counters
from gateway.settings import NoSecrets, SettingsError, parse

TINY = Path(__file__).parents[3] / "tokenizers" / "poolgate-tiny"


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(TINY, tmp_path / "own")


def settings(*tokenizers):
    return parse(
        {
            "backends": [
                {"name": f"b{place}", "url": f"http://h:{place + 1}", "tokenizer": each}
                for place, each in enumerate(tokenizers)
            ]
        },
        NoSecrets(),
    )


async def test_backends_that_name_one_share_it(folder):
    written = settings(str(folder), None, str(folder), "engine")
    loaded = await load_counters(written, None, {})
    counters = by_backend(written, loaded)
    assert counters.keys() == {"b0", "b2"}
    assert counters["b0"] is counters["b2"]
    assert counters["b0"].loaded("openai") is not None


async def test_a_reload_takes_what_is_loaded_and_unchanged(folder):
    before = await load_counters(settings(str(folder)), None, {})
    after = await load_counters(settings(str(folder)), None, before)
    assert after[str(folder)] is before[str(folder)]


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
async def test_a_reload_loads_anew_what_has_changed(folder, name):
    before = await load_counters(settings(str(folder)), None, {})
    file = folder / name
    text = file.read_text() if file.exists() else "{{ messages }}"
    file.write_text(text + "\n")
    after = await load_counters(settings(str(folder)), None, before)
    assert after[str(folder)].counters is not before[str(folder)].counters


async def test_every_backend_of_a_broken_one_is_named(folder):
    before = await load_counters(settings(str(folder)), None, {})
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(SettingsError) as caught:
        await load_counters(settings(str(folder), str(folder)), None, before)
    assert [problem.path for problem in caught.value.problems] == [
        "backends[0].tokenizer",
        "backends[1].tokenizer",
    ]
