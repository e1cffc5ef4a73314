#!/usr/bin/env bash
# Compiles crates/cuda/kernels/*.cu into the fatbins beside them: machine code for sm_90a and PTX for everything else from
# sm_80 on. Units whose hash is unchanged are left alone. With --check, also compiles every unit for sm_80, sm_89 and
# sm_120 and throws the result away.
# Usage: scripts/build_cuda_kernels.sh [--check] [NVCC]     (NVCC: 13.0 or later, default `nvcc`)
set -euo pipefail
cd "$(dirname "$0")/../crates/cuda/kernels"
check=no
if [ "${1:-}" = --check ]; then check=yes; shift; fi
nvcc=${1:-nvcc}
read -ra flags < flags

# A unit and the headers that it includes, directly or not.
sources_of() {
    local pending=("$1") all=() name
    while [ ${#pending[@]} -gt 0 ]; do
        name=${pending[0]}
        pending=("${pending[@]:1}")
        case " ${all[*]:-} " in *" $name "*) continue ;; esac
        all+=("$name")
        while read -r header; do pending+=("$header"); done < <(sed -n 's/^#include "\(.*\)"$/\1/p' "$name")
    done
    printf '%s\n' "${all[@]}" | LC_ALL=C sort
}

for unit in *.cu; do
    unit=${unit%.cu}
    mapfile -t sources < <(sources_of "$unit.cu")
    hash=$(cat flags "${sources[@]}" | sha256sum | cut -d' ' -f1)
    if [ ! -f "$unit.fatbin" ] || [ "$(cat "$unit.sha256" 2>/dev/null)" != "$hash" ]; then
        echo "$unit"
        "$nvcc" "${flags[@]}" -fatbin -gencode=arch=compute_90a,code=sm_90a -gencode=arch=compute_80,code=compute_80 \
            -o "$unit.fatbin" "$unit.cu"
        echo "$hash" > "$unit.sha256"
    fi
    if [ "$check" = yes ]; then
        for arch in 80 89 120; do
            "$nvcc" "${flags[@]}" -cubin -gencode="arch=compute_$arch,code=sm_$arch" -o /dev/null "$unit.cu"
        done
    fi
done
