"""What a reload reads, and where."""

from __future__ import annotations

import argparse
import threading
from types import SimpleNamespace

import pytest

from gateway.cli import serve
from gateway.settings import SettingsError

TEXT = "backends: [{name: a, url: 'http://h:1'}]\nlisten: 127.0.0.1:1\n"


def arguments(tmp_path, **more):
    file = tmp_path / "poolgate.yaml"
    file.write_text(TEXT)
    given = {"config": file, "listen": None, "admin": None, **more}
    return argparse.Namespace(**given)


async def test_a_reload_reads_the_file_on_another_thread(tmp_path, monkeypatch):
    """With thousands of tenants that takes a while, and requests go on meanwhile."""
    threads = []
    read = serve.read_written
    monkeypatch.setattr(
        serve, "read_written", lambda path: threads.append(threading.get_ident()) or read(path)
    )
    running = SimpleNamespace(settings=SimpleNamespace(workers=1))
    settings, written = await serve._read_again(arguments(tmp_path, listen="127.0.0.1:2"), running)
    assert str(settings.listen) == "127.0.0.1:2"  # the command's goes first
    assert written.text == TEXT
    assert threads != [threading.get_ident()]
    assert len(threads) == 1


async def test_a_reload_does_not_change_the_number_of_workers(tmp_path):
    running = SimpleNamespace(settings=SimpleNamespace(workers=2))
    with pytest.raises(SettingsError, match="without a restart"):
        await serve._read_again(arguments(tmp_path), running)
