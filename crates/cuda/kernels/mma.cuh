// Integer matrix instructions of sm_80 and later, on one warp.
//
// With g = lane / 4 and t = lane % 4, all 8-bit: A (16 x 32, row by row) has rows g, g + 8 and columns 4t, 16 + 4t:
// a[0] = (g, 4t), a[1] = (g + 8, 4t), a[2] = (g, 16 + 4t), a[3] = (g + 8, 16 + 4t), four columns each; B (32 x 8) has
// b[0] = (4t, g), b[1] = (16 + 4t, g), four rows each; C (16 x 8) has c[0..1] = (g, 2t), (g, 2t + 1) and c[2..3] = (g + 8, ..).
#pragma once
#include <stdint.h>

// c += A * B with signed A, k = 32.
__device__ __forceinline__ void mma_s8(int (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// c += A * B with unsigned A, k = 32.
__device__ __forceinline__ void mma_u8(int (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// c += A * B with signed A, k = 16: rows g, g + 8 of A at columns 4t; B at rows 4t.
__device__ __forceinline__ void mma_s8_k16(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t b) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(b));
}
