// One head vector in the registers of a warp: element l + 32 j is x[j] of lane l.
#pragma once
#include "hadamard.cuh"
#include "softmax.cuh"

template <int CHUNKS>
struct HeadVector {
    static constexpr int DIM = 32 * CHUNKS;
    // The largest power of two that divides CHUNKS: Hadamard blocks are 32 times this long.
    static constexpr int BLOCK_CHUNKS = CHUNKS & -CHUNKS;
    float x[CHUNKS];

    __device__ __forceinline__ static int lane() { return threadIdx.x % 32; }

    __device__ __forceinline__ void load(const float* from) {
#pragma unroll
        for (int j = 0; j < CHUNKS; j++) x[j] = from[lane() + 32 * j];
    }

    __device__ __forceinline__ void store(float* to) const {
#pragma unroll
        for (int j = 0; j < CHUNKS; j++) to[lane() + 32 * j] = x[j];
    }

    // Rule 5 over one head (n = head_dim <= 256, so that each of the 256 lanes has at most one square). Lanes without an
    // element are +0, and a sum of squares is never -0, so leaving them out of the tree changes no bit.
    __device__ __forceinline__ void norm(const float (&weight)[CHUNKS], float eps) {
        float a[8];
#pragma unroll
        for (int j = 0; j < 8; j++) a[j] = j < CHUNKS ? x[j] * x[j] : 0.0f;
#pragma unroll
        for (int step = 4; step > 0; step /= 2)
#pragma unroll
            for (int j = 0; j < step; j++)
                if (j + step < CHUNKS) a[j] = a[j] + a[j + step];
        float sum = a[0];
#pragma unroll
        for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, step);
        float r = inverse_rms_of_sum(sum, DIM, eps);
#pragma unroll
        for (int j = 0; j < CHUNKS; j++) x[j] = x[j] * r * weight[j];
    }

    // Rule 7 on the first 2 * pairs dimensions, by each one's cosine and sine.
    __device__ __forceinline__ void rotate(const float (&cosine)[CHUNKS], const float (&sine)[CHUNKS], uint32_t pairs,
                                           bool neox) {
        float partner[CHUNKS];
        if (!neox) {
#pragma unroll
            for (int j = 0; j < CHUNKS; j++) partner[j] = __shfl_xor_sync(ALL_LANES, x[j], 1);
        } else {
            // Element d pairs with d + pairs or d - pairs, which may be in any lane and chunk.
#pragma unroll
            for (int j = 0; j < CHUNKS; j++) {
                uint32_t d = lane() + 32 * j, other = d < pairs ? d + pairs : d - pairs;
                partner[j] = 0.0f;
#pragma unroll
                for (int k = 0; k < CHUNKS; k++) {
                    float candidate = __shfl_sync(ALL_LANES, x[k], other % 32);
                    if (other / 32 == k) partner[j] = candidate;
                }
            }
        }
#pragma unroll
        for (int j = 0; j < CHUNKS; j++) {
            uint32_t d = lane() + 32 * j;
            bool first = neox ? d < pairs : d % 2 == 0;
            if (d >= 2 * pairs) continue;
            float other = partner[j] * sine[j];
            x[j] = __fmaf_rn(x[j], cosine[j], first ? -other : other);
        }
    }

    // Rule 8b, block by block.
    __device__ __forceinline__ void hadamard(float factor) {
#pragma unroll
        for (int j = 0; j < CHUNKS; j += BLOCK_CHUNKS) {
            hadamard_block(reinterpret_cast<float(&)[BLOCK_CHUNKS]>(x[j]), factor, lane());
        }
    }

    // Rule 9, storing: codes within +-code_max and their scale; false, with both unspecified, if an element is not finite.
    __device__ __forceinline__ bool codes(float code_max, int (&code)[CHUNKS], float& scale) const {
        float magnitude = 0.0f;
        bool finite = true;
#pragma unroll
        for (int j = 0; j < CHUNKS; j++) {
            magnitude = fmaxf(magnitude, fabsf(x[j]));
            finite &= is_finite(x[j]);
        }
        magnitude = warp_max(magnitude);
        bool small = magnitude < SMALLEST_MAXIMUM;
        float inverse = small ? 0.0f : code_max / magnitude;
        scale = small ? 0.0f : magnitude / code_max;
#pragma unroll
        for (int j = 0; j < CHUNKS; j++) code[j] = __float2int_rn(fminf(fmaxf(x[j] * inverse, -code_max), code_max));
        return __all_sync(ALL_LANES, finite);
    }
};
