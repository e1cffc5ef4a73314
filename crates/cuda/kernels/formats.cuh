// Weight types as GGUF stores them: rule 1 of docs/numerics.md for 32 weights at a time. The twin of
// crates/kernels/src/formats and crates/kernels/src/matrix/scan.rs.
//
// Most block sizes are multiples of 2 and not of 4, so words are put together from 16-bit loads. Rows start at multiples of
// the block size, tensors at multiples of 256 bytes.
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

__device__ __forceinline__ uint32_t half_word_at(const uint8_t* bytes) { return *(const uint16_t*)bytes; }
__device__ __forceinline__ float half_at(const uint8_t* bytes) {
    return __half2float(__ushort_as_half(*(const unsigned short*)bytes));
}
// Four bytes at a multiple of 2.
__device__ __forceinline__ uint32_t word_at(const uint8_t* bytes) {
    return half_word_at(bytes) | half_word_at(bytes + 2) << 16;
}
// Sixteen bytes at a multiple of 16.
__device__ __forceinline__ void words_at(uint32_t* words, const uint8_t* bytes) {
    const uint4 four = *(const uint4*)bytes;
    words[0] = four.x, words[1] = four.y, words[2] = four.z, words[3] = four.w;
}
__device__ __forceinline__ int byte_of(uint32_t word, int at) { return (int)(word >> (8 * at) & 255); }

// The 6-bit sub-scale and sub-min j of the 12 packed bytes of Q4_K and Q5_K, as three words.
__device__ __forceinline__ void six_bit_pair(const uint32_t* words, int j, int& scale, int& min) {
    const int at = j % 4 * 8;
    const uint32_t first = words[0] >> at, second = words[1] >> at, third = words[2] >> at;
    if (j < 4) {
        scale = (int)(first & 63);
        min = (int)(second & 63);
    } else {
        scale = (int)((third & 15) | (first >> 2 & 48));
        min = (int)((third >> 4 & 15) | (second >> 2 & 48));
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
        // Their blocks are multiples of 16 bytes.
        uint32_t header[4], nibbles[8], high[8];
        words_at(header, block);
        const uint8_t* codes = block + (TYPE == Q4_K ? 16 : 48) + j / 2 * 32;
        words_at(nibbles, codes);
        words_at(nibbles + 4, codes + 16);
        if (TYPE == Q5_K) {
            words_at(high, block + 16);
            words_at(high + 4, block + 32);
        }
        const float d = __half2float(__ushort_as_half((unsigned short)header[0]));
        const float dmin = __half2float(__ushort_as_half((unsigned short)(header[0] >> 16)));
        int sub_scale, sub_min, offset = 0;
        six_bit_pair(header + 1, j, sub_scale, sub_min);
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
            int code = byte_of(nibbles[k / 4], k % 4) >> (j % 2 * 4) & 15;
            if (TYPE == Q5_K) code |= (byte_of(high[k / 4], k % 4) >> j & 1) << 4;
            out.weight[k] = sub_scale * code - offset;
        }
    } else if (TYPE == Q6_K) {
        const int half = j / 4, quarter = j % 4;
        const uint8_t* low = block + half * 64 + quarter % 2 * 32;
        const uint8_t* high = block + 128 + half * 32;
        const uint32_t scales = half_word_at(block + 192 + 2 * j);
        out.scale = half_at(block + 208);
#pragma unroll
        for (int word = 0; word < 8; word++) {
            const uint32_t nibbles = word_at(low + 4 * word) >> (quarter / 2 * 4), pairs = word_at(high + 4 * word) >> (quarter * 2);
            const int scale = (int)(int8_t)byte_of(scales, word / 4);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int code = (byte_of(nibbles, k) & 15) | (byte_of(pairs, k) & 3) << 4;
                out.weight[4 * word + k] = scale * (code - 32);
            }
        }
    } else {
        const int low = block[4 + j / 2] >> (j % 2 * 4) & 15, high = (int)half_word_at(block + 2) >> (2 * j) & 3;
        const int sub_scale = (low | high << 4) - 32;
        out.scale = half_at(block);
#pragma unroll
        for (int word = 0; word < 4; word++) {
            const uint32_t codes = word_at(block + 8 + 16 * j + 4 * word);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                out.weight[4 * word + k] = sub_scale * IQ4_CODEBOOK[byte_of(codes, k) & 15];
                out.weight[16 + 4 * word + k] = sub_scale * IQ4_CODEBOOK[byte_of(codes, k) >> 4];
            }
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
    uint32_t codes[8];  // signed bytes
    float scale[2];
    float min;
};

