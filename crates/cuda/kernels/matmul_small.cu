// Products with 2 to 32 activation rows on Hopper, over the tiles of the kernels for many rows: rule 3 of docs/numerics.md,
// exact for the same reasons (matmul_half.cu, matmul_planes.cu).
//
// One warpgroup multiplies 64 outputs, one warp copies; several thread blocks share a processor. Memory-bound: 164 (half
// tiles) or 516 (planes) bytes per 256 weights, read once for all rows; 4.55 TB/s is the ceiling: 38 us for the 173 MB of
// gate and up in half tiles. Weights are under way before the kernel waits for the one before it.
#include "launch.cuh"
#include "matmul.cuh"
#include "numerics.cuh"
#include "prepared.cuh"
#include "stream_k.cuh"

constexpr int OUTPUTS = 64;    // of a tile
constexpr int WORKERS = 128;   // threads that multiply; one more warp copies
[[maybe_unused]] constexpr int TILE_ROWS = 128; // of the activations' tiles

extern __shared__ __align__(1024) uint8_t stages[];

constexpr int rounded_up(int value, int unit) { return (value + unit - 1) / unit * unit; }

// A stage: activations, weights of 64 outputs by 256 columns, D, the scales of the activations.
template <int ROWS>
struct HalfStage {
    static constexpr int X_CHUNK = ROWS * 128, X_CHUNKS = 4;  // f16, 64 columns each
    static constexpr int WEIGHTS_AT = X_CHUNK * X_CHUNKS;
    static constexpr int FACTORS_AT = WEIGHTS_AT + OUTPUTS * 128;
    static constexpr int SCALES_AT = FACTORS_AT + OUTPUTS * 32;
    static constexpr int DY_AT = SCALES_AT + OUTPUTS * 4;
    static constexpr int USED = DY_AT + ROWS * 4;
    static constexpr int BYTES = rounded_up(USED, 1024);
};
template <int ROWS>
struct PlaneStage {
    static constexpr int X_CHUNK = ROWS * 128, X_CHUNKS = 2;  // bytes, 128 columns each
    static constexpr int WEIGHTS_AT = X_CHUNK * X_CHUNKS;     // [low, high][2][64 outputs][128 columns]
    static constexpr int SCALES_AT = WEIGHTS_AT + 2 * OUTPUTS * 256;
    static constexpr int DY_AT = SCALES_AT + OUTPUTS * 4;
    static constexpr int USED = DY_AT + ROWS * 4;
    static constexpr int BYTES = rounded_up(USED, 1024);
};

template <int ROWS>
struct HalfProduct;
template <int ROWS>
struct PlaneProduct;

#if HOPPER
struct Barriers {
    uint32_t base;
    __device__ __forceinline__ uint32_t full(int stage) const { return base + 8 * stage; }
    __device__ __forceinline__ uint32_t free(int stage) const { return base + 64 + 8 * stage; }
};

// Copies 64 outputs by one block out of a half tile of 192 outputs.
template <int ROWS>
__device__ __forceinline__ void copy_weights(HalfStage<ROWS>, const uint8_t* tiles, int tile, int block, int blocks,
                                             uint32_t to, uint32_t full) {
    using S = HalfStage<ROWS>;
    constexpr int PARTS = HALF_OUTPUTS / OUTPUTS;
    const uint8_t* from = tiles + ((size_t)(tile / PARTS) * blocks + block) * HALF_TILE_BYTES;
    const int part = tile % PARTS;
    bulk_copy(to + S::WEIGHTS_AT, from + part * OUTPUTS * 128, OUTPUTS * 128, full);
    bulk_copy(to + S::FACTORS_AT, from + HALF_FACTORS_AT + part * OUTPUTS * 32, OUTPUTS * 32, full);
    bulk_copy(to + S::SCALES_AT, from + HALF_SCALES_AT + part * OUTPUTS * 4, OUTPUTS * 4, full);
}

// Copies 64 outputs by one block out of a plane tile of 128 outputs.
template <int ROWS>
__device__ __forceinline__ void copy_weights(PlaneStage<ROWS>, const uint8_t* tiles, int tile, int block, int blocks,
                                             uint32_t to, uint32_t full) {
    using S = PlaneStage<ROWS>;
    constexpr int PARTS = PLANE_OUTPUTS / OUTPUTS;
    const uint8_t* from = tiles + ((size_t)(tile / PARTS) * blocks + block) * PLANE_TILE_BYTES;
    const int part = tile % PARTS;
#pragma unroll
    for (int chunk = 0; chunk < 4; chunk++) {
        bulk_copy(to + S::WEIGHTS_AT + chunk * OUTPUTS * 128, from + chunk * PLANE_BYTES / 2 + part * OUTPUTS * 128,
                  OUTPUTS * 128, full);
    }
    bulk_copy(to + S::SCALES_AT, from + PLANE_SCALES_AT + part * OUTPUTS * 4, OUTPUTS * 4, full);
}

