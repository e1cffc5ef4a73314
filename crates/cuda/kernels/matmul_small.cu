// Products with 2 to 32 activation rows on Hopper, over the tiles of the kernels for many rows: rule 3 of docs/numerics.md,
// exact for the same reasons (matmul_half.cu, matmul_planes.cu).
//
// Four warpgroups take the blocks of 256 columns of a tile of 64 outputs in turn: each computes the integers of its block by
// itself, then waits for the block before, adds to the sums, which lie in shared memory, and passes them on. So the chain of
// an output stays ascending while four blocks are multiplied at a time. Four more warps copy, a stage each in turn: with one,
// 8 rows took 1.8 times as long as 1, with four 1.2 times.
//
// For up to 16 rows a warp multiplies its 16 outputs by itself (mma.sync): a warpgroup's instruction takes as long for 8
// columns as for 32.
//
// Memory-bound: 164 (half tiles) or 516 (planes) bytes per 256 weights, read once for all rows; 4.55 TB/s is the ceiling:
// 38 us for the 173 MB of gate and up in half tiles; measured (bench_ops matmul): 47 us with 8 rows, 64 us with 32. Weights are
// under way before the kernel waits for the one before it.
#include "launch.cuh"
#include "matmul.cuh"
#include "mma.cuh"
#include "numerics.cuh"
#include "prepared.cuh"
#include "stream_k.cuh"

constexpr int OUTPUTS = 64;    // of a tile
constexpr int GROUPS = 4;      // warpgroups that multiply
constexpr int COPIERS = 4;     // warps that copy
constexpr int GROUP = 128;     // threads of a warpgroup
[[maybe_unused]] constexpr int TILE_ROWS = 128; // of the activations' tiles

extern __shared__ __align__(1024) uint8_t stages[];

constexpr int rounded_up(int value, int unit) { return (value + unit - 1) / unit * unit; }

// A stage: activations, weights of 64 outputs by 256 columns, D, the scales of the activations.
template <int ROWS>
struct HalfStage {
    static constexpr int WEIGHT_COPIES = 3;
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
    static constexpr int WEIGHT_COPIES = 5;
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
    __device__ __forceinline__ uint32_t free(int stage) const { return base + 128 + 8 * stage; }
};

// One of the copies that fill a stage: `bytes` from `from` + block * `step` to byte `to` of the stage.
struct Copy {
    const uint8_t* from;
    size_t step;
    int to, bytes;
};

// Copies of the weights: the first WEIGHT_COPIES of a stage's. `number` is below that.
template <int ROWS>
__device__ __forceinline__ Copy weight_copy(HalfStage<ROWS>, const uint8_t* tiles, int tile, int blocks, int number) {
    using S = HalfStage<ROWS>;
    constexpr int PARTS = HALF_OUTPUTS / OUTPUTS;
    const uint8_t* from = tiles + (size_t)(tile / PARTS) * blocks * HALF_TILE_BYTES;
    const int part = tile % PARTS;
    if (number == 0) return {from + part * OUTPUTS * 128, HALF_TILE_BYTES, S::WEIGHTS_AT, OUTPUTS * 128};
    if (number == 1) return {from + HALF_FACTORS_AT + part * OUTPUTS * 32, HALF_TILE_BYTES, S::FACTORS_AT, OUTPUTS * 32};
    return {from + HALF_SCALES_AT + part * OUTPUTS * 4, HALF_TILE_BYTES, S::SCALES_AT, OUTPUTS * 4};
}
template <int ROWS>
__device__ __forceinline__ Copy weight_copy(PlaneStage<ROWS>, const uint8_t* tiles, int tile, int blocks, int number) {
    using S = PlaneStage<ROWS>;
    constexpr int PARTS = PLANE_OUTPUTS / OUTPUTS;
    const uint8_t* from = tiles + (size_t)(tile / PARTS) * blocks * PLANE_TILE_BYTES;
    const int part = tile % PARTS;
    if (number == 4) return {from + PLANE_SCALES_AT + part * OUTPUTS * 4, PLANE_TILE_BYTES, S::SCALES_AT, OUTPUTS * 4};
    return {from + number * (PLANE_BYTES / 2) + part * OUTPUTS * 128, PLANE_TILE_BYTES,
            S::WEIGHTS_AT + number * OUTPUTS * 128, OUTPUTS * 128};
}

