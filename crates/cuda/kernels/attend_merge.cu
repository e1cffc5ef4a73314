// Merging of partial attention results (rule 9, merge and segments): the second half of attention where an item is a segment or
// a page. Serves every attend kernel.
//
// A block owns 32 dimensions of one query. It brings up to 128 partial results into shared memory at once, then folds them:
// pages of different segments on different warps, then the segments, or partial results of segments, in ascending order on one
// warp. Up to 16 are folded at a time: the factors in parallel (the running maximum is exact, so a scan gives the same
// exponents), then one chain of fmas.
//
// Roofline: reads each partial result once, 4 (head_dim + 4) bytes a query, mostly from L2; bound by the latency of one load
// and of the chain, two fmas a partial result.
#include "attend.cuh"

namespace {

constexpr int MERGE_WARPS = 4;
constexpr int MERGE_THREADS = 32 * MERGE_WARPS;
constexpr int SLICE = 32;    // dimensions of a block
constexpr int STAGED = 128;  // partial results in shared memory
constexpr int AT_ONCE = 16;  // partial results folded at once; also the pages of a segment

// The partial results of one tile, in ascending order.
struct MergeTile {
    uint32_t sequence;
    uint32_t first_query;
    uint32_t partial;     // index of the first
    uint32_t partials;
    uint32_t first_page;  // of the first
    uint32_t kind;        // SEGMENT or PAGE
};

// Arguments of merge_partials.
struct Merging {
    const MergeTile* tiles;
    Attention attention;
    uint64_t head_dim;
};

struct Shared {
    alignas(16) float4 sums[STAGED];
    alignas(16) float value[STAGED][SLICE];
    // Of the staged segments.
    float m[STAGED / AT_ONCE], l[STAGED / AT_ONCE], o[STAGED / AT_ONCE][SLICE];
};

// (m, l, O) over partial results, the same in every lane but for O, which is the lane's dimension.
struct Running {
    float m = -infinity(), l = 0.0f, o = 0.0f;

    // Folds `count` <= 16 staged partial results from `first` on. Those of which the query saw nothing have h = -inf and are
    // passed over.
    __device__ __forceinline__ void fold(const Shared& sh, uint32_t first, uint32_t count) {
        const uint32_t lane = threadIdx.x % 32;
        const float4 sums = lane < count ? sh.sums[first + lane] : make_float4(-infinity(), 0.0f, 0.0f, 0.0f);
        const uint32_t seen = __ballot_sync(ALL_LANES, sums.x != -infinity());
        float running = lane == 0 ? fmaxf(m, sums.x) : sums.x;
#pragma unroll
        for (int distance = 1; distance < AT_ONCE; distance *= 2) {
            const float before = __shfl_up_sync(ALL_LANES, running, distance);
            if (lane >= distance) running = fmaxf(running, before);
        }
        float before = __shfl_up_sync(ALL_LANES, running, 1);
        if (lane == 0) before = m;
        const float old = pow2(before - running), fresh = pow2(sums.x - running);
        const float gain = __fmul_rn(fresh, sums.z), added = __fmul_rn(fresh, sums.y);
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const float old_k = __shfl_sync(ALL_LANES, old, k), gain_k = __shfl_sync(ALL_LANES, gain, k);
            const float added_k = __shfl_sync(ALL_LANES, added, k);
            if (!(seen >> k & 1)) continue;
            l = __fmaf_rn(l, old_k, added_k);
            o = __fmaf_rn(sh.value[first + k][lane], gain_k, __fmul_rn(o, old_k));
        }
        m = __shfl_sync(ALL_LANES, running, AT_ONCE - 1);
    }

    // Merges a segment, unless nothing of it was seen.
    __device__ __forceinline__ void merge(float segment_m, float segment_l, float segment_o) {
        if (segment_m == -infinity()) return;
        const Merge merge(m, segment_m);
        l = merge.sum(l, segment_l);
        o = __fmaf_rn(segment_o, merge.fresh, __fmul_rn(o, merge.old));
    }
};

