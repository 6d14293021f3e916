#!/bin/bash
# Installs what `python -m benchmarks.proxy` measures poolgate beside, into .bench/ (git-ignored).
#
# Idempotent: what is there already is left alone. Tolerant: a peer that does not install is
# skipped, named in the output and left out of the run. Nothing outside .bench/ is touched;
# Debian's nginx is unpacked, not installed, so that no service starts on this machine.
# Always exits 0 unless the load generator itself cannot be built.
set -u
cd "$(dirname "$0")/.." || exit 1
root=$PWD/.bench
python=${PYTHON:-python3}
mkdir -p "$root/logs"

ready=()
skipped=()

# A second run at the same time would share half-made environments with this one.
exec 9>"$root/setup.lock"
flock 9

done_or() {  # done_or NAME COMMAND...: run once, remember success
  local name=$1 log=$root/logs/$1.log
  shift
  if [ -e "$root/$name.ready" ] || { "$@" >"$log" 2>&1 && touch "$root/$name.ready"; }; then
    ready+=("$name")
  else
    skipped+=("$name (see ${log#"$PWD"/})")
  fi
}

venv_with() {  # venv_with NAME REQUIREMENT...
  local venv=$root/$1
  shift
  rm -rf "$venv"
  "$python" -m venv "$venv" &&
    nice "$venv/bin/pip" install --quiet --disable-pip-version-check "$@"
}

debian_nginx() (
  # Only the program is wanted: installing the package would start a service on port 80.
  work=$root/nginx.deb
  rm -rf "$work" "$root/nginx"
  mkdir -p "$work" && cd "$work" || exit 1
  apt-get download nginx || { apt-get update -q && apt-get download nginx; } || exit 1
  dpkg -x nginx_*.deb "$root/nginx" && "$root/nginx/usr/sbin/nginx" -v
)

native() {
  local cc=${CC:-cc} name source
  for name in load upstream streams; do
    source=benchmarks/native/$name.c
    if [ "$root/bin/$name" -nt "$source" ] && [ "$root/bin/$name" -nt benchmarks/native/common.h ]; then
      continue
    fi
    mkdir -p "$root/bin"
    "$cc" -O2 -std=c11 -Wall -Wextra -Werror -o "$root/bin/$name" "$source" || return 1
  done
}

native || { echo "benchmarks: no C compiler, or the load generator does not build" >&2; exit 1; }
done_or nginx debian_nginx
done_or sglang-router venv_with sglang-router sglang-router
done_or vllm-router venv_with vllm-router vllm-router
done_or smg venv_with smg smg
done_or litellm venv_with litellm 'litellm[proxy]'
done_or profiler venv_with profiler py-spy

echo "benchmarks: ready: ${ready[*]:-none}"
[ ${#skipped[@]} -eq 0 ] || printf 'benchmarks: skipped: %s\n' "${skipped[@]}"