// Four bytes of nibbles through a table of 16.
__device__ __forceinline__ uint32_t look_up(const int8_t* table, uint32_t nibbles) {
    uint32_t values = 0;
#pragma unroll
    for (int k = 0; k < 4; k++) values |= (uint32_t)(uint8_t)table[nibbles >> (8 * k) & 15] << (8 * k);
    return values;
}

// Bits 0 to 3 of `bits` to bit 4 of four bytes.
__device__ __forceinline__ uint32_t fifth_bits(uint32_t bits) {
    return (bits & 1) << 4 | (bits & 2) << 11 | (bits & 4) << 18 | (bits & 8) << 25;
}

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
        // Runs of 8 bytes: byte j holds codes j and j + 8 of 16.
#pragma unroll
        for (int word = 0; word < 4; word++) {
            const uint32_t nibbles = word_at(block + 4 + half * 16 + 4 * word);
            out.codes[word / 2 * 4 + word % 2] = look_up(E2M1_DOUBLED, nibbles & 0x0f0f0f0f);
            out.codes[word / 2 * 4 + word % 2 + 2] = look_up(E2M1_DOUBLED, nibbles >> 4 & 0x0f0f0f0f);
        }
        return;
    }
    const uint8_t* block = row + (size_t)index * BYTES;
    out.scale[0] = out.scale[1] = TYPE == MXFP4 ? e8m0_halved(block[0]) : half_at(block);
    if (TYPE == Q4_1 || TYPE == Q5_1) out.min = half_at(block + 2);
    constexpr int CODES = TYPE == MXFP4 ? 1 : TYPE == Q4_1 ? 4 : TYPE == Q5_0 ? 6 : TYPE == Q5_1 ? 8 : 2;
    if (TYPE == Q8_0) {
#pragma unroll
        for (int word = 0; word < 8; word++) out.codes[word] = word_at(block + CODES + 4 * word);
        return;
    }
    uint32_t high = 0;
    if (TYPE == Q5_0 || TYPE == Q5_1) high = word_at(block + CODES - 4);
#pragma unroll
    for (int word = 0; word < 4; word++) {
        const uint8_t* at = block + CODES + 4 * word;
        // A block of MXFP4 is an odd number of bytes.
        const uint32_t nibbles = TYPE == MXFP4 ? at[0] | at[1] << 8 | at[2] << 16 | (uint32_t)at[3] << 24 : word_at(at);
        uint32_t& first = out.codes[word];
        uint32_t& second = out.codes[word + 4];
        first = nibbles & 0x0f0f0f0f;
        second = nibbles >> 4 & 0x0f0f0f0f;
        if (TYPE == Q5_0 || TYPE == Q5_1) {
            first |= fifth_bits(high >> (4 * word));
            second |= fifth_bits(high >> (16 + 4 * word));
        }
        if (TYPE == Q4_0) first = __vsub4(first, 0x08080808), second = __vsub4(second, 0x08080808);
        if (TYPE == Q5_0) first = __vsub4(first, 0x10101010), second = __vsub4(second, 0x10101010);
        if (TYPE == IQ4_NL) first = look_up(IQ4_CODEBOOK, first), second = look_up(IQ4_CODEBOOK, second);
        if (TYPE == MXFP4) first = look_up(E2M1_DOUBLED, first), second = look_up(E2M1_DOUBLED, second);
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