__device__ __forceinline__ void copy_16_bytes(void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(uint32_t(__cvta_generic_to_shared(to))), "l"(from) : "memory");
}

// Brings `count` partial results into shared memory. `first`: index of the first one's sums; the next ones' follow at `stride`.
__device__ __forceinline__ void stage(Shared& sh, const Merging& p, uint64_t first, uint64_t stride, uint32_t slice, uint32_t count) {
    const Attention& a = p.attention;
    if (threadIdx.x < count) copy_16_bytes(&sh.sums[threadIdx.x], &a.partial_sums[first + threadIdx.x * stride]);
    for (uint32_t i = threadIdx.x; i < count * (SLICE / 4); i += MERGE_THREADS) {
        const uint32_t k = i / (SLICE / 4), at = i % (SLICE / 4) * 4;
        copy_16_bytes(&sh.value[k][at], &a.partial_outputs[(first + k * stride) * p.head_dim + slice * SLICE + at]);
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
}

}  // namespace

// Grid: (tiles * 16 * head_dim / 32, kv_heads). Writes the output of every query; what is not finite becomes zero and its row is
// reported.
extern "C" __global__ void __launch_bounds__(MERGE_THREADS, 8) merge_partials(const __grid_constant__ Merging p) {
    __shared__ Shared sh;
    const Attention& a = p.attention;
    const uint32_t slices = uint32_t(p.head_dim) / SLICE, slice = blockIdx.x % slices, q = blockIdx.x / slices % TILE_QUERIES;
    const MergeTile tile = p.tiles[blockIdx.x / slices / TILE_QUERIES];
    const Query query(a, a.sequences[tile.sequence], tile.first_query + q, blockIdx.y, uint32_t(p.head_dim));
    begin_dependent();
    if (!query.exists()) return;

    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint64_t stride = uint64_t(a.kv_heads) * TILE_QUERIES;
    Running total;
#pragma unroll 1
    for (uint32_t start = 0; start < tile.partials;) {
        uint32_t count = min(tile.partials - start, uint32_t(STAGED));
        const uint32_t skipped = (tile.first_page + start) % SEGMENT_PAGES;  // pages of the first segment before `start`
        if (tile.kind == PAGE) count = min(count, STAGED - skipped);
        const uint64_t first = (uint64_t(tile.partial + start) * a.kv_heads + blockIdx.y) * TILE_QUERIES + q;
        stage(sh, p, first, stride, slice, count);
        if (tile.kind == PAGE) {
            const uint32_t segments = (skipped + count + SEGMENT_PAGES - 1) / SEGMENT_PAGES;
#pragma unroll 1
            for (uint32_t s = warp; s < segments; s += MERGE_WARPS) {
                const uint32_t from = max(s * SEGMENT_PAGES, skipped) - skipped;
                Running segment;
                segment.fold(sh, from, min((s + 1) * SEGMENT_PAGES - skipped, count) - from);
                sh.o[s][lane] = segment.o;
                if (lane == 0) sh.m[s] = segment.m, sh.l[s] = segment.l;
            }
            __syncthreads();
            if (warp == 0) {
                for (uint32_t s = 0; s < segments; s++) total.merge(sh.m[s], sh.l[s], sh.o[s][lane]);
            }
        } else if (warp == 0) {
#pragma unroll 1
            for (uint32_t k = 0; k < count; k += AT_ONCE) total.fold(sh, k, min(count - k, uint32_t(AT_ONCE)));
        }
        start += count;
        if (start < tile.partials) __syncthreads();  // what is staged has been read
    }
    if (warp != 0) return;
    const float result = __fmul_rn(total.o, __fdiv_rn(1.0f, total.l));
    const bool fine = is_finite(result);
    if (!__all_sync(ALL_LANES, fine) && lane == 0) report(a.status, query.row, a.place);
    a.out[query.element + slice * SLICE + lane] = fine ? result : 0.0f;
}
