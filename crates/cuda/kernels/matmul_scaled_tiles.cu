// Products of the types with a float scale per 32 weights (all but NVFP4) for many rows on Hopper: rule 4 of
// docs/numerics.md by s8 matrix instructions of 32 columns, one for each group.
//
// Exactness: the sum of a group is below 32 * 128 * 127 < 2^19 in int32, so its conversion is exact; then one thread runs the
// rule's chain c = fma(dw, f(P), +0), c = fma(m, f(S), c), acc = fma(dy, c, acc) of each of its outputs over the groups in
// ascending order. Groups past the last column have zero codes and scales and dy = -0, which leaves every acc as it is.
//
// Roofline: 2 * 128 * 128 * 128 operations per tile and chunk of 128 columns for 36 KB (40 KB with mins), most from L2. The
// chain is the limit: a conversion and two FFMA (three with mins) per output and group are 192 (256) issue slots of a warp for
// 128 x 64 outputs, where the tensor cores take 64 cycles and shared memory, for operands, copies and scales, about 180 (264).
// With some 22 slots for scales and barriers that is 2,420 (1,890) operations per cycle and processor: 560 (440) TOPS at
// 1.75 GHz. So two sets of sums take turns: the product of a group runs while the chain of the group before does.
#include "launch.cuh"
#include "matmul.cuh"
#include "numerics.cuh"
#include "ring.cuh"
#include "scaled_tiles.cuh"
#include "stream_k.cuh"

constexpr int WORKERS = 256; // two warpgroups of 64 tokens; a third copies
[[maybe_unused]] constexpr int SLOTS = 4;

template <bool MINS>
struct Slot {
    static constexpr int WEIGHTS_BYTES = scaled_weights_bytes(MINS);
    // Sums of codes come last, and only mins need them.
    static constexpr int X_BYTES = MINS ? SCALED_X_BYTES : SCALED_X_BYTES - SCALED_FLOATS_BYTES;
    static constexpr int BYTES = WEIGHTS_BYTES + X_BYTES;
    static_assert(WEIGHTS_BYTES % 1024 == 0 && BYTES % 1024 == 0, "operands start at multiples of 1,024");
};

extern __shared__ __align__(1024) uint8_t slots[];

#if HOPPER
// 132 tiles at a time: of every 128 columns 8 tiles of activations and 17 of weights of 18 to 20 KB, 0.5 MB.
constexpr int BAND = 8;

// Copies weights and activations of all parts into the ring.
template <bool MINS>
__device__ __forceinline__ void copy_operands(const MatmulItems& items, const uint8_t* x_tiles, const Share& share,
                                              const TileOrder& order, const Ring<SLOTS>& ring) {
    using S = Slot<MINS>;
    const uint32_t base = shared_address(slots);
    int step = 0;
    for (int index = 0; index < share.parts; index++) {
        int tile, from, to;
        share.part(index, tile, from, to);
        int output_tile, token_tile;
        order.place(tile, output_tile, token_tile);
        const MatmulItem& item = items.of(output_tile);
        const uint8_t* weights = item.raw + (size_t)(output_tile - (int)item.first_tile) * share.blocks * S::WEIGHTS_BYTES;
        const uint8_t* x = x_tiles + (size_t)token_tile * share.blocks * SCALED_X_BYTES;
        for (int chunk = from; chunk < to; chunk++, step++) {
            const uint32_t at = base + step % SLOTS * S::BYTES;
            ring.begin_copies(step, S::BYTES);
            bulk_copy(at, weights + (size_t)chunk * S::WEIGHTS_BYTES, S::WEIGHTS_BYTES, ring.full(step));
            bulk_copy(at + S::WEIGHTS_BYTES, x + (size_t)chunk * SCALED_X_BYTES, S::X_BYTES, ring.full(step));
        }
    }
}

// Sums of a thread: outputs g and g + 8 of a warp's 16 in either half of the tile's 128, by 16 of the warpgroup's 64 tokens.
// Two halves rather than 128 tokens: a thread then loads 4 + 16 scales for its 64 chains and not 2 + 32, which would take as
// many cycles of shared memory as the chains take to issue.
using Sums = int[2][32];

