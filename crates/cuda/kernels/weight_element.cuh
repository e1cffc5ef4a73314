// One weight of a row as GGUF stores it, by rule 6a of docs/numerics.md: the twin of formats/dequantise.rs.
//
// A thread per element keeps every format to a few lines; embedding rows are too few for more to pay.
#pragma once
#include "softmax.cuh"

// GGUF's numbers of the weight types.
enum WeightType : uint32_t {
    F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q4_K = 12, Q5_K = 13, Q6_K = 14,
    IQ4_NL = 20, IQ4_XS = 23, BF16 = 30, MXFP4 = 39, NVFP4 = 40,
};

// The values of IQ4_NL and IQ4_XS codes.
__device__ __forceinline__ float iq4_value(uint32_t code) {
    constexpr int8_t VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    return float(VALUES[code]);
}

// Twice the values of E2M1 codes, so that they are integers.
__device__ __forceinline__ float e2m1_doubled(uint32_t code) {
    constexpr int8_t VALUES[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    return float(VALUES[code]);
}

// Rows need not be aligned: every load is of single bytes.
__device__ __forceinline__ uint32_t u16_at(const uint8_t* bytes) { return bytes[0] | uint32_t(bytes[1]) << 8; }
__device__ __forceinline__ uint32_t u32_at(const uint8_t* bytes) { return u16_at(bytes) | u16_at(bytes + 2) << 16; }
__device__ __forceinline__ float f16_at(const uint8_t* bytes) {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(u16_at(bytes))));
}

// Code k of 32 in 16 bytes: low nibbles first, then high nibbles.
__device__ __forceinline__ uint32_t nibble(const uint8_t* bytes, uint32_t k) {
    return bytes[k % 16] >> (k / 16 * 4) & 15;
}

// Code k of 32: four bytes of fifth bits, then 16 bytes of nibbles.
__device__ __forceinline__ uint32_t five_bits(const uint8_t* bytes, uint32_t k) {
    return nibble(bytes + 4, k) | (u32_at(bytes) >> k & 1) << 4;
}

// 2^(e - 128): an E8M0 scale, halved because the codes are doubled. The loader has refused 255.
__device__ __forceinline__ float e8m0_halved(uint32_t e) {
    return __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
}

// Half of a UE4M3 scale, halved because the codes are doubled. The loader has refused 0x7f and above.
__device__ __forceinline__ float ue4m3_halved(uint32_t e) {
    return e < 8 ? float(e) / 1024.0f : __uint_as_float(((e >> 3) + 119) << 23 | (e & 7) << 20);
}

// Weight k of 32 in a block with one float scale: RN(d * q), then RN(+ m) for the types with a min.
__device__ __forceinline__ float block32_element(uint32_t type, const uint8_t* block, uint32_t k) {
    switch (type) {
        case Q8_0: return f16_at(block) * float(int8_t(block[2 + k]));
        case Q4_0: return f16_at(block) * float(int(nibble(block + 2, k)) - 8);
        case Q4_1: return f16_at(block) * float(nibble(block + 4, k)) + f16_at(block + 2);
        case Q5_0: return f16_at(block) * float(int(five_bits(block + 2, k)) - 16);
        case Q5_1: return f16_at(block) * float(five_bits(block + 4, k)) + f16_at(block + 2);
        case IQ4_NL: return f16_at(block) * iq4_value(nibble(block + 2, k));
        default: return e8m0_halved(block[0]) * e2m1_doubled(nibble(block + 1, k));  // MXFP4
    }
}

// Weight k of 64 in an NVFP4 block: four UE4M3 scales, then four runs of 16 codes; byte j of a run holds codes j and j + 8.
__device__ __forceinline__ float nvfp4_element(const uint8_t* block, uint32_t k) {
    uint32_t run = k / 16, code = block[4 + run * 8 + k % 8] >> (k % 16 / 8 * 4) & 15;
    return ue4m3_halved(block[run]) * e2m1_doubled(code);
}

// Weight k of 256 in a Q4_K or Q5_K block: RN(RN(RN(d * sc) * q) - RN(dmin * m)).
__device__ __forceinline__ float q45_k_element(const uint8_t* block, uint32_t k, bool fifth_bit) {
    uint32_t j = k / 32;
    const uint8_t* packed = block + 4;
    uint32_t scale, min;
    if (j < 4) {
        scale = packed[j] & 63;
        min = packed[j + 4] & 63;
    } else {
        scale = (packed[j + 4] & 15) | packed[j - 4] >> 6 << 4;
        min = packed[j + 4] >> 4 | packed[j] >> 6 << 4;
    }
    const uint8_t* nibbles = block + (fifth_bit ? 48 : 16);
    uint32_t code = nibbles[k / 64 * 32 + k % 32] >> (k / 32 % 2 * 4) & 15;
    if (fifth_bit) code |= (block[16 + k % 32] >> j & 1) << 4;
    return (f16_at(block) * float(scale)) * float(code) - f16_at(block + 2) * float(min);
}

// Weight k of 256 in a Q6_K block: RN(RN(d * sc) * (q - 32)). The CPU also subtracts a zero min; x - 0 = x.
__device__ __forceinline__ float q6_k_element(const uint8_t* block, uint32_t k) {
    uint32_t half = k / 128, quarter = k / 32 % 4, at = k % 32;
    uint32_t low = block[half * 64 + quarter % 2 * 32 + at] >> (quarter / 2 * 4) & 15;
    uint32_t high = block[128 + half * 32 + at] >> (quarter * 2) & 3;
    float scale = f16_at(block + 208) * float(int8_t(block[192 + k / 16]));
    return scale * float(int(low | high << 4) - 32);
}

// Weight k of 256 in an IQ4_XS block: RN(RN(d * (ls - 32)) * codebook).
__device__ __forceinline__ float iq4_xs_element(const uint8_t* block, uint32_t k) {
    uint32_t j = k / 32;
    uint32_t low = block[4 + j / 2] >> (j % 2 * 4) & 15, high = u16_at(block + 2) >> (j * 2) & 3;
    float scale = f16_at(block) * float(int(low | high << 4) - 32);
    return scale * iq4_value(nibble(block + 8 + j * 16, k % 32));
}

// Weight k of `row`, a row of GGUF type `type`.
__device__ __forceinline__ float weight_element(uint32_t type, const uint8_t* row, uint64_t k) {
    switch (type) {
        case F32: return __uint_as_float(u32_at(row + k * 4));
        case F16: return f16_at(row + k * 2);
        case BF16: return __uint_as_float(u16_at(row + k * 2) << 16);
        case NVFP4: return nvfp4_element(row + k / 64 * 36, k % 64);
        case Q4_K: return q45_k_element(row + k / 256 * 144, k % 256, false);
        case Q5_K: return q45_k_element(row + k / 256 * 176, k % 256, true);
        case Q6_K: return q6_k_element(row + k / 256 * 210, k % 256);
        case IQ4_XS: return iq4_xs_element(row + k / 256 * 136, k % 256);
        case Q8_0: return block32_element(type, row + k / 32 * 34, k % 32);
        case Q4_0: return block32_element(type, row + k / 32 * 18, k % 32);
        case Q4_1: return block32_element(type, row + k / 32 * 20, k % 32);
        case Q5_0: return block32_element(type, row + k / 32 * 22, k % 32);
        case Q5_1: return block32_element(type, row + k / 32 * 24, k % 32);
        case IQ4_NL: return block32_element(type, row + k / 32 * 18, k % 32);
        default: return block32_element(MXFP4, row + k / 32 * 17, k % 32);
    }
}
