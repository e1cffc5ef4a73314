// Q4_K products for many rows on Hopper: rule 3 of docs/numerics.md by f16 matrix instructions whose sums are exact.
//
// Exactness: w' is an integer of at most 11 bits times 2^-14 (e = 0) or 2^-15 (e = 1), an f16 without rounding; so is the
// product of a 4-bit code, which read as f16 is code * 2^-24 or code * 2^-20, with its factor, and one HFMA2 makes w' of it.
// Activations are 8-bit integers as f16. Every partial sum of a block of 256 is an integer below 2^24 times that power of
// two (check_half), so the f32 accumulators hold I_g exactly whatever the order of the hardware, and one
// fma(RN(D dy), I, acc) per block and output is the rule's.
//
// Roofline: 2 * 192 * 128 * 256 FLOP per tile and block for 31.5 KB of weights and 64 KB of activations, most from L2; the
// ceiling is wgmma f16 with A in registers and N = 128: 961 TFLOPS with three warpgroups (measured), less the chain's FMUL
// and FFMA per output and block (64 + 64 of about 360 instructions).
#include "launch.cuh"
#include "matmul.cuh"
#include "numerics.cuh"
#include "prepared.cuh"
#include "stream_k.cuh"

constexpr int TOKENS = 128;             // of a tile
constexpr int GROUPS = 3;               // warpgroups that multiply, 64 outputs each
constexpr int WORKERS = GROUPS * 128;   // threads that multiply; one more warpgroup copies
constexpr int CHUNK_BYTES = TOKENS * 128;  // 64 columns of activations
constexpr int CHUNK_SLOTS = 8;          // two blocks of four chunks
constexpr int WEIGHT_SLOTS = 2;
constexpr int WEIGHT_SLOT_BYTES = HALF_TILE_BYTES + TOKENS * 4;  // weights, then the scales of the activations
constexpr int WEIGHTS_AT = CHUNK_SLOTS * CHUNK_BYTES;
[[maybe_unused]] constexpr int BARRIERS_AT = WEIGHTS_AT + WEIGHT_SLOTS * WEIGHT_SLOT_BYTES;

extern __shared__ __align__(1024) uint8_t slots[];

#if HOPPER
// 132 tiles at a time: of every 256 columns 8 tiles of activations of 64 KB and 17 of weights of 31 KB, 1 MB.
constexpr int BAND = 8;

struct Barriers {
    uint32_t base;
    __device__ __forceinline__ uint32_t chunk_full(int slot) const { return base + 8 * slot; }
    __device__ __forceinline__ uint32_t chunk_free(int slot) const { return base + 64 + 8 * slot; }
    __device__ __forceinline__ uint32_t weights_full(int slot) const { return base + 128 + 8 * slot; }
    __device__ __forceinline__ uint32_t weights_free(int slot) const { return base + 144 + 8 * slot; }
};

