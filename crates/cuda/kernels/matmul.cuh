// Matrices of one launch: up to four products of the same activations, their output tiles numbered through.
#pragma once
#include <stdint.h>

struct MatmulItem {
    const uint8_t* raw;  // [outputs][row_bytes]: rows as in the file, or a prepared layout
    const float* bias;   // [outputs] or null
    float* out;          // [tokens][outputs]
    uint64_t outputs;
    uint64_t row_bytes;
    uint64_t type_and_form;  // GGUF's number, form << 32
    uint64_t scale_bits;     // of the tensor's scale, 1 << 32 where there is one
    uint64_t first_tile;     // number of this matrix's first tile of outputs
    __device__ __forceinline__ uint32_t type() const { return (uint32_t)type_and_form; }
    __device__ __forceinline__ uint32_t form() const { return (uint32_t)(type_and_form >> 32); }
    __device__ __forceinline__ bool has_scale() const { return scale_bits >> 32; }
    __device__ __forceinline__ float scale() const { return __uint_as_float((uint32_t)scale_bits); }
};

struct MatmulItems {
    MatmulItem item[4]; // those past the last have a first tile that no block reaches
    __device__ __forceinline__ const MatmulItem& of(uint32_t tile) const {
        int at = 0;
#pragma unroll
        for (int i = 1; i < 4; i++) at += tile >= item[i].first_tile;
        return item[at];
    }
};