// Fills the stages of every COPIERS-th block of all parts, each lane of the warp with a copy of its own.
template <class S, int STAGES>
__device__ __forceinline__ void copy_operands(const MatmulItems& items, const uint8_t* x_tiles, const float* x_scales,
                                              const Share& share, int rows_of_stage, const Barriers& barriers) {
    const uint32_t base = shared_address(stages);
    const int lane = threadIdx.x % 32, x_chunk = lane - S::WEIGHT_COPIES;
    const int copier = (threadIdx.x - GROUPS * GROUP) / 32;
    Copy copy = {x_tiles + (size_t)x_chunk * TILE_ROWS * 128, (size_t)S::X_CHUNKS * TILE_ROWS * 128, x_chunk * S::X_CHUNK,
                 S::X_CHUNK};
    if (x_chunk == S::X_CHUNKS) copy = {(const uint8_t*)x_scales, TILE_ROWS * 4, S::DY_AT, rows_of_stage * 4};
    const bool of_weights = x_chunk < 0, of_activations = !of_weights && x_chunk <= S::X_CHUNKS;
    bool waited = false;
    int step = 0;
    for (int index = 0; index < share.parts; index++) {
        int tile, from, to;
        share.part(index, tile, from, to);
        const MatmulItem& item = items.of(tile);
        if (of_weights) copy = weight_copy(S(), item.raw, tile - (int)item.first_tile, share.blocks, lane);
        for (int block = from; block < to; block++, step++) {
            if (step % COPIERS != copier) continue;
            const int stage = step % STAGES;
            const uint32_t at = base + stage * S::BYTES + copy.to, full = barriers.full(stage);
            if (lane == 0) {
                barrier_wait(barriers.free(stage), (step / STAGES & 1) ^ 1);
                barrier_expect(full, S::USED);
            }
            __syncwarp();
            if (of_weights) bulk_copy(at, copy.from + block * copy.step, copy.bytes, full);
            if (!waited) wait_for_previous();
            waited = true;
            if (of_activations) bulk_copy(at, copy.from + block * copy.step, copy.bytes, full);
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

// c += A * B of f16 with f32 sums, k = 16, on one warp: registers as in expand_codes, B (16 x 8) has rows 2t and 8 + 2t, two
// each, in column g.
__device__ __forceinline__ void mma_f16(float* c, const uint32_t* a, uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Word `t` of 16-byte unit `unit` of a row of 128 bytes in the 128-byte swizzle.
__device__ __forceinline__ uint32_t swizzled(const uint8_t* rows, int row, int unit, int t) {
    return *(const uint32_t*)(rows + row * 128 + (unit ^ (row & 7)) * 16 + t * 4);
}

// I_g of 64 outputs by ROWS rows as float and integer: sums times `unit` is an exact integer (matmul_half.cu).
template <int ROWS>
struct HalfProduct {
    using Stage = HalfStage<ROWS>;
    float sums[ROWS / 2];

    __device__ __forceinline__ void multiply(const uint8_t* stage, int warp, int lane) {
        const uint32_t base = shared_address(stage);
        const int row = warp * 16 + lane / 4;
        uint32_t a[2][16];
        // Two chains of instructions per output; their sums are integers, so adding them is exact.
        float pair[2][ROWS / 2];
        if (ROWS <= 16) {
#pragma unroll
            for (int i = 0; i < ROWS / 2; i++) pair[0][i] = pair[1][i] = 0.0f;
        }
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
            if (ROWS <= 16) {
                const uint8_t* x = stage + chunk * Stage::X_CHUNK;
#pragma unroll
                for (int k = 0; k < 4; k++) {
#pragma unroll
                    for (int n = 0; n < ROWS / 8; n++) {
                        const int token = n * 8 + lane / 4;
                        mma_f16(pair[k % 2] + 4 * n, to + 4 * k, swizzled(x, token, 2 * k, lane % 4),
                                swizzled(x, token, 2 * k + 1, lane % 4));
                    }
                }
                continue;
            }
            const uint64_t x = operand(base + chunk * Stage::X_CHUNK);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < 4; k++) wgmma_f16(sums, to + 4 * k, x + 2 * k, chunk || k);
            wgmma_commit();
            // The registers of the chunk before last are free.
            wgmma_wait<1>();
        }
        if (ROWS <= 16) {
#pragma unroll
            for (int i = 0; i < ROWS / 2; i++) sums[i] = __fadd_rn(pair[0][i], pair[1][i]);
        } else {
            wgmma_wait<0>();
        }
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

    __device__ __forceinline__ void multiply(const uint8_t* stage, int warp, int lane) {
        if (ROWS <= 16) {
            multiply_by_warps(stage, warp, lane);
            return;
        }
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
        wgmma_wait<0>();
    }
    __device__ __forceinline__ void multiply_by_warps(const uint8_t* stage, int warp, int lane) {
        const int g = lane / 4, t = lane % 4, row = warp * 16 + g;
        int sums_high[ROWS / 8][4] = {}, sums_low[ROWS / 8][4] = {};
#pragma unroll
        for (int k = 0; k < 8; k++) {
            const uint8_t* w = stage + Stage::WEIGHTS_AT + k / 4 * OUTPUTS * 128;
            const uint8_t* w_high = w + OUTPUTS * 256;
            const int unit = k % 4 * 2;
            const uint32_t a[4] = {swizzled(w, row, unit, t), swizzled(w, row + 8, unit, t), swizzled(w, row, unit + 1, t),
                                   swizzled(w, row + 8, unit + 1, t)};
            const uint32_t a_high[4] = {swizzled(w_high, row, unit, t), swizzled(w_high, row + 8, unit, t),
                                        swizzled(w_high, row, unit + 1, t), swizzled(w_high, row + 8, unit + 1, t)};
#pragma unroll
            for (int n = 0; n < ROWS / 8; n++) {
                const uint8_t* x = stage + k / 4 * Stage::X_CHUNK;
                const uint32_t b[2] = {swizzled(x, n * 8 + g, unit, t), swizzled(x, n * 8 + g, unit + 1, t)};
                mma_u8(sums_low[n], a, b);
                mma_s8(sums_high[n], a_high, b);
            }
        }
#pragma unroll
        for (int i = 0; i < ROWS / 2; i++) {
            high[i] = sums_high[i / 4][i % 4];
            low[i] = sums_low[i / 4][i % 4];
        }
    }
    __device__ __forceinline__ float integer(int i, float) const { return (float)(256 * high[i] + low[i]); }
    __device__ __forceinline__ static float scale(float stored) { return stored; }
    __device__ __forceinline__ static float unit(uint32_t) { return 1.0f; }
    __device__ __forceinline__ static float to_d(uint32_t) { return 1.0f; }
};

// Named barriers by which a warpgroup hands the turn to the next, after those of the hand-over between thread blocks.
__device__ __forceinline__ void wait_for_turn(int group) {
    asm volatile("bar.sync %0, %1;" ::"r"(1 + GROUPS + group), "n"(2 * GROUP) : "memory");
}
__device__ __forceinline__ void pass_turn(int group) {
    asm volatile("bar.arrive %0, %1;" ::"r"(1 + GROUPS + (group + 1) % GROUPS), "n"(2 * GROUP) : "memory");
}

// Makes the value exist at this point of the program.
__device__ __forceinline__ void keep(float& value) { asm volatile("" : "+f"(value)); }

// The blocks of this thread block, number `group`, `group` + 4, ... of all its parts. `sums`: [GROUP][ROWS / 2] in shared
// memory, the sums of the tile between two turns.
template <class Product, int ROWS, int STAGES>
__device__ __forceinline__ void multiply(const MatmulItems& items, const Share& share, int rows, float* sums,
                                         const HandOver<GROUP, ROWS / 2>& hand_over, const Barriers& barriers) {
    using S = typename Product::Stage;
    const int group = threadIdx.x / GROUP, thread = threadIdx.x % GROUP, lane = thread % 32, warp = thread / 32;
    const int t = lane % 4, row = warp * 16 + lane / 4;
    float4* own = (float4*)sums;  // [ROWS / 8][GROUP], so that lanes meet no bank twice
    Product product;
    int step = 0;
    for (int index = 0; index < share.parts; index++) {
        int tile, from, to;
        share.part(index, tile, from, to);
        const MatmulItem& item = items.of(tile);
        const float unit = Product::unit(item.form()), to_d = Product::to_d(item.form());
        for (int block = from; block < to; block++, step++) {
            if (step % GROUPS != group) continue;
            const int number = step % STAGES;
            const uint8_t* stage = stages + number * S::BYTES;
            barrier_wait(barriers.full(number), step / STAGES & 1);
            const float d0 = __fmul_rn(Product::scale(*(const float*)(stage + S::SCALES_AT + row * 4)), to_d);
            const float d1 = __fmul_rn(Product::scale(*(const float*)(stage + S::SCALES_AT + row * 4 + 32)), to_d);
            product.multiply(stage, warp, lane);
            const float* dy = (const float*)(stage + S::DY_AT);
            if (step > 0) wait_for_turn(group);
            float acc[ROWS / 2];
            if (block > from) {
#pragma unroll
                for (int i = 0; i < ROWS / 8; i++) *(float4*)&acc[4 * i] = own[i * GROUP + thread];
            } else if (from > 0) {
                hand_over.take(acc, thread);
            } else {
#pragma unroll
                for (int i = 0; i < ROWS / 2; i++) acc[i] = 0.0f;
            }
#pragma unroll
            for (int i = 0; i < ROWS / 8; i++) {
                const float2 y = *(const float2*)(dy + 8 * i + 2 * t);
                acc[4 * i] = __fmaf_rn(__fmul_rn(d0, y.x), product.integer(4 * i, unit), acc[4 * i]);
                acc[4 * i + 1] = __fmaf_rn(__fmul_rn(d0, y.y), product.integer(4 * i + 1, unit), acc[4 * i + 1]);
                acc[4 * i + 2] = __fmaf_rn(__fmul_rn(d1, y.x), product.integer(4 * i + 2, unit), acc[4 * i + 2]);
                acc[4 * i + 3] = __fmaf_rn(__fmul_rn(d1, y.y), product.integer(4 * i + 3, unit), acc[4 * i + 3]);
#pragma unroll
                for (int j = 0; j < 4; j++) keep(acc[4 * i + j]);
                own[i * GROUP + thread] = *(const float4*)&acc[4 * i];
            }
            // The sums are in registers, so every load of the stage has come: it may be written again.
            __syncwarp();
            if (lane == 0) barrier_arrive(barriers.free(number));
            pass_turn(group);
            if (block + 1 < to) continue;
            if (to < share.blocks) {
                hand_over.give(acc, thread);
            } else {
                store_share(item, acc, (tile - (int)item.first_tile) * OUTPUTS + row, 2 * t, rows);
            }
        }
    }
}
#endif

template <template <int> class Product, template <int> class Stage, int ROWS, int STAGES>
__device__ __forceinline__ void matmul_small(const MatmulItems& items, const uint8_t* x_tiles, const float* x_scales,
                                             float* hand_over, uint32_t* flags, int rows, int blocks, int tiles) {
#if HOPPER
    using S = Stage<ROWS>;
    const Barriers barriers{shared_address(stages) + STAGES * S::BYTES};
    float* sums = (float*)(stages + STAGES * S::BYTES + 256);
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; stage++) {
            barrier_init(barriers.full(stage), 1);
            barrier_init(barriers.free(stage), GROUP / 32);
        }
        barrier_init_done();
    }
    __syncthreads();
    let_next_start();
    // The tiles of a thread block lie one after the other: no two read the same weights.
    const Share share(tiles, blocks, 0);
    if (threadIdx.x >= GROUPS * GROUP) {
        copy_operands<S, STAGES>(items, x_tiles, x_scales, share, ROWS, barriers);
    } else {
        // Outputs, hand-over and flags may still be in use by the kernel before.
        wait_for_previous();
        const int barrier = 1 + (int)threadIdx.x / GROUP;
        multiply<Product<ROWS>, ROWS, STAGES>(items, share, rows, sums, {hand_over, flags, barrier}, barriers);
    }
#endif
}

extern "C" __global__ void __launch_bounds__(GROUPS * GROUP + COPIERS * 32, 1)
    matmul_half_8(const __grid_constant__ MatmulItems items, const uint8_t* x_tiles, const float* x_scales,
                  float* hand_over, uint32_t* flags, uint32_t rows, uint32_t blocks, uint32_t tiles) {
    matmul_small<HalfProduct, HalfStage, 8, 12>(items, x_tiles, x_scales, hand_over, flags, (int)rows, (int)blocks,
                                               (int)tiles);
}

extern "C" __global__ void __launch_bounds__(GROUPS * GROUP + COPIERS * 32, 1)
    matmul_half_16(const __grid_constant__ MatmulItems items, const uint8_t* x_tiles, const float* x_scales,
                   float* hand_over, uint32_t* flags, uint32_t rows, uint32_t blocks, uint32_t tiles) {
    matmul_small<HalfProduct, HalfStage, 16, 10>(items, x_tiles, x_scales, hand_over, flags, (int)rows, (int)blocks,
                                               (int)tiles);
}

extern "C" __global__ void __launch_bounds__(GROUPS * GROUP + COPIERS * 32, 1)
    matmul_half_32(const __grid_constant__ MatmulItems items, const uint8_t* x_tiles, const float* x_scales,
                   float* hand_over, uint32_t* flags, uint32_t rows, uint32_t blocks, uint32_t tiles) {
    matmul_small<HalfProduct, HalfStage, 32, 7>(items, x_tiles, x_scales, hand_over, flags, (int)rows, (int)blocks,
                                               (int)tiles);
}

extern "C" __global__ void __launch_bounds__(GROUPS * GROUP + COPIERS * 32, 1)
    matmul_planes_8(const __grid_constant__ MatmulItems items, const uint8_t* x_tiles, const float* x_scales,
                    float* hand_over, uint32_t* flags, uint32_t rows, uint32_t blocks, uint32_t tiles) {
    matmul_small<PlaneProduct, PlaneStage, 8, 6>(items, x_tiles, x_scales, hand_over, flags, (int)rows, (int)blocks,
                                               (int)tiles);
}

extern "C" __global__ void __launch_bounds__(GROUPS * GROUP + COPIERS * 32, 1)
    matmul_planes_16(const __grid_constant__ MatmulItems items, const uint8_t* x_tiles, const float* x_scales,
                     float* hand_over, uint32_t* flags, uint32_t rows, uint32_t blocks, uint32_t tiles) {
    matmul_small<PlaneProduct, PlaneStage, 16, 5>(items, x_tiles, x_scales, hand_over, flags, (int)rows, (int)blocks,
                                               (int)tiles);
}

extern "C" __global__ void __launch_bounds__(GROUPS * GROUP + COPIERS * 32, 1)
    matmul_planes_32(const __grid_constant__ MatmulItems items, const uint8_t* x_tiles, const float* x_scales,
                     float* hand_over, uint32_t* flags, uint32_t rows, uint32_t blocks, uint32_t tiles) {
    matmul_small<PlaneProduct, PlaneStage, 32, 5>(items, x_tiles, x_scales, hand_over, flags, (int)rows, (int)blocks,
                                               (int)tiles);
}
