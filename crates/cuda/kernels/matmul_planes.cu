// Products of any type with integer sub-scales for many rows on Hopper: rule 3 of docs/numerics.md by s8 matrix instructions
// over two planes of the weights.
//
// Exactness: w' = 256 hi + lo with lo in 0..255 and hi in -128..127 is every int16 (rule 1), so I_g = 256 sum(hi q) +
// sum(lo q) without any condition: the parts stay below 256 * 255 * 127 < 2^23 and I_g below 2^30, all in int32. One
// conversion and one fma(RN(D dy), f(I), acc) per block and output.
//
// Roofline: 2 * 2 * 128 * 128 * 256 operations per tile and block for 66 KB of weights and 32 KB of activations; the ceiling
// is half of wgmma s8 with both operands in shared memory (1,872 TOPS at N = 256, measured): 900 effective.
#include "launch.cuh"
#include "matmul.cuh"
#include "numerics.cuh"
#include "prepared.cuh"
#include "ring.cuh"
#include "stream_k.cuh"

constexpr int TOKENS = 128;
constexpr int WORKERS = 256;           // two warpgroups of 64 outputs; a third copies
constexpr int X_BYTES = TOKENS * 256;  // activations of a block
constexpr int STAGES = 2;
constexpr int STAGE_BYTES = 2 * PLANE_BYTES + X_BYTES;
// Scales lie in a ring of their own, twice as long: their slot is written again only when the sums that they were multiplied
// with have been overwritten, so a late load cannot be overtaken.
constexpr int SCALE_SLOTS = 4;
constexpr int SCALE_SLOT_BYTES = PLANE_OUTPUTS * 4 + TOKENS * 4;
constexpr int SCALES_AT = STAGES * STAGE_BYTES;
[[maybe_unused]] constexpr int BARRIERS_AT = SCALES_AT + SCALE_SLOTS * SCALE_SLOT_BYTES;

extern __shared__ __align__(1024) uint8_t slots[];

#if HOPPER
// 132 tiles at a time: of every 256 columns 16 tiles of activations of 32 KB and 9 of weights of 66 KB, 1 MB.
constexpr int BAND = 16;

__device__ __forceinline__ void copy_operands(const MatmulItems& items, const uint8_t* x_tiles, const float* x_scales,
                                              const Share& share, const TileOrder& order, const Ring<STAGES>& ring) {
    const uint32_t base = shared_address(slots);
    int step = 0;
    for (int index = 0; index < share.parts; index++) {
        int tile, from, to;
        share.part(index, tile, from, to);
        int output_tile, token_tile;
        order.place(tile, output_tile, token_tile);
        const MatmulItem& item = items.of(output_tile);
        const uint8_t* weights = item.raw + (size_t)(output_tile - (int)item.first_tile) * share.blocks * PLANE_TILE_BYTES;
        for (int block = from; block < to; block++, step++) {
            const uint32_t at = base + step % STAGES * STAGE_BYTES, full = ring.full(step);
            const uint32_t scales = base + SCALES_AT + step % SCALE_SLOTS * SCALE_SLOT_BYTES;
            const uint8_t* tile_weights = weights + (size_t)block * PLANE_TILE_BYTES;
            const size_t x_block = (size_t)token_tile * share.blocks + block;
            ring.begin_copies(step, STAGE_BYTES + SCALE_SLOT_BYTES);
            bulk_copy(at, tile_weights, 2 * PLANE_BYTES, full);
            bulk_copy(scales, tile_weights + PLANE_SCALES_AT, PLANE_OUTPUTS * 4, full);
            bulk_copy(at + 2 * PLANE_BYTES, x_tiles + x_block * X_BYTES, X_BYTES, full);
            bulk_copy(scales + PLANE_OUTPUTS * 4, x_scales + x_block * TOKENS, TOKENS * 4, full);
        }
    }
}