__device__ __forceinline__ uint32_t hfma2(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

// Copies weights, scales and activations of all parts into the ring of slots.
__device__ __forceinline__ void copy_operands(const MatmulItems& items, const uint8_t* x_tiles, const float* x_scales,
                                              const Share& share, const TileOrder& order, const Barriers& barriers) {
    const uint32_t base = shared_address(slots);
    int step = 0;
    for (int index = 0; index < share.parts; index++) {
        int tile, from, to;
        share.part(index, tile, from, to);
        int output_tile, token_tile;
        order.place(tile, output_tile, token_tile);
        const MatmulItem& item = items.of(output_tile);
        const uint8_t* weights = item.raw + (size_t)(output_tile - (int)item.first_tile) * share.blocks * HALF_TILE_BYTES;
        for (int block = from; block < to; block++, step++) {
            const int slot = step % WEIGHT_SLOTS;
            const uint32_t at = base + WEIGHTS_AT + slot * WEIGHT_SLOT_BYTES;
            const size_t x_block = (size_t)token_tile * share.blocks + block;
            barrier_wait(barriers.weights_free(slot), (step / WEIGHT_SLOTS & 1) ^ 1);
            barrier_expect(barriers.weights_full(slot), WEIGHT_SLOT_BYTES);
            bulk_copy(at, weights + (size_t)block * HALF_TILE_BYTES, HALF_TILE_BYTES, barriers.weights_full(slot));
            bulk_copy(at + HALF_TILE_BYTES, x_scales + x_block * TOKENS, TOKENS * 4, barriers.weights_full(slot));
            for (int chunk = 0; chunk < 4; chunk++) {
                const int chunk_slot = (step & 1) * 4 + chunk;
                barrier_wait(barriers.chunk_free(chunk_slot), (step / 2 & 1) ^ 1);
                barrier_expect(barriers.chunk_full(chunk_slot), CHUNK_BYTES);
                bulk_copy(base + chunk_slot * CHUNK_BYTES, x_tiles + (x_block * 4 + chunk) * CHUNK_BYTES, CHUNK_BYTES,
                          barriers.chunk_full(chunk_slot));
            }
        }
    }
}

// The eight A registers of 32 columns: codes of two words times their factors, minus M. `factors` holds (factor, -M) of the
// warp's outputs g and g + 8.
__device__ __forceinline__ void expand_codes(uint32_t (&a)[8], uint32_t first, uint32_t second, uint32_t factors_g,
                                             uint32_t factors_g8) {
    const uint32_t s0 = __byte_perm(factors_g, factors_g, 0x1010), m0 = __byte_perm(factors_g, factors_g, 0x3232);
    const uint32_t s1 = __byte_perm(factors_g8, factors_g8, 0x1010), m1 = __byte_perm(factors_g8, factors_g8, 0x3232);
    a[0] = hfma2(first & 0x000f000f, s0, m0);
    a[1] = hfma2(first & 0x00f000f0, s1, m1);
    a[2] = hfma2(first >> 8 & 0x000f000f, s0, m0);
    a[3] = hfma2(first >> 8 & 0x00f000f0, s1, m1);
    a[4] = hfma2(second & 0x000f000f, s0, m0);
    a[5] = hfma2(second & 0x00f000f0, s1, m1);
    a[6] = hfma2(second >> 8 & 0x000f000f, s0, m0);
    a[7] = hfma2(second >> 8 & 0x00f000f0, s1, m1);
}

// acc = fma(RN(D dy), I, acc) for the thread's 64 outputs: outputs g and g + 8 by tokens 8 i + 2 t and one more.
template <class Integer>
__device__ __forceinline__ void add_block(float (&acc)[64], const float (&sums)[64], const float* dy, float d0, float d1,
                                          int lane, Integer integer) {
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const float2 y = *(const float2*)(dy + 8 * i + 2 * (lane % 4));
        acc[4 * i] = __fmaf_rn(__fmul_rn(d0, y.x), integer(sums[4 * i]), acc[4 * i]);
        acc[4 * i + 1] = __fmaf_rn(__fmul_rn(d0, y.y), integer(sums[4 * i + 1]), acc[4 * i + 1]);
        acc[4 * i + 2] = __fmaf_rn(__fmul_rn(d1, y.x), integer(sums[4 * i + 2]), acc[4 * i + 2]);
        acc[4 * i + 3] = __fmaf_rn(__fmul_rn(d1, y.y), integer(sums[4 * i + 3]), acc[4 * i + 3]);
    }
}

// True where scaling D by 2^14 commutes with the rounding of D * dy for all 128 scales of the tile: the product then stays
// normal, since D is an f16 (or half of one) and not below 2^-25.
__device__ __forceinline__ bool scales_are_ordinary(const float* dy, int lane) {
    const float4 four = ((const float4*)dy)[lane];
    auto ordinary = [](float scale) { return scale == 0.0f || (scale >= 0x1p-80f && scale <= 0x1p+80f); };
    return __all_sync(ALL_LANES, ordinary(four.x) && ordinary(four.y) && ordinary(four.z) && ordinary(four.w));
}

