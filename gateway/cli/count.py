"""``poolgate count``: how many tokens a text, or a request, is to an engine."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gateway.errors import Rejection
from gateway.rendering.registry import ENGINES
from gateway.tokens.assets import AssetError, AssetStore
from gateway.tokens.counters import EngineCounters
from gateway.types import ChatPrompt, Counted, Prompt, TextPrompt

DIALECTS = ("openai_chat", "openai_responses", "anthropic_messages")
EXIT_COUNTED, EXIT_CANNOT = 0, 2


class CannotCount(Exception):
    """Why there is no number, for the person at the terminal."""


@dataclass(frozen=True, slots=True)
class Report:
    """A count and how it was come by."""

    model: str
    tokenizer: str
    engine: str
    library: str
    tokens: int
    upper_bound: int | None
    warnings: tuple[str, ...] = ()


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "count",
        help="count the tokens of a text or a request",
        description="Count as the engine does: a text as a completion prompt, or, with --dialect,"
        " a request body. Exit 0, or 2 where there is no number.",
    )
    parser.add_argument("--model", required=True, help="the model's name, for the report")
    parser.add_argument(
        "--tokenizer", help="a name in tokenizers/, a folder, or tiktoken:NAME (default: the model)"
    )
    parser.add_argument(
        "--engine", default="vllm", help=f"{', '.join(ENGINES)}, or any other (default: vllm)"
    )
    parser.add_argument("--dialect", choices=DIALECTS, help="the input is a request body")
    parser.add_argument("--tokenizers", type=Path, metavar="DIR", help="another tokenizers folder")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    parser.add_argument("file", nargs="?", default="-", metavar="FILE", help="- is standard input")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Exit status 0 or 2."""
    try:
        report = _count(args)
    except (CannotCount, AssetError, Rejection, OSError) as error:
        print(f"cannot count: {error}", file=sys.stderr)
        return EXIT_CANNOT
    for warning in report.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(msgspec.json.encode(report).decode() if args.json else report.tokens)
    return EXIT_COUNTED


def _count(args: argparse.Namespace) -> Report:
    prompt = read_prompt(args.file, args.dialect)
    reference = args.tokenizer or args.model
    counter = EngineCounters(AssetStore.open(args.tokenizers), reference).load(args.engine)
    length = counter.count(prompt)
    if not isinstance(length, Counted):
        raise CannotCount(getattr(length, "reason", "unknown"))
    bound = counter.bound(prompt)
    return Report(
        model=args.model,
        tokenizer=reference,
        engine=args.engine,
        library=counter.encoder.library,
        tokens=length.total,
        upper_bound=None if bound is None else bound.total,
        warnings=counter.encoder.warnings,
    )


def read_prompt(file: str, dialect: str | None) -> Prompt:
    """The prompt in a file, or on standard input for ``-``.

    Raises:
        CannotCount: it is not UTF-8, or no JSON object where a dialect is given.
    """
    raw = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CannotCount(f"the input is not UTF-8 (byte {error.start})") from None
    if dialect is None:
        return TextPrompt((text,))
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CannotCount(f"the input is not JSON: {error}") from None
    if not isinstance(body, Mapping):
        raise CannotCount("the request body is not a JSON object")
    return ChatPrompt(dialect, body)
