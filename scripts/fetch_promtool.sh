#!/usr/bin/env bash
# Prometheus' rule checker for the tests, from the Debian package, without installing that.
#   scripts/fetch_promtool.sh DIRECTORY
# Exits 1 where there is no apt or it does not have it; the tests that need it are then skipped.
set -euo pipefail
target=$(realpath "$1")
command -v apt-get dpkg-deb >/dev/null || { echo "promtool: no apt here" >&2; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
fetch() { timeout 120 apt-get -qq download prometheus 2>/dev/null; }
fetch || { timeout 120 apt-get -qq update 2>/dev/null && fetch; } || {
  echo "promtool: apt cannot fetch it" >&2
  exit 1
}
dpkg-deb -x prometheus_*.deb .
install -m 755 usr/bin/promtool "$target/promtool"
