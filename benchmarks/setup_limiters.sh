#!/bin/bash
# Installs what `python -m benchmarks.limits` measures poolgate's limiter beside, into
# .bench/limiters (git-ignored), with the very redis-py that poolgate uses. Idempotent.
set -eu
cd "$(dirname "$0")/.."
venv=.bench/limiters
if "$venv/bin/python" -c 'import limits, throttled, redis' 2>/dev/null; then exit 0; fi
mkdir -p .bench
"${PYTHON:-python3}" -m venv "$venv"
nice "$venv/bin/pip" install --quiet --disable-pip-version-check -c constraints.txt \
  'limits>=5.8,<6' 'throttled-py>=3.5,<4' redis coredis
