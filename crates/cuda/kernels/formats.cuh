// Weight types as GGUF stores them: rule 1 of docs/numerics.md for 32 weights at a time. The twin of
// crates/kernels/src/formats and crates/kernels/src/matrix/scan.rs.
//
// Blocks are read byte by byte or in 16-bit halves, since most block sizes are no multiple of 4.
#pragma once
#include <cuda_fp16.h>
#include "numerics.cuh"

// GGUF's numbers.
constexpr uint32_t F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q4_K = 12, Q5_K = 13, Q6_K = 14,
                   IQ4_NL = 20, IQ4_XS = 23, BF16 = 30, MXFP4 = 39, NVFP4 = 40;

// How the integer weights of a tensor are formed, as in scan.rs: w' = 2 sc q - M; w' = sc q - M; floats for mins.
constexpr uint32_t HALF_STEPS = 0, WHOLE_STEPS = 1, GENERAL = 2;

__device__ __constant__ int8_t IQ4_CODEBOOK[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                   1,    13,   25,  38,  53,  69,  89,  113};
__device__ __constant__ int8_t E2M1_DOUBLED[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

__device__ __forceinline__ float half_at(const uint8_t* bytes) {
    return __half2float(__ushort_as_half((unsigned short)(bytes[0] | bytes[1] << 8)));
}

// The 6-bit sub-scale and sub-min j of the 12 packed bytes of Q4_K and Q5_K.
__device__ __forceinline__ void six_bit_pair(const uint8_t* bytes, int j, int& scale, int& min) {
    if (j < 4) {
        scale = bytes[j] & 63;
        min = bytes[j + 4] & 63;
    } else {
        scale = (bytes[j + 4] & 15) | (bytes[j - 4] >> 6) << 4;
        min = bytes[j + 4] >> 4 | (bytes[j] >> 6) << 4;
    }
}

// M of rule 1 as a float: an integer, exact.
__device__ __forceinline__ float integer_min(float d, float dmin, int min, uint32_t form) {
    const float ratio = dmin == 0.0f ? 0.0f : __fdiv_rn(dmin, d);
    return rintf(__fmul_rn(__fmul_rn(ratio, (float)min), form == HALF_STEPS ? 2.0f : 1.0f));
}

// 32 weights of a block of 256 with integer sub-scales.
struct IntegerWeights {
    int weight[32]; // w'; in GEN sc * q
    float scale;    // D; in GEN d
    float min_scale; // in GEN dmin
    int min;        // in GEN m_j
};

// Sub-block j (32 weights) of the block at `block`.
template <uint32_t TYPE>
__device__ __forceinline__ void decode_integer_scales(IntegerWeights& out, const uint8_t* block, int j, uint32_t form) {
    out.min_scale = 0.0f;
    out.min = 0;
    if (TYPE == Q4_K || TYPE == Q5_K) {
        const float d = half_at(block), dmin = half_at(block + 2);
        int sub_scale, sub_min;
        six_bit_pair(block + 4, j, sub_scale, sub_min);
        const uint8_t* nibbles = block + (TYPE == Q4_K ? 16 : 48) + j / 2 * 32;
        int offset = 0;
        out.scale = d;
        if (form == GENERAL) {
            out.min_scale = dmin;
            out.min = sub_min;
        } else {
            offset = (int)integer_min(d, dmin, sub_min, form);
            if (form == HALF_STEPS) {
                sub_scale *= 2;
                out.scale = __fmul_rn(d, 0.5f);
            }
        }
#pragma unroll
        for (int k = 0; k < 32; k++) {
            int code = nibbles[k] >> (j % 2 * 4) & 15;
            if (TYPE == Q5_K) code |= (block[16 + k] >> j & 1) << 4;
            out.weight[k] = sub_scale * code - offset;
        }
    } else if (TYPE == Q6_K) {
        const int half = j / 4, quarter = j % 4;
        const uint8_t* low = block + half * 64 + quarter % 2 * 32;
        const uint8_t* high = block + 128 + half * 32;
        out.scale = half_at(block + 208);
#pragma unroll
        for (int k = 0; k < 32; k++) {
            const int code = (low[k] >> (quarter / 2 * 4) & 15) | (high[k] >> (quarter * 2) & 3) << 4;
            out.weight[k] = (int)(int8_t)block[192 + 2 * j + k / 16] * (code - 32);
        }
    } else {
        const int low = block[4 + j / 2] >> (j % 2 * 4) & 15, high = (block[2] | block[3] << 8) >> (2 * j) & 3;
        const int sub_scale = (low | high << 4) - 32;
        out.scale = half_at(block);
#pragma unroll
        for (int k = 0; k < 32; k++) {
            const int code = block[8 + 16 * j + k % 16] >> (k / 16 * 4) & 15;
            out.weight[k] = sub_scale * IQ4_CODEBOOK[code];
        }
    }
}

__device__ __forceinline__ int integer_block_bytes(uint32_t type) {
    return type == Q4_K ? 144 : type == Q5_K ? 176 : type == Q6_K ? 210 : 136;
}

__device__ __forceinline__ void decode_integer_scales(IntegerWeights& out, uint32_t type, const uint8_t* block, int j,
                                                      uint32_t form) {
    switch (type) {
        case Q4_K: decode_integer_scales<Q4_K>(out, block, j, form); break;
        case Q5_K: decode_integer_scales<Q5_K>(out, block, j, form); break;
        case Q6_K: decode_integer_scales<Q6_K>(out, block, j, form); break;
        default: decode_integer_scales<IQ4_XS>(out, block, j, form); break;
    }
}

// 32 weights with float scales, one per 16; the min is 0 for types without one.
struct ScaledWeights {
    int code[32];
    float scale[2];
    float min;
};

// 2^(e - 128): an E8M0 scale, halved because the codes are doubled.
__device__ __forceinline__ float e8m0_halved(uint32_t e) {
    return __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
}

// Half of a UE4M3 scale below 0x7f, halved because the codes are doubled.
__device__ __forceinline__ float ue4m3_halved(uint32_t e) {
    if (e < 8) return __fdiv_rn((float)e, 1024.0f);
    return __uint_as_float(((e >> 3) + 119) << 23 | (e & 7) << 20);
}

// The 32-block `index` of the row at `row`.
template <uint32_t TYPE>
__device__ __forceinline__ void decode_float_scales(ScaledWeights& out, const uint8_t* row, int index) {
    constexpr int BYTES = TYPE == Q4_0 || TYPE == IQ4_NL ? 18 : TYPE == Q4_1 ? 20 : TYPE == Q5_0 ? 22 : TYPE == Q5_1 ? 24
                          : TYPE == Q8_0 ? 34 : TYPE == MXFP4 ? 17 : 36;
    out.min = 0.0f;
    if (TYPE == NVFP4) {
        const uint8_t* block = row + index / 2 * BYTES;
        const int half = index % 2;
        out.scale[0] = ue4m3_halved(block[half * 2]);
        out.scale[1] = ue4m3_halved(block[half * 2 + 1]);
#pragma unroll
        for (int k = 0; k < 32; k++) {
            const int byte = block[4 + half * 16 + k / 16 * 8 + k % 8];
            out.code[k] = E2M1_DOUBLED[k % 16 < 8 ? byte & 15 : byte >> 4];
        }
        return;
    }
    const uint8_t* block = row + (size_t)index * BYTES;
    out.scale[0] = out.scale[1] = TYPE == MXFP4 ? e8m0_halved(block[0]) : half_at(block);
    if (TYPE == Q4_1 || TYPE == Q5_1) out.min = half_at(block + 2);
    constexpr int CODES = TYPE == MXFP4 ? 1 : TYPE == Q4_1 ? 4 : TYPE == Q5_0 ? 6 : TYPE == Q5_1 ? 8 : 2;
#pragma unroll
    for (int k = 0; k < 32; k++) {
        if (TYPE == Q8_0) {
            out.code[k] = (int8_t)block[CODES + k];
            continue;
        }
        const int nibble = block[CODES + k % 16] >> (k / 16 * 4) & 15;
        if (TYPE == Q4_0) out.code[k] = nibble - 8;
        if (TYPE == Q4_1) out.code[k] = nibble;
        if (TYPE == IQ4_NL) out.code[k] = IQ4_CODEBOOK[nibble];
        if (TYPE == MXFP4) out.code[k] = E2M1_DOUBLED[nibble];
        if (TYPE == Q5_0 || TYPE == Q5_1) {
            const int high = block[CODES - 4 + k / 8] >> (k % 8) & 1;
            out.code[k] = (nibble | high << 4) - (TYPE == Q5_0 ? 16 : 0);
        }
    }
}

__device__ __forceinline__ void decode_float_scales(ScaledWeights& out, uint32_t type, const uint8_t* row, int index) {
    switch (type) {
        case Q4_0: decode_float_scales<Q4_0>(out, row, index); break;
        case Q4_1: decode_float_scales<Q4_1>(out, row, index); break;
        case Q5_0: decode_float_scales<Q5_0>(out, row, index); break;
        case Q5_1: decode_float_scales<Q5_1>(out, row, index); break;
        case Q8_0: decode_float_scales<Q8_0>(out, row, index); break;
        case IQ4_NL: decode_float_scales<IQ4_NL>(out, row, index); break;
        case MXFP4: decode_float_scales<MXFP4>(out, row, index); break;
        default: decode_float_scales<NVFP4>(out, row, index); break;
    }
}

// Weight k of a row of floats, widened exactly.
__device__ __forceinline__ float float_weight(uint32_t type, const uint8_t* row, int k) {
    if (type == F32) return ((const float*)row)[k];
    const uint32_t bits = ((const uint16_t*)row)[k];
    return type == F16 ? __half2float(__ushort_as_half((unsigned short)bits)) : __uint_as_float(bits << 16);
}