// Signed 8-bit A and B in shared memory, int32 sums from zero, k = 32, 64 columns.
__device__ __forceinline__ void wgmma_s8_from_zero(int (&d)[32], uint64_t a, uint64_t b) {
    asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, 0, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "%32, %33, keep;\n}"
        :
          "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7]),
          "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]), "+r"(d[13]), "+r"(d[14]), "+r"(d[15]),
          "+r"(d[16]), "+r"(d[17]), "+r"(d[18]), "+r"(d[19]), "+r"(d[20]), "+r"(d[21]), "+r"(d[22]), "+r"(d[23]),
          "+r"(d[24]), "+r"(d[25]), "+r"(d[26]), "+r"(d[27]), "+r"(d[28]), "+r"(d[29]), "+r"(d[30]), "+r"(d[31])
        : "l"(a), "l"(b));
}

// Starts the product of a group; `sums` are not to be touched until it has ended.
__device__ __forceinline__ void start(Sums& sums, uint64_t weights, uint64_t x, int group) {
    wgmma_fence();
    wgmma_s8_from_zero(sums[0], weights + 2 * group, x + 2 * group);
    // 64 outputs further.
    wgmma_s8_from_zero(sums[1], weights + SCALED_CODES_BYTES / 2 / 16 + 2 * group, x + 2 * group);
    wgmma_commit();
}

// Waits for the product started last; the compiler reads its `sums` only behind this.
__device__ __forceinline__ void finish(Sums& sums) {
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < 64; i++) asm volatile("" : "+r"(sums[i / 32][i % 32])::"memory");
}

// Rule 4's chain over one group of the chunk at `slot`. `pair` is the thread's first pair of outputs, and `first` the number
// of its first four tokens.
template <bool MINS>
__device__ __forceinline__ void add_group(float (&acc)[64], const Sums& sums, const uint8_t* slot, int group, int pair,
                                          int first) {
    const float* of_outputs = (const float*)(slot + SCALED_CODES_BYTES) + (group * 64 + pair) * (MINS ? 4 : 2);
    float2 d[2], m[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float* of_pair = of_outputs + half * 32 * (MINS ? 4 : 2);
        d[half] = *(const float2*)of_pair;
        m[half] = MINS ? *(const float2*)(of_pair + 2) : make_float2(0.0f, 0.0f);
    }
    const float4* scales = (const float4*)(slot + Slot<MINS>::WEIGHTS_BYTES + SCALED_CODES_BYTES) + group * 32 + first;
    const float4* code_sums = scales + SCALED_GROUPS * 32;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float4 dy = scales[4 * i];
        const float4 s = MINS ? code_sums[4 * i] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        const float of_tokens[4] = {dy.x, dy.y, dy.z, dy.w}, sums_of_tokens[4] = {s.x, s.y, s.z, s.w};
#pragma unroll
        for (int k = 0; k < 16; k++) {
            const int half = k / 8, second = k / 2 % 2, token = k % 8 / 4 * 2 + k % 2, at = 8 * i + k % 8;
            float c = __fmaf_rn(second ? d[half].y : d[half].x, (float)sums[half][at], 0.0f);
            if (MINS) c = __fmaf_rn(second ? m[half].y : m[half].x, sums_of_tokens[token], c);
            acc[32 * half + at] = __fmaf_rn(of_tokens[token], c, acc[32 * half + at]);
        }
    }
}

