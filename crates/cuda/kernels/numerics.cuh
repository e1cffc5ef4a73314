// Scalar pieces of docs/numerics.md: one correctly rounded operation per call, nothing contracted (-fmad=false).
#pragma once
#include <cuda_runtime.h>
#include <stdint.h>

constexpr uint32_t ALL_LANES = 0xffffffffu;
// Adding 1.5 * 2^23 rounds a small float to an integer, which then sits in the low mantissa bits.
constexpr float ROUND_TO_INTEGER = 12582912.0f;
constexpr float LOG2_E = 0x1.715476p+0f;
// Rule 2: groups whose largest magnitude is below this are zero.
constexpr float SMALLEST_MAXIMUM = 0x1p-100f;
constexpr float LARGEST_CODE = 127.0f;

__device__ __forceinline__ bool is_finite(float x) { return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u; }

// Rule 8: 2^x for x clamped to [-126, 126].
__device__ __forceinline__ float exp2_degree6(float x) {
    x = x < -126.0f ? -126.0f : (x > 126.0f ? 126.0f : x);
    float shifted = __fadd_rn(x, ROUND_TO_INTEGER);
    float f = __fsub_rn(x, __fsub_rn(shifted, ROUND_TO_INTEGER));
    float p = __fmaf_rn(0x1.41fbbcp-13f, f, 0x1.5f3e54p-10f);
    p = __fmaf_rn(p, f, 0x1.3b2d4cp-7f);
    p = __fmaf_rn(p, f, 0x1.c6aee8p-5f);
    p = __fmaf_rn(p, f, 0x1.ebfbdcp-3f);
    p = __fmaf_rn(p, f, 0x1.62e430p-1f);
    p = __fmaf_rn(p, f, 1.0f);
    return __uint_as_float(__float_as_uint(p) + (__float_as_uint(shifted) << 23));
}

// Rule 8: den(g) = 1 + 2^(-g log2 e).
__device__ __forceinline__ float one_plus_exp_of_minus(float g) {
    return __fadd_rn(1.0f, exp2_degree6(__fmul_rn(-g, LOG2_E)));
}

// Rule 8: SiLU(g) * u.
__device__ __forceinline__ float silu_mul(float g, float u) {
    return __fmul_rn(__fdiv_rn(g, one_plus_exp_of_minus(g)), u);
}

// Rule 8: sig(g), NaN for g not finite (g - g is +0 or NaN, and is added to a positive number).
__device__ __forceinline__ float sigmoid(float g) {
    return __fdiv_rn(1.0f, __fadd_rn(one_plus_exp_of_minus(g), __fsub_rn(g, g)));
}

// Rule 5, step 3: 1 / sqrt(sum / n + eps); NaN for a sum that is not finite.
__device__ __forceinline__ float inverse_rms_of_sum(float sum, int n, float eps) {
    if (!is_finite(sum)) return __uint_as_float(0x7fc00000u);
    return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(sum, (float)n), eps)));
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int step = 16; step; step >>= 1) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, step));
    return x;
}

__device__ __forceinline__ int warp_sum(int x) {
#pragma unroll
    for (int step = 16; step; step >>= 1) x += __shfl_xor_sync(ALL_LANES, x, step);
    return x;
}
