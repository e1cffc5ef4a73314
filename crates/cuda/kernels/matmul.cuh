// Matrices of one launch: up to four products of the same activations, their output tiles numbered through.
#pragma once
#include <cuda_runtime.h>
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

    // Writes one finished element: times the tensor's scale (rule 4), plus the bias (rule 6).
    __device__ __forceinline__ void finish(int token, int output, float y) const {
        if (scale_bits >> 32) y = __fmul_rn(y, __uint_as_float((uint32_t)scale_bits));
        if (bias) y = __fadd_rn(y, bias[output]);
        out[(size_t)token * outputs + output] = y;
    }
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

// Writes a thread's share of a finished tile in the order of the matrix instructions: element 4 i + 2 a + b is output
// `output` + 8 a of token `token` + 8 i + b. Elements past the last output or token are dropped.
template <int COUNT>
__device__ __forceinline__ void store_share(const MatmulItem& item, const float (&acc)[COUNT], int output, int token,
                                            int tokens) {
    const int outputs = (int)item.outputs;
    if (item.bias || item.scale_bits) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const int at = output + i / 2 % 2 * 8, of = token + i / 4 * 8 + i % 2;
            if (at < outputs && of < tokens) item.finish(of, at, acc[i]);
        }
        return;
    }
    // Nearly always: nothing but stores.
    float* out = item.out + (size_t)token * outputs + output;
    const bool first = output < outputs, second = output + 8 < outputs;
#pragma unroll
    for (int i = 0; i < COUNT / 4; i++) {
#pragma unroll
        for (int next = 0; next < 2; next++) {
            const bool exists = token + 8 * i + next < tokens;
            float* at = out + (size_t)(8 * i + next) * outputs;
            if (exists && first) at[0] = acc[4 * i + next];
            if (exists && second) at[8] = acc[4 * i + 2 + next];
        }
    }
}
