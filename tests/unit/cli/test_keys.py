from __future__ import annotations

import argparse
import io
from hashlib import sha256

import pytest

from gateway.cli import keys
from gateway.core.tenants import well_formed


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    keys.register(parser.add_subparsers())
    args = parser.parse_args(["keys", *words])
    status: int = args.run(args)
    return status


def new_key(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    assert run("new") == 0
    shown = capsys.readouterr().out
    (_, key), (_, digest) = (line.split() for line in shown.splitlines())
    assert shown.count(key) == 1
    return key, digest


def test_a_new_key_comes_with_its_hash(capsys: pytest.CaptureFixture[str]) -> None:
    key, digest = new_key(capsys)
    assert key.startswith("pgk_")
    assert len(key) >= len("pgk_") + 43  # 256 random bits
    assert well_formed(key)
    assert digest == sha256(key.encode()).hexdigest()


def test_no_two_keys_are_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert len({new_key(capsys) for _ in range(50)}) == 50


def test_a_given_key_is_hashed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("hash", "pgk_abc") == 0
    assert capsys.readouterr().out == sha256(b"pgk_abc").hexdigest() + "\n"


@pytest.mark.parametrize("typed", ["pgk_abc", "pgk_abc\n", "pgk_abc\r\n", "pgk_abc\nmore\n"])
def test_a_key_is_read_from_standard_input(
    typed: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    assert run("hash") == 0
    assert capsys.readouterr().out == sha256(b"pgk_abc").hexdigest() + "\n"


@pytest.mark.parametrize("key", ["", "LEAKMARK b", "schlüssel", "k" * 5000])
def test_a_key_that_no_request_could_carry(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("hash", key) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "visible ASCII" in shown.err
    assert "LEAKMARK" not in shown.err


def test_a_verb_is_needed() -> None:
    with pytest.raises(SystemExit):
        run()
