#!/usr/bin/env bash
# SGLang on a CPU, on top of vLLM's environment (torch, transformers and most else),
# and the tiny model. Seconds once vLLM is set up; sets that up first if need be.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
vllm_environment

VERSION=0.5.23
begin sglang "sglang $VERSION, stubs $(sha256sum "$HERE/sglang_stubs.py" | cut -c 1-12)"

make_model
make_venv sglang
site_packages() { "$ENGINES/$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
SITE=$(site_packages sglang)

# Without dependencies: they would bring CUDA builds of what vLLM's environment has.
pip_install sglang --no-deps "sglang==$VERSION" gguf==0.19.0 orjson==3.13.0 ipython==9.18.1 \
  decorator==5.3.1 traitlets==5.16.1 zstandard==0.25.0 soundfile==0.14.0 torch_memory_saver==0.0.10
cp "$HERE/sglang_stubs.py" "$SITE/"
printf '%s\nimport sglang_stubs\n' "$(site_packages vllm)" >"$SITE/vllm_environment.pth"
run env SGLANG_USE_CPU_ENGINE=1 HF_HUB_OFFLINE=1 "$ENGINES/sglang/bin/python" -c \
  'import sglang.srt.entrypoints.http_server, sglang.srt.managers.scheduler'

finish
