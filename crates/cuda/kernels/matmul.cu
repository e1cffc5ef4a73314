// Products of activation rows with weight matrices as the file stores them: every weight type, any shape, any chip from
// sm_80 on (rules 3, 4 and 4b of docs/numerics.md). Faster kernels for common cases stand beside these; the bits are the same.
//
// A thread block computes 64 output rows times 8 or 64 tokens. For each 256 columns it decodes the weights into shared
// memory as 8-bit planes and multiplies them by tensor cores in int32, which is exact in any order; the float chain of an
// output stays in one thread's register, ascending. Limited by decoding: about 10 instructions per weight and block of
// tokens, so 64 tokens share what 8 tokens pay for.
#include "formats.cuh"
#include "launch.cuh"
#include "matmul.cuh"
#include "mma.cuh"

constexpr int TILE_OUTPUTS = 64;
// Bytes from one row of 256 codes in shared memory to the next: 16 more, so that the rows of a fragment lie in different banks.
constexpr int PITCH = 256 + 16;

extern __shared__ __align__(16) uint8_t planes[];

template <int TOKENS>
struct Warps {
    static constexpr int ACROSS = TOKENS == 8 ? 1 : 2;       // warps side by side over the tokens
    static constexpr int THREADS = 4 * ACROSS * 32;          // four warps over the 64 outputs
    static constexpr int TILES = TOKENS / ACROSS / 8;        // tiles of 8 tokens per warp
};

// Copies 256 codes of each token of the tile to shared memory, zeros past the last token.
template <int TOKENS>
__device__ __forceinline__ void stage_codes(uint8_t* to, const int8_t* codes, int first, int tokens, int blocks, int block) {
    for (int i = threadIdx.x; i < TOKENS * 16; i += Warps<TOKENS>::THREADS) {
        const int token = i / 16, part = i % 16;
        uint4 value = make_uint4(0, 0, 0, 0);
        if (first + token < tokens) {
            value = *(const uint4*)(codes + ((size_t)(first + token) * blocks + block) * 256 + part * 16);
        }
        *(uint4*)(to + token * PITCH + part * 16) = value;
    }
}

// Fragment A of 32 columns from `column` on, rows g and g + 8 of a plane.
__device__ __forceinline__ void load_a(uint32_t (&a)[4], const uint8_t* plane, int row, int column, int lane) {
    const uint8_t* at = plane + (row + lane / 4) * PITCH + column + lane % 4 * 4;
    a[0] = *(const uint32_t*)at;
    a[1] = *(const uint32_t*)(at + 8 * PITCH);
    a[2] = *(const uint32_t*)(at + 16);
    a[3] = *(const uint32_t*)(at + 8 * PITCH + 16);
}

// Fragment B of 32 columns from `column` on, 8 tokens from `token` on.
__device__ __forceinline__ void load_b(uint32_t (&b)[2], const uint8_t* codes, int token, int column, int lane) {
    const uint8_t* at = codes + (token + lane / 4) * PITCH + column + lane % 4 * 4;
    b[0] = *(const uint32_t*)at;
    b[1] = *(const uint32_t*)(at + 16);
}

