// Rule 2 of docs/numerics.md, one warp per group of 256 values, into every layout that a consumer may want.
#pragma once
#include <cuda_fp16.h>
#include "numerics.cuh"
#include "scaled_tiles.cuh"

// Threads of a kernel that gives a warp to each group.
constexpr int QUANTISE_THREADS = 256;
// Rows of a tile of the Hopper layouts.
constexpr int TILE_ROWS = 128;

// Where the forms of the rows go; a null pointer is a form that nobody wants. `blocks` is ceil(cols / 256), T = row / 128,
// r = row % 128. All codes of a short last group that have no value are zero.
struct ActivationForms {
    int8_t* codes256;    // [rows][blocks * 256]
    float* scales256;    // [rows][blocks]
    int16_t* sums256;    // [rows][blocks * 8]: sum of each 32 codes of codes256
    int8_t* codes32;     // [rows][blocks * 256]
    float* scales32;     // [rows][blocks * 8]
    int16_t* sums32;     // [rows][blocks * 8]: sum of each 32 codes of codes32
    float* floats;       // [rows][cols]
    uint8_t* half_tiles; // f16 [T][blocks][4][128][64], 16-byte units swizzled by r: operand B of wgmma f16
    uint8_t* byte_tiles; // i8 [T][blocks][2][128][128], swizzled alike: operand B of wgmma s8
    float* tile_scales;  // [T][blocks][128]: scales256 in the order of the tiles
    uint8_t* scaled_tiles; // [T][2 blocks] chunks of scaled_tiles.cuh: codes32, scales32 and sums32
};

// Eight consecutive codes of a row: values times `inverse`, rounded. The clamp of rule 2 never acts (numerics.md), and adding
// ROUND_TO_INTEGER rounds as rint does: three additions and permutations instead of conversions, which are four times as slow.
struct EightCodes {
    float shifted[8];  // code + ROUND_TO_INTEGER: the code's byte is the lowest one
    __device__ __forceinline__ EightCodes(const float (&x)[8], float inverse) {
#pragma unroll
        for (int i = 0; i < 8; i++) shifted[i] = __fadd_rn(__fmul_rn(x[i], inverse), ROUND_TO_INTEGER);
    }
    __device__ __forceinline__ uint2 packed() const {
        uint32_t pairs[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            pairs[i] = __byte_perm(__float_as_uint(shifted[2 * i]), __float_as_uint(shifted[2 * i + 1]), 0x0040);
        }
        return make_uint2(__byte_perm(pairs[0], pairs[1], 0x5410), __byte_perm(pairs[2], pairs[3], 0x5410));
    }
    // As f16, exactly.
    __device__ __forceinline__ uint4 halves() const {
        uint32_t pairs[4];
#pragma unroll
        for (int i = 0; i < 4; i++) pairs[i] = pair_of_halves(shifted[2 * i], shifted[2 * i + 1]);
        return make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    }
    // Two codes as f16.
    __device__ __forceinline__ static uint32_t pair_of_halves(float first, float second) {
        const __half2 pair =
            __floats2half2_rn(__fsub_rn(first, ROUND_TO_INTEGER), __fsub_rn(second, ROUND_TO_INTEGER));
        return *(const uint32_t*)&pair;
    }
    // Sum of the 32 codes of this lane and its three neighbours.
    __device__ __forceinline__ int sum32() const {
        const uint2 codes = packed();
        int sum = __dp4a((int)codes.x, 0x01010101, __dp4a((int)codes.y, 0x01010101, 0));
        sum += __shfl_xor_sync(ALL_LANES, sum, 1);
        return sum + __shfl_xor_sync(ALL_LANES, sum, 2);
    }
};

// Bits of |x|: they are in the order of the magnitudes, those of infinities and NaNs from INFINITE on.
__device__ __forceinline__ uint32_t magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }
constexpr uint32_t INFINITE = 0x7f800000u;

// The largest magnitude among a lane's eight values, and among the 256 of its group.
struct Largest {
    uint32_t of_lane = 0, of_group = 0;
    __device__ __forceinline__ Largest(const float (&x)[8]) {
#pragma unroll
        for (int i = 0; i < 8; i++) of_lane = max(of_lane, magnitude(x[i]));
        of_group = __reduce_max_sync(ALL_LANES, of_lane);
    }
};

__device__ __forceinline__ float inverse_of(float largest) {
    return largest < SMALLEST_MAXIMUM ? 0.0f : __fdiv_rn(LARGEST_CODE, largest);
}
__device__ __forceinline__ float scale_of(float largest) {
    return largest < SMALLEST_MAXIMUM ? 0.0f : __fdiv_rn(largest, LARGEST_CODE);
}