template <class S, int STAGES>
__device__ __forceinline__ void copy_operands(const MatmulItems& items, const uint8_t* x_tiles, const float* x_scales,
                                              const Share& share, int rows_of_stage, const Barriers& barriers) {
    const uint32_t base = shared_address(stages);
    bool waited = false;
    int step = 0;
    for (int index = 0; index < share.parts; index++) {
        int tile, from, to;
        share.part(index, tile, from, to);
        const MatmulItem& item = items.of(tile);
        for (int block = from; block < to; block++, step++) {
            const int stage = step % STAGES;
            const uint32_t at = base + stage * S::BYTES, full = barriers.full(stage);
            barrier_wait(barriers.free(stage), (step / STAGES & 1) ^ 1);
            barrier_expect(full, S::USED);
            copy_weights(S(), item.raw, tile - (int)item.first_tile, block, share.blocks, at, full);
            if (!waited) wait_for_previous();
            waited = true;
            for (int chunk = 0; chunk < S::X_CHUNKS; chunk++) {
                bulk_copy(at + chunk * S::X_CHUNK, x_tiles + ((size_t)block * S::X_CHUNKS + chunk) * TILE_ROWS * 128,
                          S::X_CHUNK, full);
            }
            bulk_copy(at + S::DY_AT, x_scales + (size_t)block * TILE_ROWS, rows_of_stage * 4, full);
        }
    }
}

__device__ __forceinline__ uint32_t hfma2(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

// The four A registers of 16 columns from a word of codes (matmul_half.cu).
__device__ __forceinline__ void expand_codes(uint32_t* a, uint32_t codes, uint32_t factors_g, uint32_t factors_g8) {
    const uint32_t s0 = __byte_perm(factors_g, factors_g, 0x1010), m0 = __byte_perm(factors_g, factors_g, 0x3232);
    const uint32_t s1 = __byte_perm(factors_g8, factors_g8, 0x1010), m1 = __byte_perm(factors_g8, factors_g8, 0x3232);
    a[0] = hfma2(codes & 0x000f000f, s0, m0);
    a[1] = hfma2(codes & 0x00f000f0, s1, m1);
    a[2] = hfma2(codes >> 8 & 0x000f000f, s0, m0);
    a[3] = hfma2(codes >> 8 & 0x00f000f0, s1, m1);
}

// Releases the stage before once the products that overwrite its sums have been issued: its scales have then been used.
__device__ __forceinline__ void release(int& used_stage, const Barriers& barriers, int lane) {
    if (used_stage >= 0 && lane == 0) barrier_arrive(barriers.free(used_stage));
    used_stage = -1;
}

// I_g of 64 outputs by ROWS rows as float and integer: sums times `unit` is an exact integer (matmul_half.cu).
template <int ROWS>
struct HalfProduct {
    using Stage = HalfStage<ROWS>;
    float sums[ROWS / 2];

    __device__ __forceinline__ void multiply(const uint8_t* stage, int& used_stage, const Barriers& barriers, int warp,
                                             int lane) {
        const uint32_t base = shared_address(stage);
        const int row = warp * 16 + lane / 4;
        uint32_t a[2][16];
#pragma unroll
        for (int chunk = 0; chunk < 4; chunk++) {
            uint32_t* to = a[chunk % 2];
            const uint4 codes = *(const uint4*)(stage + Stage::WEIGHTS_AT + ((warp * 4 + chunk) * 32 + lane) * 16);
            const uint2 factors_g = *(const uint2*)(stage + Stage::FACTORS_AT + row * 32 + chunk * 8);
            const uint2 factors_g8 = *(const uint2*)(stage + Stage::FACTORS_AT + (row + 8) * 32 + chunk * 8);
            expand_codes(to, codes.x, factors_g.x, factors_g8.x);
            expand_codes(to + 4, codes.y, factors_g.x, factors_g8.x);
            expand_codes(to + 8, codes.z, factors_g.y, factors_g8.y);
            expand_codes(to + 12, codes.w, factors_g.y, factors_g8.y);
            const uint64_t x = operand(base + chunk * Stage::X_CHUNK);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < 4; k++) wgmma_f16(sums, to + 4 * k, x + 2 * k, chunk || k);
            wgmma_commit();
            if (chunk == 0) release(used_stage, barriers, lane);
            // The registers of the chunk before last are free.
            wgmma_wait<1>();
        }
        wgmma_wait<0>();
    }
    __device__ __forceinline__ float integer(int i, float unit) const { return __fmul_rn(sums[i], unit); }
    // D is stored times 2^14, which is exact to take back.
    __device__ __forceinline__ static float scale(float stored) { return __fmul_rn(stored, 0x1p-14f); }
    __device__ __forceinline__ static float unit(uint32_t form) { return form == 0 ? 0x1p+15f : 0x1p+14f; }
    __device__ __forceinline__ static float to_d(uint32_t form) { return form == 0 ? 0.5f : 1.0f; }
};