// Rule 3 and class GEN. w' = 256 hi + lo with hi signed and lo unsigned: I = 256 sum(hi q) + sum(lo q), each part below
// 2^24 (256 * 255 * 127) and I below 2^30 by rule 1.
template <int TOKENS>
__device__ __forceinline__ void matmul_integer(const MatmulItems& items, const int8_t* codes, const float* scales,
                                               const int16_t* sums, int tokens, int blocks) {
    using W = Warps<TOKENS>;
    uint8_t *low = planes, *high = low + TILE_OUTPUTS * PITCH, *x = high + TILE_OUTPUTS * PITCH;
    float* d = (float*)(x + TOKENS * PITCH);
    float* dmin = d + TILE_OUTPUTS;
    float* dy = dmin + TILE_OUTPUTS;
    int16_t* x_sums = (int16_t*)(dy + TOKENS);      // [TOKENS][8]
    uint8_t* mins = (uint8_t*)(x_sums + TOKENS * 8); // [TILE_OUTPUTS][8]
    const MatmulItem& item = items.of(blockIdx.x);
    const int first_output = (blockIdx.x - (int)item.first_tile) * TILE_OUTPUTS, first_token = blockIdx.y * TOKENS;
    const uint32_t type = item.type(), form = item.form();
    const int block_bytes = integer_block_bytes(type), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int row = warp % 4 * 16, token = warp / 4 * (W::TILES * 8), g = lane / 4, t = lane % 4;
    float acc[W::TILES][4] = {}, acc_min[W::TILES][4] = {};

    for (int block = 0; block < blocks; block++) {
        __syncthreads();
        for (int i = threadIdx.x; i < TILE_OUTPUTS * 8; i += W::THREADS) {
            const int r = i / 8, j = i % 8, output = first_output + r;
            IntegerWeights weights;
            if (output < (int)item.outputs) {
                const uint8_t* raw = item.raw + ((size_t)output * blocks + block) * block_bytes;
                decode_integer_scales(weights, type, raw, j, form);
            } else {
                weights = {};
            }
#pragma unroll
            for (int word = 0; word < 8; word++) {
                uint32_t lo = 0, hi = 0;
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    const int w = weights.weight[word * 4 + k];
                    lo |= (uint32_t)(w & 255) << (8 * k);
                    hi |= (uint32_t)(w >> 8 & 255) << (8 * k);
                }
                *(uint32_t*)(low + r * PITCH + j * 32 + word * 4) = lo;
                *(uint32_t*)(high + r * PITCH + j * 32 + word * 4) = hi;
            }
            mins[r * 8 + j] = (uint8_t)weights.min;
            if (j == 0) {
                d[r] = weights.scale;
                dmin[r] = weights.min_scale;
            }
        }
        stage_codes<TOKENS>(x, codes, first_token, tokens, blocks, block);
        for (int i = threadIdx.x; i < TOKENS; i += W::THREADS) {
            dy[i] = first_token + i < tokens ? scales[(size_t)(first_token + i) * blocks + block] : 0.0f;
        }
        if (form == GENERAL) {
            for (int i = threadIdx.x; i < TOKENS * 8; i += W::THREADS) {
                const int at = first_token + i / 8;
                x_sums[i] = at < tokens ? sums[((size_t)at * blocks + block) * 8 + i % 8] : 0;
            }
        }
        __syncthreads();

        int lo[W::TILES][4] = {}, hi[W::TILES][4] = {};
#pragma unroll
        for (int column = 0; column < 256; column += 32) {
            uint32_t a_low[4], a_high[4];
            load_a(a_low, low, row, column, lane);
            load_a(a_high, high, row, column, lane);
#pragma unroll
            for (int n = 0; n < W::TILES; n++) {
                uint32_t b[2];
                load_b(b, x, token + n * 8, column, lane);
                mma_u8(lo[n], a_low, b);
                mma_s8(hi[n], a_high, b);
            }
        }
#pragma unroll
        for (int n = 0; n < W::TILES; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int r = row + g + i / 2 * 8, column = token + n * 8 + 2 * t + i % 2;
                const float value = (float)(256 * hi[n][i] + lo[n][i]);
                acc[n][i] = __fmaf_rn(__fmul_rn(d[r], dy[column]), value, acc[n][i]);
                if (form == GENERAL) {
                    int sum = 0;
                    for (int j = 0; j < 8; j++) sum += (int)mins[r * 8 + j] * x_sums[column * 8 + j];
                    acc_min[n][i] = __fmaf_rn(__fmul_rn(dmin[r], dy[column]), (float)sum, acc_min[n][i]);
                }
            }
        }
    }
#pragma unroll
    for (int n = 0; n < W::TILES; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int output = first_output + row + g + i / 2 * 8, at = first_token + token + n * 8 + 2 * t + i % 2;
            if (output >= (int)item.outputs || at >= tokens) continue;
            item.finish(at, output, form == GENERAL ? __fsub_rn(acc[n][i], acc_min[n][i]) : acc[n][i]);
        }
    }
}

