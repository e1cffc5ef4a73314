// Pieces of the products with one activation row: integer dots, and copies that a warp makes for itself.
#pragma once
#include <cuda_fp16.h>
#include <stdint.h>

constexpr int WARPS = 8;
constexpr int THREADS = WARPS * 32;
constexpr int STAGES = 2;

__device__ __forceinline__ int dot_signed(uint32_t a, uint32_t b, int c) { return __dp4a((int)a, (int)b, c); }
__device__ __forceinline__ int dot_unsigned(uint32_t a, uint32_t b, int c) {
    int d;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
__device__ __forceinline__ float half_of(uint32_t word, int at) {
    return __half2float(__ushort_as_half((unsigned short)(word >> (16 * at))));
}

// Starts copying 16 bytes from global memory to the shared address `to`.
__device__ __forceinline__ void start_copy(uint32_t to, const uint8_t* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// Ends a group of copies, which may be empty.
__device__ __forceinline__ void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until all groups but the last have come; other lanes see them behind a __syncwarp.
__device__ __forceinline__ void wait_for_group_before() { asm volatile("cp.async.wait_group 1;" ::: "memory"); }