// I_g as 256 high + low (matmul_planes.cu).
template <int ROWS>
struct PlaneProduct {
    using Stage = PlaneStage<ROWS>;
    int high[ROWS / 2], low[ROWS / 2];

    __device__ __forceinline__ void multiply(const uint8_t* stage, int& used_stage, const Barriers& barriers, int,
                                             int lane) {
        const uint32_t base = shared_address(stage);
        const uint64_t w = operand(base + Stage::WEIGHTS_AT), x = operand(base);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 8; k++) {
            wgmma_u8(low, w + k / 4 * 512 + k % 4 * 2, x + k / 4 * (Stage::X_CHUNK / 16) + k % 4 * 2, k > 0);
        }
#pragma unroll
        for (int k = 0; k < 8; k++) {
            wgmma_s8(high, w + 1024 + k / 4 * 512 + k % 4 * 2, x + k / 4 * (Stage::X_CHUNK / 16) + k % 4 * 2, k > 0);
        }
        wgmma_commit();
        release(used_stage, barriers, lane);
        wgmma_wait<0>();
    }
    __device__ __forceinline__ float integer(int i, float) const { return (float)(256 * high[i] + low[i]); }
    __device__ __forceinline__ static float scale(float stored) { return stored; }
    __device__ __forceinline__ static float unit(uint32_t) { return 1.0f; }
    __device__ __forceinline__ static float to_d(uint32_t) { return 1.0f; }
};

template <class Product, int ROWS, int STAGES>
__device__ __forceinline__ void multiply(const MatmulItems& items, const Share& share, int rows,
                                         const HandOver<WORKERS, ROWS / 2>& hand_over, const Barriers& barriers) {
    using S = typename Product::Stage;
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, g = lane / 4, t = lane % 4;
    const int row = warp * 16 + g;
    float acc[ROWS / 2];
    Product product;
    int step = 0, used_stage = -1;
    for (int index = 0; index < share.parts; index++) {
        int tile, from, to;
        share.part(index, tile, from, to);
        const MatmulItem& item = items.of(tile);
        const float unit = Product::unit(item.form()), to_d = Product::to_d(item.form());
        if (from > 0) {
            hand_over.take(acc, thread);
        } else {
#pragma unroll
            for (int i = 0; i < ROWS / 2; i++) acc[i] = 0.0f;
        }
        for (int block = from; block < to; block++, step++) {
            const int number = step % STAGES;
            const uint8_t* stage = stages + number * S::BYTES;
            barrier_wait(barriers.full(number), step / STAGES & 1);
            const float d0 = __fmul_rn(Product::scale(*(const float*)(stage + S::SCALES_AT + row * 4)), to_d);
            const float d1 = __fmul_rn(Product::scale(*(const float*)(stage + S::SCALES_AT + row * 4 + 32)), to_d);
            product.multiply(stage, used_stage, barriers, warp, lane);
            const float* dy = (const float*)(stage + S::DY_AT);
#pragma unroll
            for (int i = 0; i < ROWS / 8; i++) {
                const float2 y = *(const float2*)(dy + 8 * i + 2 * t);
                acc[4 * i] = __fmaf_rn(__fmul_rn(d0, y.x), product.integer(4 * i, unit), acc[4 * i]);
                acc[4 * i + 1] = __fmaf_rn(__fmul_rn(d0, y.y), product.integer(4 * i + 1, unit), acc[4 * i + 1]);
                acc[4 * i + 2] = __fmaf_rn(__fmul_rn(d1, y.x), product.integer(4 * i + 2, unit), acc[4 * i + 2]);
                acc[4 * i + 3] = __fmaf_rn(__fmul_rn(d1, y.y), product.integer(4 * i + 3, unit), acc[4 * i + 3]);
            }
            __syncwarp();
            used_stage = number;
        }
        if (to < share.blocks) {
            hand_over.give(acc, thread);
            continue;
        }
        store_share(item, acc, (tile - (int)item.first_tile) * OUTPUTS + row, 2 * t, rows);
    }
}
#endif