// Stores group `block` of row `row` in the 256-group forms. Lane l holds values 8 l ... 8 l + 7 of the group.
__device__ __forceinline__ void store_group256(const ActivationForms& out, const float (&x)[8], float largest, int row,
                                               int block, int blocks, int lane) {
    EightCodes codes(x, inverse_of(largest));
    const size_t group = (size_t)row * blocks + block;
    const size_t tile_group = (size_t)(row / TILE_ROWS) * blocks + block;
    const int r = row % TILE_ROWS;
    if (out.codes256) {
        const int sum = codes.sum32();
        *(uint2*)(out.codes256 + group * 256 + lane * 8) = codes.packed();
        if (lane % 4 == 0) out.sums256[group * 8 + lane / 4] = (int16_t)sum;
        if (lane == 0) out.scales256[group] = scale_of(largest);
    }
    if (out.tile_scales && lane == 0) out.tile_scales[tile_group * TILE_ROWS + r] = scale_of(largest);
    if (out.half_tiles) {
        const int chunk = lane / 8, unit = lane % 8;
        *(uint4*)(out.half_tiles + (tile_group * 4 + chunk) * 16384 + r * 128 + ((unit ^ (r & 7)) * 16)) =
            codes.halves();
    }
    if (out.byte_tiles) {
        const int chunk = lane / 16, at = lane % 16 * 8;
        *(uint2*)(out.byte_tiles + (tile_group * 2 + chunk) * 16384 + r * 128 + (((at / 16) ^ (r & 7)) * 16) + at % 16) =
            codes.packed();
    }
}

// Stores the 32-groups of group `block` of row `row`: four lanes hold one of them.
__device__ __forceinline__ void store_groups32(const ActivationForms& out, const float (&x)[8], float largest8, int row,
                                               int block, int blocks, int cols, int lane) {
    float largest = fmaxf(largest8, __shfl_xor_sync(ALL_LANES, largest8, 1));
    largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 2));
    EightCodes codes(x, inverse_of(largest));
    const size_t group = (size_t)row * blocks + block;
    int sum = codes.sum32();
    if (out.codes32) {
        *(uint2*)(out.codes32 + group * 256 + lane * 8) = codes.packed();
        if (lane % 4 == 0) {
            out.scales32[group * 8 + lane / 4] = scale_of(largest);
            out.sums32[group * 8 + lane / 4] = (int16_t)sum;
        }
    }
    if (out.scaled_tiles) {
        const int r = row % SCALED_TOKENS, chunk = lane / 16, of_chunk = lane % 16;
        const size_t at = ((size_t)(row / SCALED_TOKENS) * blocks + block) * 2 + chunk;
        uint8_t* tile = out.scaled_tiles + at * SCALED_X_BYTES;
        *(uint2*)(tile + scaled_code_at(r, of_chunk * 8)) = codes.packed();
        if (lane % 4 == 0) {
            float* scales = (float*)(tile + SCALED_CODES_BYTES) + of_chunk / 4 * SCALED_TOKENS + scaled_token_at(r);
            // fma(-0, +0, acc) is acc, where fma(+0, +0, -0) would be +0.
            scales[0] = block * 256 + lane * 8 < cols ? scale_of(largest) : -0.0f;
            scales[SCALED_GROUPS * SCALED_TOKENS] = (float)sum;
        }
    }
}

// Stores group `block` of row `row` in every wanted form. Lane l holds values 8 l ... 8 l + 7 of the group, zeros past the
// last column.
__device__ __forceinline__ void store_group(const ActivationForms& out, const float (&x)[8], const Largest& largest, int row,
                                            int block, int blocks, int cols, int lane) {
    if (out.floats) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int k = block * 256 + lane * 8 + i;
            if (k < cols) out.floats[(size_t)row * cols + k] = x[i];
        }
    }
    if (out.codes32 || out.scaled_tiles) {
        store_groups32(out, x, __uint_as_float(largest.of_lane), row, block, blocks, cols, lane);
    }
    if (out.codes256 || out.tile_scales) {
        store_group256(out, x, __uint_as_float(largest.of_group), row, block, blocks, lane);
    }
}

// Stores a group that one warp computed by itself. A group with a NaN or an infinity becomes zeros, and status[row] is
// lowered to `place`: the row has then failed, and nobody reads the rest of it.
__device__ __forceinline__ void store_own_group(const ActivationForms& out, float (&x)[8], int row, int block, int blocks,
                                                int cols, int lane, uint32_t* status, uint32_t place) {
    Largest largest(x);
    if (largest.of_group >= INFINITE) {
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] = 0.0f;
        largest.of_lane = largest.of_group = 0;
        if (lane == 0) atomicMin(&status[row], place);
    }
    store_group(out, x, largest, row, block, blocks, cols, lane);
}

// The eight values of a lane of group `block`: value(k), zeros past the last column.
template <class Value>
__device__ __forceinline__ void eight_values(float (&x)[8], int block, int cols, int lane, Value value) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int k = block * 256 + lane * 8 + i;
        x[i] = k < cols ? value(k) : 0.0f;
    }
}
