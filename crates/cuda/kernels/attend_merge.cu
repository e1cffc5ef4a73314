// Merging of partial attention results (rule 9, merge and segments): the second half of attention where an item is a segment or
// a page. Serves every attend kernel.
//
// A warp owns 32 dimensions of one query. It takes up to 16 partial results at a time: all loads first, the factors in
// parallel (the running maximum is exact, so a scan gives the same exponents), then one chain of fmas in ascending order.
//
// Roofline: reads each partial result once, 4 (head_dim + 4) bytes a query, mostly from L2; bound by the latency of
// partials / 16 rounds of loads.
#include "attend.cuh"

namespace {

constexpr int MERGE_WARPS = 4;
constexpr int AT_ONCE = 16;

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

// (m, l, O) over partial results: O is one dimension per lane.
struct Running {
    float m = -infinity(), l = 0.0f, o = 0.0f;

    // Merges `count` <= 16 partial results. Lane k < count holds sums k; value[k] is O of partial k in this lane's dimension.
    // Partial results of which the query saw nothing have h = -inf and are passed over.
    __device__ __forceinline__ void merge(float4 sums, const float (&value)[AT_ONCE]) {
        const int lane = threadIdx.x % 32;
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
        const float gain = fresh * sums.z, added = fresh * sums.y;
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const float old_k = __shfl_sync(ALL_LANES, old, k), gain_k = __shfl_sync(ALL_LANES, gain, k);
            const float added_k = __shfl_sync(ALL_LANES, added, k);
            if (!(seen >> k & 1)) continue;
            l = __fmaf_rn(l, old_k, added_k);
            o = __fmaf_rn(value[k], gain_k, __fmul_rn(o, old_k));
        }
        m = __shfl_sync(ALL_LANES, running, AT_ONCE - 1);
    }

    // Merges a segment, unless nothing of it was seen.
    __device__ __forceinline__ void merge(const Running& segment) {
        if (segment.m == -infinity()) return;
        const Merge merge(m, segment.m);
        l = merge.sum(l, segment.l);
        o = __fmaf_rn(segment.o, merge.fresh, __fmul_rn(o, merge.old));
    }
};

}  // namespace

// Grid: (tiles * 16 * head_dim / 32 / MERGE_WARPS, kv_heads). Writes the output of every query; what is not finite becomes zero
// and its row is reported. Without the second bound ptxas 13.0 fails to allocate registers for sm_90a.
extern "C" __global__ void __launch_bounds__(32 * MERGE_WARPS, 8) merge_partials(const __grid_constant__ Merging p) {
    begin_dependent();
    const Attention& a = p.attention;
    const uint32_t head_dim = uint32_t(p.head_dim), slices = head_dim / 32;
    const uint32_t warp = blockIdx.x * MERGE_WARPS + threadIdx.x / 32, lane = threadIdx.x % 32, kv_head = blockIdx.y;
    const MergeTile tile = p.tiles[warp / (TILE_QUERIES * slices)];
    const uint32_t q = warp / slices % TILE_QUERIES, d = warp % slices * 32 + lane;
    const Query query(a, a.sequences[tile.sequence], tile.first_query + q, kv_head, head_dim);
    if (!query.exists()) return;

    Running total;
#pragma unroll 1
    for (uint32_t start = 0; start < tile.partials;) {
        uint32_t count = min(tile.partials - start, uint32_t(AT_ONCE));
        // Pages are merged segment by segment.
        if (tile.kind == PAGE) count = min(count, SEGMENT_PAGES - (tile.first_page + start) % SEGMENT_PAGES);
        const uint64_t stride = uint64_t(a.kv_heads) * TILE_QUERIES;
        const uint64_t first = (uint64_t(tile.partial + start) * a.kv_heads + kv_head) * TILE_QUERIES + q;
        float4 sums = make_float4(-infinity(), 0.0f, 0.0f, 0.0f);
        if (lane < count) sums = a.partial_sums[first + lane * stride];
        float value[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            value[k] = k < count ? a.partial_outputs[(first + k * stride) * head_dim + d] : 0.0f;
        }
        if (tile.kind == PAGE) {
            Running segment;
            segment.merge(sums, value);
            total.merge(segment);
        } else {
            total.merge(sums, value);
        }
        start += count;
    }
    float result = __fmul_rn(total.o, __fdiv_rn(1.0f, total.l));
    const bool fine = is_finite(result);
    if (!__all_sync(ALL_LANES, fine) && lane == 0) report(a.status, query.row, a.place);
    a.out[query.element + d] = fine ? result : 0.0f;
}
