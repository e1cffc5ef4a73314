// Rule 8b of docs/numerics.md: the Hadamard transform of one block of 32, 64, 128 or 256 elements, on one warp.
#pragma once
#include "numerics.cuh"

// Lane l holds elements l, l + 32, ... of the block in x[0 .. PARTS). Distances 1 to 16 are between lanes, the others between
// registers; each sum and difference is rounded once, in the order of the rule.
template <int PARTS>
__device__ __forceinline__ void hadamard_block(float (&x)[PARTS], float factor, int lane) {
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
#pragma unroll
        for (int j = 0; j < PARTS; j++) {
            float other = __shfl_xor_sync(ALL_LANES, x[j], distance);
            x[j] = (lane & distance) ? __fsub_rn(other, x[j]) : __fadd_rn(x[j], other);
        }
    }
#pragma unroll
    for (int distance = 1; distance < PARTS; distance *= 2) {
#pragma unroll
        for (int j = 0; j < PARTS; j++) {
            if (j & distance) continue;
            float low = x[j], high = x[j + distance];
            x[j] = __fadd_rn(low, high);
            x[j + distance] = __fsub_rn(low, high);
        }
    }
#pragma unroll
    for (int j = 0; j < PARTS; j++) x[j] = __fmul_rn(x[j], factor);
}
