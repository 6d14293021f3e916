"""``poolgate keys``: make a tenant's key, or the SHA-256 of one for the configuration."""

from __future__ import annotations

import argparse
import secrets
import sys

from gateway.core.tenants import MAX_KEY_CHARS, key_digest, well_formed

PREFIX = "pgk_"
_RANDOM_BYTES = 32
_ROTATION = """
To replace a key, list both until every client has the new one; the old one with its end:
  key_sha256:
    - {}
    - {{sha256: <the old one's>, not_after: 2026-12-31T00:00:00Z}}
Then reload (SIGHUP)."""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand and its two verbs."""
    parser = subparsers.add_parser("keys", help="make a tenant's key, or hash one")
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    new = verbs.add_parser(
        "new",
        help="make a key",
        description="Print a new key and its SHA-256. The key is shown this once: give it to "
        "the tenant, and write the SHA-256 under key_sha256.",
    )
    new.set_defaults(run=run_new)
    digest = verbs.add_parser(
        "hash",
        help="print a key's SHA-256",
        description="Print the SHA-256 of a key, read from standard input unless given. An "
        "argument can be seen by others on the machine and stays in the shell's history.",
    )
    digest.add_argument("key", metavar="KEY", nargs="?")
    digest.set_defaults(run=run_hash)


def run_new(args: argparse.Namespace) -> int:  # noqa: ARG001 -- every run takes the arguments
    """Exit status 0. What to do with the key goes to standard error: the output is for scripts."""
    key = PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
    print(f"key     {key}\nsha256  {key_digest(key)}")
    print(_ROTATION.format(key_digest(key)), file=sys.stderr)
    return 0


def run_hash(args: argparse.Namespace) -> int:
    """Exit status 0, or 2 for a key that no request could carry."""
    key = sys.stdin.readline().rstrip("\r\n") if args.key is None else args.key
    if not well_formed(key):
        print(
            f"a key is 1 to {MAX_KEY_CHARS} visible ASCII characters without spaces",
            file=sys.stderr,
        )
        return 2
    print(key_digest(key))
    return 0
