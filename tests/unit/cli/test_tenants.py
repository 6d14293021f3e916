from __future__ import annotations

import argparse
from typing import Any

import pytest

from gateway.cli import tenants


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    tenants.register(parser.add_subparsers())
    return parser.parse_args(["tenants", *words])


def quota(name: str, used: int, limit: int, **more: Any) -> dict[str, Any]:
    amounts = {"used": used, "limit": limit, "remaining": limit - used, "reset_s": 2.4}
    return {"name": name, "models": None, "shadow": False, **amounts, **more}


def test_the_table_is_for_people() -> None:
    status = {
        "shown": [
            {
                "id": "studio-a",
                "in_flight": 12,
                "quotas": [
                    quota("calls", 12, 600),
                    quota("tokens", 9, 10, models="g*", shadow=True),
                ],
            },
            {"id": "b", "in_flight": 0, "quotas": []},
            {"id": "c", "in_flight": 1, "quotas": None},
        ],
        "left_out": 3,
    }
    assert tenants.table(status).splitlines() == [
        "TENANT    IN FLIGHT  QUOTA                          USED  LIMIT  REMAINING  FULL IN",
        "studio-a         12  calls                            12    600        588      2 s",
        "                     tokens for models g* (shadow)     9     10          1      2 s",
        "b                 0  no quotas",
        "c                 1  the store does not answer",
        "3 more that did not call lately",
    ]


def test_no_one_to_tell_of() -> None:
    assert len(tenants.table({"shown": [], "left_out": 0}).splitlines()) == 1


def test_defaults() -> None:
    args = parsed("top")
    assert (args.admin, args.watch, args.json) == ("http://127.0.0.1:9090", None, False)


@pytest.mark.parametrize("pause", ["0", "-1", "x", "inf", "nan"])
def test_a_pause_is_a_number_of_seconds(pause: str) -> None:
    with pytest.raises(SystemExit):
        parsed("top", "--watch", pause)


def test_an_admin_plane_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    args = parsed("top", "--admin", "http://127.0.0.1:1/")
    assert args.run(args) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "no status from http://127.0.0.1:1: ClientConnectorError\n"


def test_a_verb_is_needed() -> None:
    with pytest.raises(SystemExit):
        parsed()