// Rule 4. P of 32 (NVFP4: 16) codes is one matrix instruction from zero.
template <int TOKENS>
__device__ __forceinline__ void matmul_scaled(const MatmulItems& items, const int8_t* codes, const float* scales,
                                              const int16_t* sums, int tokens, int blocks, int cols) {
    using W = Warps<TOKENS>;
    uint8_t *w = planes, *x = w + TILE_OUTPUTS * PITCH;
    float* dw = (float*)(x + TOKENS * PITCH);  // [16][TILE_OUTPUTS]
    float* mins = dw + TILE_OUTPUTS * 16;      // [8][TILE_OUTPUTS]
    float* dy = mins + TILE_OUTPUTS * 8;       // [8][TOKENS]
    float* x_sums = dy + TOKENS * 8;           // [8][TOKENS]
    const MatmulItem& item = items.of(blockIdx.x);
    const int first_output = (blockIdx.x - (int)item.first_tile) * TILE_OUTPUTS, first_token = blockIdx.y * TOKENS;
    const uint32_t type = item.type();
    const bool has_mins = type == Q4_1 || type == Q5_1, in_halves = type == NVFP4;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int row = warp % 4 * 16, token = warp / 4 * (W::TILES * 8), g = lane / 4, t = lane % 4;
    const size_t row_bytes = item.row_bytes;
    float acc[W::TILES][4] = {};

    for (int block = 0; block < blocks; block++) {
        const int groups = min(8, cols / 32 - block * 8);
        __syncthreads();
        for (int i = threadIdx.x; i < TILE_OUTPUTS * 8; i += W::THREADS) {
            const int r = i / 8, j = i % 8, output = first_output + r;
            ScaledWeights weights;
            if (output < (int)item.outputs && j < groups) {
                decode_float_scales(weights, type, item.raw + output * row_bytes, block * 8 + j);
            } else {
                weights = {};
            }
#pragma unroll
            for (int word = 0; word < 8; word++) *(uint32_t*)(w + r * PITCH + j * 32 + word * 4) = weights.codes[word];
            dw[(2 * j) * TILE_OUTPUTS + r] = weights.scale[0];
            dw[(2 * j + 1) * TILE_OUTPUTS + r] = weights.scale[1];
            mins[j * TILE_OUTPUTS + r] = weights.min;
        }
        stage_codes<TOKENS>(x, codes, first_token, tokens, blocks, block);
        for (int i = threadIdx.x; i < TOKENS * 8; i += W::THREADS) {
            const int at = first_token + i / 8;
            const size_t group = ((size_t)at * blocks + block) * 8 + i % 8;
            dy[i % 8 * TOKENS + i / 8] = at < tokens ? scales[group] : 0.0f;
            x_sums[i % 8 * TOKENS + i / 8] = at < tokens ? (float)sums[group] : 0.0f;
        }
        __syncthreads();

        for (int j = 0; j < groups; j++) {
            uint32_t a[4];
            load_a(a, w, row, j * 32, lane);
            const float* dw_j = dw + 2 * j * TILE_OUTPUTS + row + g;
            const float d[2] = {dw_j[0], dw_j[8]}, d_second[2] = {dw_j[TILE_OUTPUTS], dw_j[TILE_OUTPUTS + 8]};
            const float m[2] = {mins[j * TILE_OUTPUTS + row + g], mins[j * TILE_OUTPUTS + row + g + 8]};
#pragma unroll
            for (int n = 0; n < W::TILES; n++) {
                uint32_t b[2];
                load_b(b, x, token + n * 8, j * 32, lane);
                const float2 y = *(const float2*)(dy + j * TOKENS + token + n * 8 + 2 * t);
                const float2 s = *(const float2*)(x_sums + j * TOKENS + token + n * 8 + 2 * t);
                int first[4] = {}, second[4] = {};
                if (in_halves) {
                    mma_s8_k16(first, a[0], a[1], b[0]);
                    mma_s8_k16(second, a[2], a[3], b[1]);
                } else {
                    mma_s8(first, a, b);
                }
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float c = __fmaf_rn(d[i / 2], (float)first[i], 0.0f);
                    if (in_halves) c = __fmaf_rn(d_second[i / 2], (float)second[i], c);
                    if (has_mins) c = __fmaf_rn(m[i / 2], i % 2 ? s.y : s.x, c);
                    acc[n][i] = __fmaf_rn(i % 2 ? y.y : y.x, c, acc[n][i]);
                }
            }
        }
    }
#pragma unroll
    for (int n = 0; n < W::TILES; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int output = first_output + row + g + i / 2 * 8, at = first_token + token + n * 8 + 2 * t + i % 2;
            if (output < (int)item.outputs && at < tokens) item.finish(at, output, acc[n][i]);
        }
    }
}