// Multiplies the parts of this thread block; called by the WORKERS threads.
template <bool MINS>
__device__ __forceinline__ void multiply(const MatmulItems& items, const Share& share, const TileOrder& order, int tokens,
                                         const HandOver<WORKERS, 64>& hand_over, const Ring<SLOTS>& ring) {
    using S = Slot<MINS>;
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, g = lane / 4, t = lane % 4;
    const int warpgroup = warp / 4, row = warp % 4 * 16 + g, pair = warp % 4 * 8 + g, first = warpgroup * 16 + t;
    const uint32_t base = shared_address(slots);
    // Operands of a step: all outputs of the tile, and the 64 tokens of the warpgroup.
    auto weights = [&](int step) { return operand(base + step % SLOTS * S::BYTES); };
    auto x = [&](int step) {
        return operand(base + step % SLOTS * S::BYTES + S::WEIGHTS_BYTES + warpgroup * (SCALED_CODES_BYTES / 2));
    };
    float acc[64];
    Sums even, odd;
    int step = 0;
    for (int index = 0; index < share.parts; index++) {
        int tile, from, to;
        share.part(index, tile, from, to);
        if (from > 0) {
            hand_over.take(acc, thread);
        } else {
#pragma unroll
            for (int i = 0; i < 64; i++) acc[i] = 0.0f;
        }
        ring.wait_full(step);
        start(even, weights(step), x(step), 0);
        finish(even);
        // The product of the next group always runs while the chain goes through the sums of the one before. (The assembler
        // serialises products that are still running where a loop turns, so each is waited for behind that chain.)
        for (int chunk = from; chunk < to; chunk++, step++) {
            const uint8_t* slot = slots + step % SLOTS * S::BYTES;
            const uint64_t w = weights(step), y = x(step);
            start(odd, w, y, 1);
            add_group<MINS>(acc, even, slot, 0, pair, first);
            finish(odd);
            start(even, w, y, 2);
            // Every output's chain has gone on by a group since the chunk before, so all that was read of it has been used.
            if (step > 0 && lane == 0) ring.release(step - 1);
            add_group<MINS>(acc, odd, slot, 1, pair, first);
            finish(even);
            start(odd, w, y, 3);
            add_group<MINS>(acc, even, slot, 2, pair, first);
            finish(odd);
            // Behind the last chunk of a part the product of its first group once more, which nobody reads.
            const int next = chunk + 1 < to ? step + 1 : step;
            ring.wait_full(next);
            start(even, weights(next), x(next), 0);
            add_group<MINS>(acc, odd, slot, 3, pair, first);
            finish(even);
        }
        if (to < share.blocks) {
            hand_over.give(acc, thread);
            continue;
        }
        int output_tile, token_tile;
        order.place(tile, output_tile, token_tile);
        const int token = token_tile * SCALED_TOKENS + warpgroup * 64 + 2 * t;
        const MatmulItem& item = items.of(output_tile);
        const int output = (output_tile - (int)item.first_tile) * SCALED_OUTPUTS + row;
        store_share(item, reinterpret_cast<const float (&)[32]>(acc[0]), output, token, tokens);
        store_share(item, reinterpret_cast<const float (&)[32]>(acc[32]), output + 64, token, tokens);
    }
}

template <bool MINS>
__device__ __forceinline__ void matmul_tiles(const MatmulItems& items, const uint8_t* x_tiles, float* hand_over,
                                             uint32_t* flags, int tokens, int chunks, int output_tiles) {
    const Ring<SLOTS> ring{shared_address(slots) + SLOTS * Slot<MINS>::BYTES};
    if (threadIdx.x == 0) ring.init(WORKERS / 32);
    __syncthreads();
    let_next_start();
    wait_for_previous();
    const TileOrder order(output_tiles, (tokens + SCALED_TOKENS - 1) / SCALED_TOKENS, BAND);
    const Share share(order.tiles(), chunks, Share::most_waves(order.tiles()));
    if (threadIdx.x >= WORKERS) {
        give_registers<24>();
        if (threadIdx.x == WORKERS) copy_operands<MINS>(items, x_tiles, share, order, ring);
    } else {
        take_registers<240>();
        multiply<MINS>(items, share, order, tokens, {hand_over, flags, 1}, ring);
    }
}
#endif

// items: scaled tiles of types without mins; x_tiles as in ActivationForms. output_tiles counts the tiles of all items.
extern "C" __global__ void __launch_bounds__(WORKERS + 128, 1)
    matmul_scaled_tiles(const __grid_constant__ MatmulItems items, const uint8_t* x_tiles, float* hand_over,
                        uint32_t* flags, uint32_t tokens, uint32_t chunks, uint32_t output_tiles) {
#if HOPPER
    matmul_tiles<false>(items, x_tiles, hand_over, flags, (int)tokens, (int)chunks, (int)output_tiles);
#endif
}

// The same for types with mins.
extern "C" __global__ void __launch_bounds__(WORKERS + 128, 1)
    matmul_scaled_min_tiles(const __grid_constant__ MatmulItems items, const uint8_t* x_tiles, float* hand_over,
                            uint32_t* flags, uint32_t tokens, uint32_t chunks, uint32_t output_tiles) {
#if HOPPER
    matmul_tiles<true>(items, x_tiles, hand_over, flags, (int)tokens, (int)chunks, (int)output_tiles);
#endif
}
