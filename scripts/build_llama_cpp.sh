#!/usr/bin/env bash
# Builds the llama.cpp that muser is measured against, from the PyPI sdist of its python binding: package registries are
# the only outside source that every machine of the project reaches, and a pinned sdist pins the peer.
#
# usage: build_llama_cpp.sh DIR [native|avx2|cuda ...]      (default: native avx2)
# After it: DIR/venv (cmake, ninja, gguf, numpy), DIR/src (llama.cpp), DIR/native/bin and DIR/avx2/bin (tools, libllama, llama-probe).
# `cuda` builds the benchmarks alone, for Hopper, with the CUDA toolkit that is there: DIR/cuda/bin. A machine without a network
# builds it from a DIR/src that was brought there, with its own cmake and ninja.
set -euo pipefail

version=0.3.36
here=$(cd "$(dirname "$0")" && pwd)
root=$(mkdir -p "$1" && cd "$1" && pwd)
shift
variants=("$@")
[ $# -gt 0 ] || variants=(native avx2)
jobs=${JOBS:-$(nproc)}

if [ ! -d "$root/src" ]; then
    [ -x "$root/venv/bin/python" ] || python3 -m venv "$root/venv"
    # scikit-build-core: pip asks the sdist's build backend for metadata even when it only downloads.
    "$root/venv/bin/pip" install -q cmake ninja gguf numpy scikit-build-core
    export PATH="$root/venv/bin:$PATH"
    # Not `:all:`: cmake and ninja themselves must stay wheels.
    pip download -q --no-deps --no-build-isolation --no-binary llama-cpp-python "llama-cpp-python==$version" -d "$root/sdist"
    tar -xzf "$root/sdist/llama_cpp_python-$version.tar.gz" -C "$root"
    mv "$root/llama_cpp_python-$version/vendor/llama.cpp" "$root/src"
    rm -r "$root/llama_cpp_python-$version"
fi
export PATH="$root/venv/bin:$PATH"

for variant in "${variants[@]}"; do
    tools=(llama-quantize llama-bench llama-tokenize llama-perplexity)
    case "$variant" in
        native) isa=(-DGGML_NATIVE=ON) ;;
        # What most of the project's machines have: no AVX-512, no VNNI.
        avx2) isa=(-DGGML_NATIVE=OFF -DGGML_SSE42=ON -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON) ;;
        cuda) isa=(-DGGML_NATIVE=ON -DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=90a -DGGML_CUDA_FA=ON)
            tools=(llama-bench llama-batched-bench) ;;
        *) echo "unknown variant: $variant" >&2; exit 2 ;;
    esac
    cmake -S "$root/src" -B "$root/$variant" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON \
        -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
        -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_TOOLS=ON -DGGML_CCACHE=OFF "${isa[@]}"
    # The library first: tokenizer goldens and logits need nothing else.
    cmake --build "$root/$variant" -j "$jobs" --target llama
    [ "$variant" = cuda ] || cc -O2 -I "$root/src/include" -I "$root/src/ggml/include" "$here/llama_probe.c" -o "$root/$variant/bin/llama-probe" \
        -L "$root/$variant/bin" -lllama -lggml -lggml-base -Wl,-rpath,'$ORIGIN' -Wl,-rpath-link,"$root/$variant/bin"
    cmake --build "$root/$variant" -j "$jobs" --target "${tools[@]}"
done
