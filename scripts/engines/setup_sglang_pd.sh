#!/usr/bin/env bash
# SGLang with the incident's fault, as separate prefill and decode workers on a CPU: the last release
# that has it, a KV transfer over TCP, SGLang's router, and the model that copies (copying_model.py).
# On top of vLLM's environment, which it sets up first if need be. Needs libibverbs.so.1, which the
# transfer engine loads even where it uses TCP (Debian: libibverbs1).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
vllm_environment

VERSION=0.5.19
begin sglang_pd "sglang $VERSION, $(cat "$HERE"/{sglang_stubs,copying_model}.py | sha256sum | cut -c 1-12)"

make_model
make_venv sglang_pd
site_packages() { "$ENGINES/$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
SITE=$(site_packages sglang_pd)

# Without dependencies: they would bring CUDA builds of what vLLM's environment has. SGLang 0.5.19
# fails to import with the Transformers there, which is newer, so it gets its own.
pip_install sglang_pd --no-deps "sglang==$VERSION" gguf==0.19.0 orjson==3.13.0 ipython==9.18.1 \
  decorator==5.3.1 traitlets==5.16.1 zstandard==0.25.0 soundfile==0.14.0 torch_memory_saver==0.0.10 \
  transformers==5.12.1 tokenizers==0.22.2 huggingface-hub==1.33.0 \
  mooncake-transfer-engine-non-cuda==0.3.13.post1 sglang-router==0.3.2
cp "$HERE/sglang_stubs.py" "$SITE/"
printf '%s\nimport sglang_stubs\n' "$(site_packages vllm)" >"$SITE/vllm_environment.pth"
if ! run "$ENGINES/sglang_pd/bin/python" -c 'import mooncake.engine, sglang_router'; then
  say "is libibverbs.so.1 there? Debian: apt-get install libibverbs1"
  exit 1
fi
run env SGLANG_USE_CPU_ENGINE=1 HF_HUB_OFFLINE=1 "$ENGINES/sglang_pd/bin/python" -c \
  'import sglang.srt.entrypoints.http_server, sglang.srt.managers.scheduler'

get_tokenizer
rm -rf "$ENGINES/copying" "$ENGINES/copying.tmp"
run "$ENGINES/tools/bin/python" "$HERE/copying_model.py" "$TOKENIZER" "$ENGINES/copying.tmp"
mv "$ENGINES/copying.tmp" "$ENGINES/copying"

finish
