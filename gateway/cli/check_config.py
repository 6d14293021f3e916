"""``poolgate check-config``: says what a configuration means, or everything wrong with it."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from gateway.cli.config_file import read_settings
from gateway.settings import Settings, SettingsError, explain

EXIT_OK, EXIT_BAD_CONFIG = 0, 2


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "check-config",
        help="explain a configuration, or list its faults",
        description="Parse a configuration and explain the policy it sets. Exit 0, or 2 with "
        "every fault on a line of its own.",
    )
    parser.add_argument("file", metavar="FILE", type=Path)
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Exit status 0 or 2."""
    try:
        settings = read_settings(args.file)
    except SettingsError as error:
        print(error, file=sys.stderr)
        if args.json:
            print(json.dumps(_faults(error), indent=2))
        return EXIT_BAD_CONFIG
    print(json.dumps(_outcome(settings), indent=2) if args.json else explain(settings).rstrip())
    return EXIT_OK


def _faults(error: SettingsError) -> dict[str, Any]:
    problems = [{"path": fault.path, "message": fault.message} for fault in error.problems]
    return {"ok": False, "problems": problems}


def _outcome(settings: Settings) -> dict[str, Any]:
    """Effective settings; secrets are masked by their type, keys' hashes left out."""
    hashes: Any = {"tenants": {"__all__": {"key_sha256"}}}
    effective = settings.model_dump(mode="json", exclude=hashes)
    return {"ok": True, "notices": list(settings.notices), "settings": effective}
