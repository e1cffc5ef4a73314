// Scalar pieces of attention and of the logits (rules 8 and 9 of docs/numerics.md), and what every kernel of this family needs.
#pragma once
#include <cuda_fp16.h>
#include "launch.cuh"
#include "numerics.cuh"

constexpr uint32_t INFINITY_BITS = 0x7f800000u;

__device__ __forceinline__ float infinity() { return __uint_as_float(INFINITY_BITS); }
__device__ __forceinline__ float not_a_number() { return __uint_as_float(0x7fc00000u); }

// `pow2` of the conventions: 2^n for integer-valued n in -126..=127; +0 below that and for NaN.
__device__ __forceinline__ float pow2(float n) {
    // Adding ROUND_TO_INTEGER puts n into the low bits; -127 becomes the exponent of +0.
    const uint32_t integer = __float_as_uint(__fadd_rn(fmaxf(n, -127.0f), ROUND_TO_INTEGER));
    return __uint_as_float((integer << 23) + 0x3f800000u);
}
// The same for an int in -126..=127.
__device__ __forceinline__ float pow2(int n) { return __int_as_float((n + 127) << 23); }

// The softmax weight 2^(64 u - 64) for u in [0, 1] (rule 8).
__device__ __forceinline__ float softmax_weight(float u) {
    const float offset = ROUND_TO_INTEGER - 64.0f;
    float shifted = __fmaf_rn(u, 64.0f, offset);
    float f = __fmaf_rn(u, 64.0f, -__fsub_rn(shifted, offset));
    float p = __fmaf_rn(0x1.3a02ccp-7f, f, 0x1.c9fc46p-5f);
    p = __fmaf_rn(p, f, 0x1.ec0378p-3f);
    p = __fmaf_rn(p, f, 0x1.62e12cp-1f);
    p = __fmaf_rn(p, f, 1.0f);
    return __uint_as_float(__float_as_uint(p) + (__float_as_uint(shifted) << 23));
}

// RN(a * b + c) clamped to [0, 1]. A NaN becomes 0, so whoever calls this reports NaNs by other means.
__device__ __forceinline__ float fma_unit(float a, float b, float c) {
    float result;
    asm("fma.rn.sat.f32 %0, %1, %2, %3;" : "=f"(result) : "f"(a), "f"(b), "f"(c));
    return result;
}

// tanh of rule 8; NaN for anything not finite.
__device__ __forceinline__ float tanh_of(float z) {
    if (!is_finite(z)) return not_a_number();
    float t = exp2_degree6(__fmul_rn(-2.0f * fabsf(z), LOG2_E));
    return copysignf(__fdiv_rn(__fsub_rn(1.0f, t), __fadd_rn(1.0f, t)), z);
}

// Marks a row as not finite at `place`, the index of a layer or the number of layers for the head. The first place stands.
__device__ __forceinline__ void report(uint32_t* status, uint32_t row, uint32_t place) { atomicMin(&status[row], place); }

// Waits for the kernels before this one, then lets the next one start. Every kernel of this family says it before it touches
// what kernels write, so that completion is transitive along the stream. Plans and page tables are written by copies, which a
// stream never overlaps with kernels: they may be read before.
__device__ __forceinline__ void begin_dependent() {
    wait_for_previous();
    let_next_start();
}