__device__ __forceinline__ void multiply(const MatmulItems& items, const Share& share, const TileOrder& order, int tokens,
                                         const HandOver<WORKERS, 64>& hand_over, const Ring<STAGES>& ring) {
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, group = warp / 4, g = lane / 4, t = lane % 4;
    const int row = warp * 16 + g;
    const uint32_t base = shared_address(slots);
    float acc[64];
    int high[64], low[64];
    int step = 0;
    for (int index = 0; index < share.parts; index++) {
        int tile, from, to;
        share.part(index, tile, from, to);
        int output_tile, token_tile;
        order.place(tile, output_tile, token_tile);
        const MatmulItem& item = items.of(output_tile);
        if (from > 0) {
            hand_over.take(acc, thread);
        } else {
#pragma unroll
            for (int i = 0; i < 64; i++) acc[i] = 0.0f;
        }
        for (int block = from; block < to; block++, step++) {
            const uint32_t at = base + step % STAGES * STAGE_BYTES;
            // Of each plane and of the activations, 128 columns are 16 KB: 1,024 in units of a descriptor.
            const uint64_t w = operand(at + group * 8192), x = operand(at + 2 * PLANE_BYTES);
            ring.wait_full(step);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < 8; k++) {
                const int column = k / 4 * 1024 + k % 4 * 2;
                wgmma_u8(low, w + column, x + column, k > 0);
            }
#pragma unroll
            for (int k = 0; k < 8; k++) {
                const int column = k / 4 * 1024 + k % 4 * 2;
                wgmma_s8(high, w + PLANE_BYTES / 16 + column, x + column, k > 0);
            }
            wgmma_commit();
            const float* d = (const float*)(slots + SCALES_AT + step % SCALE_SLOTS * SCALE_SLOT_BYTES);
            const float d0 = d[row], d1 = d[row + 8];
            const float* dy = d + PLANE_OUTPUTS;
            wgmma_wait<0>();
            if (lane == 0) ring.release(step);
#pragma unroll
            for (int i = 0; i < 16; i++) {
                const float2 y = *(const float2*)(dy + 8 * i + 2 * t);
                acc[4 * i] = __fmaf_rn(__fmul_rn(d0, y.x), (float)(256 * high[4 * i] + low[4 * i]), acc[4 * i]);
                acc[4 * i + 1] =
                    __fmaf_rn(__fmul_rn(d0, y.y), (float)(256 * high[4 * i + 1] + low[4 * i + 1]), acc[4 * i + 1]);
                acc[4 * i + 2] =
                    __fmaf_rn(__fmul_rn(d1, y.x), (float)(256 * high[4 * i + 2] + low[4 * i + 2]), acc[4 * i + 2]);
                acc[4 * i + 3] =
                    __fmaf_rn(__fmul_rn(d1, y.y), (float)(256 * high[4 * i + 3] + low[4 * i + 3]), acc[4 * i + 3]);
            }
        }
        if (to < share.blocks) {
            hand_over.give(acc, thread);
            continue;
        }
        store_share(item, acc, (output_tile - (int)item.first_tile) * PLANE_OUTPUTS + row, token_tile * TOKENS + 2 * t,
                    tokens);
    }
}
#endif

// items: plane tiles; x_tiles bytes and x_scales as in ActivationForms. output_tiles counts the tiles of all items.
extern "C" __global__ void __launch_bounds__(WORKERS + 128, 1)
    matmul_planes(const __grid_constant__ MatmulItems items, const uint8_t* x_tiles, const float* x_scales,
                  float* hand_over, uint32_t* flags, uint32_t tokens, uint32_t blocks, uint32_t output_tiles) {
#if HOPPER
    const Ring<STAGES> ring{shared_address(slots) + BARRIERS_AT};
    if (threadIdx.x == 0) ring.init(WORKERS / 32);
    __syncthreads();
    let_next_start();
    wait_for_previous();
    const TileOrder order((int)output_tiles, ((int)tokens + TOKENS - 1) / TOKENS, BAND);
    const Share share(order.tiles(), (int)blocks, Share::most_waves(order.tiles()));
    if (threadIdx.x >= WORKERS) {
        give_registers<24>();
        if (threadIdx.x == WORKERS) copy_operands(items, x_tiles, x_scales, share, order, ring);
    } else {
        take_registers<240>();
        multiply(items, share, order, (int)tokens, {hand_over, flags, 1}, ring);
    }
#endif
}