// Rule 4b: a warp holds the 32 lanes of 4 outputs by TOKENS tokens. Two FMA pipes' worth of loads per FMA: limited by L1.
template <int TOKENS>
__device__ __forceinline__ void matmul_float(const MatmulItems& items, const float* x, int tokens, int cols) {
    constexpr int OUTPUTS = 4;
    const MatmulItem& item = items.of(blockIdx.x);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int first_output = (blockIdx.x - (int)item.first_tile) * TILE_OUTPUTS + warp * OUTPUTS * 2;
    const int first_token = blockIdx.y * TOKENS;
    for (int half = 0; half < 2; half++) {
        const int base = first_output + half * OUTPUTS;
        float lanes[OUTPUTS][TOKENS] = {};
        for (int k = lane; k < cols; k += 32) {
            float w[OUTPUTS];
#pragma unroll
            for (int i = 0; i < OUTPUTS; i++) {
                const int output = min(base + i, (int)item.outputs - 1);
                w[i] = float_weight(item.type(), item.raw + output * item.row_bytes, k);
            }
#pragma unroll
            for (int n = 0; n < TOKENS; n++) {
                const float value = x[(size_t)min(first_token + n, tokens - 1) * cols + k];
#pragma unroll
                for (int i = 0; i < OUTPUTS; i++) lanes[i][n] = __fmaf_rn(w[i], value, lanes[i][n]);
            }
        }
#pragma unroll
        for (int i = 0; i < OUTPUTS; i++) {
#pragma unroll
            for (int n = 0; n < TOKENS; n++) {
                float sum = lanes[i][n];
#pragma unroll
                for (int step = 16; step; step >>= 1) sum = __fadd_rn(sum, __shfl_xor_sync(ALL_LANES, sum, step));
                const bool mine = lane == (i * TOKENS + n) % 32;
                if (mine && base + i < (int)item.outputs && first_token + n < tokens) {
                    item.finish(first_token + n, base + i, sum);
                }
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(Warps<8>::THREADS)
    matmul_integer_8(const __grid_constant__ MatmulItems items, const int8_t* codes, const float* scales,
                     const int16_t* sums, uint32_t tokens, uint32_t blocks) {
    wait_for_previous();
    matmul_integer<8>(items, codes, scales, sums, (int)tokens, (int)blocks);
}

extern "C" __global__ void __launch_bounds__(Warps<64>::THREADS)
    matmul_integer_64(const __grid_constant__ MatmulItems items, const int8_t* codes, const float* scales,
                      const int16_t* sums, uint32_t tokens, uint32_t blocks) {
    wait_for_previous();
    matmul_integer<64>(items, codes, scales, sums, (int)tokens, (int)blocks);
}

extern "C" __global__ void __launch_bounds__(Warps<8>::THREADS)
    matmul_scaled_8(const __grid_constant__ MatmulItems items, const int8_t* codes, const float* scales,
                    const int16_t* sums, uint32_t tokens, uint32_t blocks, uint32_t cols) {
    wait_for_previous();
    matmul_scaled<8>(items, codes, scales, sums, (int)tokens, (int)blocks, (int)cols);
}

extern "C" __global__ void __launch_bounds__(Warps<64>::THREADS)
    matmul_scaled_64(const __grid_constant__ MatmulItems items, const int8_t* codes, const float* scales,
                     const int16_t* sums, uint32_t tokens, uint32_t blocks, uint32_t cols) {
    wait_for_previous();
    matmul_scaled<64>(items, codes, scales, sums, (int)tokens, (int)blocks, (int)cols);
}

extern "C" __global__ void __launch_bounds__(256)
    matmul_float_1(const __grid_constant__ MatmulItems items, const float* x, uint32_t tokens, uint32_t cols) {
    wait_for_previous();
    matmul_float<1>(items, x, (int)tokens, (int)cols);
}

extern "C" __global__ void __launch_bounds__(256)
    matmul_float_8(const __grid_constant__ MatmulItems items, const float* x, uint32_t tokens, uint32_t cols) {
    wait_for_previous();
    matmul_float<8>(items, x, (int)tokens, (int)cols);
}
