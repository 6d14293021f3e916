"""Tries the targets of tests/fuzz_targets.py for a bounded time each; ``make fuzz``.

With atheris, where it is installed (the extra ``fuzz``; wheels exist for some Pythons), inputs are
grown towards code not reached before. Without it, recorded exchanges are changed at random.
What fails is kept in build/fuzz/ and named; exit 1.

    python scripts/fuzz.py [--seconds 60] [--seed N] [TARGET ...]
    python scripts/fuzz.py --again build/fuzz/request-0123456789ab
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import random
import subprocess
import sys
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "build" / "fuzz"
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target")
    parser.add_argument("--seed", type=int, default=None, help="of the random changes")
    parser.add_argument("--again", type=Path, help="an input that failed")
    parser.add_argument("--with-atheris", metavar="TARGET", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.with_atheris:
        return grown(options.with_atheris, options.seconds)
    from fuzz_targets import TARGETS

    if options.again:
        TARGETS[options.again.name.partition("-")[0]].check(options.again.read_bytes())
        return 0
    KEPT.mkdir(parents=True, exist_ok=True)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(2**32)
    failed = []
    for name in options.targets or TARGETS:
        if importlib.util.find_spec("atheris"):
            fine = run_atheris(name, options.seconds)
        else:
            fine = changed(name, options.seconds, seed)
        failed += [] if fine else [name]
    print("failed: " + ", ".join(failed) if failed else "every target held")
    return bool(failed)


def changed(name: str, seconds: float, seed: int) -> bool:
    """Random changes of the seeds; False at the first that fails."""
    from fuzz_targets import TARGETS
    from fuzzing import MOST_CHANGES, with_changes

    target, chance = TARGETS[name], random.Random(f"{name} {seed}")  # noqa: S311 - no secret
    seeds, tries = [b"", *target.seeds()], 0
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        tries += 1
        changes = [
            (
                chance.randrange(2**16),
                chance.randrange(41),
                chance.choice(target.tokens) if chance.random() < 0.7 else chance.randbytes(3),
                chance.choice(["put", "cut", "double"]),
            )
            for _ in range(chance.randint(0, MOST_CHANGES))
        ]
        data = with_changes(chance.choice(seeds), changes)
        try:
            target.check(data)
        except Exception:
            kept = KEPT / f"{name}-{hashlib.sha256(data).hexdigest()[:12]}"
            kept.write_bytes(data)
            traceback.print_exc()
            print(f"{name}: failed after {tries} inputs (seed {seed}); kept as {kept}")
            return False
    print(f"{name}: {tries} inputs in {seconds:g} s (seed {seed})")
    return True


def run_atheris(name: str, seconds: float) -> bool:
    """The same in a process of its own, which atheris ends as it likes."""
    command = [sys.executable, __file__, "--with-atheris", name, "--seconds", str(seconds)]
    return subprocess.run(command, check=False, cwd=ROOT).returncode == 0


def grown(name: str, seconds: float) -> int:
    """Inputs that atheris grows out of the seeds. Does not return."""
    import atheris

    with atheris.instrument_imports(include=["gateway"]):
        from fuzz_targets import TARGETS
    target = TARGETS[name]
    corpus = KEPT / f"corpus-{name}"
    corpus.mkdir(parents=True, exist_ok=True)
    for place, seed in enumerate(target.seeds()):
        (corpus / f"seed-{place}").write_bytes(seed)
    words = KEPT / f"{name}.dict"
    words.write_text("".join(f'"{_escaped(token)}"\n' for token in target.tokens))
    atheris.Setup(
        [
            sys.argv[0],
            f"-max_total_time={int(seconds)}",
            f"-dict={words}",
            f"-artifact_prefix={KEPT / name}-",
            "-max_len=8192",
            "-verbosity=0",
            "-print_final_stats=1",
            str(corpus),
        ],
        target.check,
    )
    atheris.Fuzz()
    return 0


def _escaped(token: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in token)


if __name__ == "__main__":
    sys.exit(main())