// Multiplies the parts of this thread block; called by the WORKERS threads.
__device__ __forceinline__ void multiply(const MatmulItems& items, const Share& share, const TileOrder& order, int tokens,
                                         const HandOver<WORKERS, 64>& hand_over, const Barriers& barriers) {
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, g = lane / 4, t = lane % 4;
    const int row = warp * 16 + g;
    const uint32_t base = shared_address(slots);
    float acc[64], sums[64];
    int step = 0, used_weights = -1;
    for (int index = 0; index < share.parts; index++) {
        int tile, from, to;
        share.part(index, tile, from, to);
        int output_tile, token_tile;
        order.place(tile, output_tile, token_tile);
        const MatmulItem& item = items.of(output_tile);
        const float unit = item.form() == 0 ? 0x1p+15f : 0x1p+14f;
        if (from > 0) {
            hand_over.take(acc, thread);
        } else {
#pragma unroll
            for (int i = 0; i < 64; i++) acc[i] = 0.0f;
        }
        for (int block = from; block < to; block++, step++) {
            const int slot = step % WEIGHT_SLOTS;
            barrier_wait(barriers.weights_full(slot), step / WEIGHT_SLOTS & 1);
            const uint8_t* weights = slots + WEIGHTS_AT + slot * WEIGHT_SLOT_BYTES;
            const float d0 = *(const float*)(weights + HALF_SCALES_AT + row * 4);
            const float d1 = *(const float*)(weights + HALF_SCALES_AT + row * 4 + 32);
#pragma unroll
            for (int chunk = 0; chunk < 4; chunk++) {
                const int chunk_slot = (step & 1) * 4 + chunk;
                const uint4 codes = *(const uint4*)(weights + ((warp * 4 + chunk) * 32 + lane) * 16);
                const uint2 factors_g = *(const uint2*)(weights + HALF_FACTORS_AT + row * 32 + chunk * 8);
                const uint2 factors_g8 = *(const uint2*)(weights + HALF_FACTORS_AT + (row + 8) * 32 + chunk * 8);
                const uint64_t x = operand(base + chunk_slot * CHUNK_BYTES);
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    uint32_t a[8];
                    expand_codes(a, half ? codes.z : codes.x, half ? codes.w : codes.y, half ? factors_g.y : factors_g.x,
                                 half ? factors_g8.y : factors_g8.x);
                    if (half == 0) barrier_wait(barriers.chunk_full(chunk_slot), step / 2 & 1);
                    wgmma_fence();
                    wgmma_f16(sums, a, x + half * 4, chunk || half);
                    wgmma_f16(sums, a + 4, x + half * 4 + 2, 1);
                    wgmma_commit();
                    // The slot of the block before is free only here: the product just issued overwrites the sums that its
                    // scales were multiplied with, so their loads have completed. Released right after the loads were
                    // issued, the copy engine now and then overtook them.
                    if (chunk == 0 && half == 0 && used_weights >= 0) {
                        if (lane == 0) barrier_arrive(barriers.weights_free(used_weights));
                    }
                    wgmma_wait<1>();
                    if (half == 0 && chunk > 0 && lane == 0) barrier_arrive(barriers.chunk_free(chunk_slot - 1));
                }
            }
            wgmma_wait<0>();
            if (lane == 0) barrier_arrive(barriers.chunk_free((step & 1) * 4 + 3));
            const float* dy = (const float*)(weights + HALF_TILE_BYTES);
            if (scales_are_ordinary(dy, lane)) {
                add_block(acc, sums, dy, d0, d1, lane, [](float sum) { return sum; });
            } else {
                const float inverse = __fdiv_rn(1.0f, unit);
                add_block(acc, sums, dy, __fmul_rn(d0, inverse), __fmul_rn(d1, inverse), lane,
                          [unit](float sum) { return __fmul_rn(sum, unit); });
            }
            __syncwarp();
            used_weights = slot;
        }
        if (to < share.blocks) {
            hand_over.give(acc, thread);
            continue;
        }
        store_share(item, acc, (output_tile - (int)item.first_tile) * HALF_OUTPUTS + row, token_tile * TOKENS + 2 * t,
                    tokens);
    }
}
#endif

// items: half tiles; x_tiles f16 and x_scales as in ActivationForms. output_tiles counts the tiles of all items.
extern "C" __global__ void __launch_bounds__(WORKERS + 128, 1)
    matmul_half(const __grid_constant__ MatmulItems items, const uint8_t* x_tiles, const float* x_scales, float* hand_over,
                uint32_t* flags, uint32_t tokens, uint32_t blocks, uint32_t output_tiles) {
#if HOPPER
    const Barriers barriers{shared_address(slots) + BARRIERS_AT};
    if (threadIdx.x == 0) {
        for (int slot = 0; slot < CHUNK_SLOTS; slot++) {
            barrier_init(barriers.chunk_full(slot), 1);
            barrier_init(barriers.chunk_free(slot), WORKERS / 32);
        }
        for (int slot = 0; slot < WEIGHT_SLOTS; slot++) {
            barrier_init(barriers.weights_full(slot), 1);
            barrier_init(barriers.weights_free(slot), WORKERS / 32);
        }
        barrier_init_done();
    }
    __syncthreads();
    let_next_start();
    wait_for_previous();
    const TileOrder order((int)output_tiles, ((int)tokens + TOKENS - 1) / TOKENS, BAND);
    const Share share(order.tiles(), (int)blocks, Share::most_waves(order.tiles()));
    if (threadIdx.x >= WORKERS) {
        give_registers<24>();
        if (threadIdx.x == WORKERS) copy_operands(items, x_tiles, x_scales, share, order, barriers);
    } else {
        take_registers<160>();
        multiply(items, share, order, (int)tokens, {hand_over, flags, 1}, barriers);
    }
#endif
}