template <template <int> class Product, template <int> class Stage, int ROWS, int STAGES>
__device__ __forceinline__ void matmul_small(const MatmulItems& items, const uint8_t* x_tiles, const float* x_scales,
                                             float* hand_over, uint32_t* flags, int rows, int blocks, int tiles) {
#if HOPPER
    using S = Stage<ROWS>;
    const Barriers barriers{shared_address(stages) + STAGES * S::BYTES};
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; stage++) {
            barrier_init(barriers.full(stage), 1);
            barrier_init(barriers.free(stage), WORKERS / 32);
        }
        barrier_init_done();
    }
    __syncthreads();
    let_next_start();
    const Share share(tiles, blocks);
    if (threadIdx.x >= WORKERS) {
        if (threadIdx.x == WORKERS) copy_operands<S, STAGES>(items, x_tiles, x_scales, share, ROWS, barriers);
    } else {
        // Outputs, hand-over and flags may still be in use by the kernel before.
        wait_for_previous();
        multiply<Product<ROWS>, ROWS, STAGES>(items, share, rows, {hand_over, flags}, barriers);
    }
#endif
}

extern "C" __global__ void __launch_bounds__(WORKERS + 32)
    matmul_half_8(const __grid_constant__ MatmulItems items, const uint8_t* x_tiles, const float* x_scales,
                  float* hand_over, uint32_t* flags, uint32_t rows, uint32_t blocks, uint32_t tiles) {
    matmul_small<HalfProduct, HalfStage, 8, 3>(items, x_tiles, x_scales, hand_over, flags, (int)rows, (int)blocks,
                                               (int)tiles);
}

extern "C" __global__ void __launch_bounds__(WORKERS + 32)
    matmul_half_16(const __grid_constant__ MatmulItems items, const uint8_t* x_tiles, const float* x_scales,
                   float* hand_over, uint32_t* flags, uint32_t rows, uint32_t blocks, uint32_t tiles) {
    matmul_small<HalfProduct, HalfStage, 16, 2>(items, x_tiles, x_scales, hand_over, flags, (int)rows, (int)blocks,
                                               (int)tiles);
}

extern "C" __global__ void __launch_bounds__(WORKERS + 32)
    matmul_half_32(const __grid_constant__ MatmulItems items, const uint8_t* x_tiles, const float* x_scales,
                   float* hand_over, uint32_t* flags, uint32_t rows, uint32_t blocks, uint32_t tiles) {
    matmul_small<HalfProduct, HalfStage, 32, 2>(items, x_tiles, x_scales, hand_over, flags, (int)rows, (int)blocks,
                                               (int)tiles);
}

extern "C" __global__ void __launch_bounds__(WORKERS + 32)
    matmul_planes_8(const __grid_constant__ MatmulItems items, const uint8_t* x_tiles, const float* x_scales,
                    float* hand_over, uint32_t* flags, uint32_t rows, uint32_t blocks, uint32_t tiles) {
    matmul_small<PlaneProduct, PlaneStage, 8, 2>(items, x_tiles, x_scales, hand_over, flags, (int)rows, (int)blocks,
                                               (int)tiles);
}

extern "C" __global__ void __launch_bounds__(WORKERS + 32)
    matmul_planes_16(const __grid_constant__ MatmulItems items, const uint8_t* x_tiles, const float* x_scales,
                     float* hand_over, uint32_t* flags, uint32_t rows, uint32_t blocks, uint32_t tiles) {
    matmul_small<PlaneProduct, PlaneStage, 16, 2>(items, x_tiles, x_scales, hand_over, flags, (int)rows, (int)blocks,
                                               (int)tiles);
}

extern "C" __global__ void __launch_bounds__(WORKERS + 32)
    matmul_planes_32(const __grid_constant__ MatmulItems items, const uint8_t* x_tiles, const float* x_scales,
                     float* hand_over, uint32_t* flags, uint32_t rows, uint32_t blocks, uint32_t tiles) {
    matmul_small<PlaneProduct, PlaneStage, 32, 2>(items, x_tiles, x_scales, hand_over, flags, (int)rows, (int)blocks,
                                               (int)tiles);
}
