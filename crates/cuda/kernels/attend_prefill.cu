// Attention for many rows over q8 pages, head_dim 128, on Hopper's matrix instructions (sm_90a). The same bits as attend_q8.cu.
//
// Three kernels: expand_pages writes the visible pages of a layer as f16 tiles, expand_queries the queries' codes, and
// attend_prefill_d128 attends. A tile is 128 queries, (row, head) pairs of one sequence and key-value head in order, so that
// the queries of a warp belong to one or two rows and a mask is nearly uniform over it. One warp copies pages into a ring of
// four slots, two warpgroups of 64 queries compute.
//
// Exact although f16 with f32 sums: every operand is an integer of at most 11 bits (times a power of two) and every sum stays
// within 2^24. Scores: codes of 1,023 and 128 over 128 dimensions, 16,760,832. Values: a weight pq in [0, 2048] is used as
// the f16 with those bits, pq * 2^-24 (a subnormal below 1,024); 64 * 2048 * 128 = 2^24, so sums are exact multiples of
// 2^-24.
//
// A page whose visible keys are all of its 64, for every query of a warp, takes a path without masks, if its scales allow
// that to be exact (PageScales::clean). All other pages take a path that masks every key and checks every score.
//
// Roofline: 4 * 128 flops per visible pair at head_dim 128. Per page and warpgroup 64 x 64 x 128 + 64 x 128 x 64 products, 512
// cycles of the matrix units for both; about 600 instructions a warp, so that the eight warps of a processor issue for 1,200
// of the 1,024 cycles: softmax is the bound. Scores come from operands in shared memory and run beside the softmax of the page
// before; a product with its codes in registers, as that of the values, keeps its warps until they are read. Measured on an
// H200 (bench_ops attend): 2,048 rows at 129,024 in 11.2 ms, the two expansions included, 390 TFLOPS on visible pairs of the
// 830 that wgmma reaches; a page takes 2,500 cycles, in which 56 % of the issue slots are used. With two warps a scheduler, what
// is missing is a third one to fill the waits of shuffles and values; 240 registers a thread leave no room for it.
#include "attend.cuh"
#include "attend_products.cuh"
#include "heads.cuh"

namespace {

constexpr int DIM = 128;
constexpr int PREFILL_QUERIES = 128;
constexpr int WARPGROUPS = 2;
constexpr int PREFILL_THREADS = 128 * (WARPGROUPS + 1);
constexpr int QUERY_BYTES = PREFILL_QUERIES * DIM * 2;
constexpr int PAGE_BYTES = 2 * PAGE_ROWS * DIM * 2;

// A page to expand: the sequence and its absolute index.
struct Expansion {
    uint32_t sequence;
    uint32_t page;
};

// A tile whose queries are to be expanded.
struct QueryTile {
    uint32_t sequence;
    uint32_t first_query;
};

// Work of one block for one key-value head.
struct PrefillItem {
    uint32_t sequence;
    uint32_t first_query;
    uint32_t first_page;
    uint32_t pages;
    uint32_t expanded;  // index of the first page among the expanded ones
    uint32_t tile;      // index of its queries among the expanded ones
    uint32_t kind;      // WHOLE or SEGMENT
    uint32_t partial;   // partial results of query tile i (of 16): partial + i * partials ... + partials - 1, one a segment
    uint32_t partials;
    uint32_t first_segment;  // of the tile: partial 0
};

// Scales of an expanded page. All but the last array are copied into shared memory.
struct PageScales {
    float key[PAGE_ROWS];
    float weight[PAGE_ROWS];  // RN(value scale * 2^(11 - E)), E over all 64 rows: for pages that are seen whole
    float unit;               // 2^(E - 11); 1 where not `clean`
    uint32_t clean;           // 1: every score is finite and no value scale is refused, whatever the query
    uint32_t unused[2];
    float value[PAGE_ROWS];
};
constexpr int SCALE_BYTES = offsetof(PageScales, value);
static_assert(SCALE_BYTES % 16 == 0 && sizeof(PageScales) % 16 == 0, "copied in units of 16 bytes");

// Arguments of the three kernels.
struct Prefill {
    Attention attention;
    const PrefillItem* items;
    const Expansion* expansions;
    const QueryTile* tiles;
    uint8_t* pages;        // [expanded pages][kv_heads][PAGE_BYTES]
    PageScales* scales;    // [expanded pages][kv_heads]
    uint8_t* queries;      // [tiles][kv_heads][QUERY_BYTES]
    float* query_scales;   // [tiles][kv_heads][128]
    uint64_t tile_count;
};

// Offset of byte `byte` of line `row` of 128 bytes in the 128-byte swizzle.
__device__ __forceinline__ int swizzled(int row, int byte) { return row * 128 + ((((byte >> 4) ^ (row & 7)) << 4) | (byte & 15)); }

__device__ __forceinline__ uint4 eight_halves(const int8_t (&codes)[8]) {
    __half halves[8];
#pragma unroll
    for (int i = 0; i < 8; i++) halves[i] = __int2half_rn(codes[i]);
    return *reinterpret_cast<const uint4*>(halves);
}

}  // namespace

// Codes of the pages as f16: keys [64][128] as two swizzled tiles of 64 dimensions, values [128][64] as one; and their scales.
// Grid: (expanded pages, kv_heads).
extern "C" __global__ void __launch_bounds__(256) expand_pages(const __grid_constant__ Prefill p) {
    begin_dependent();
    const Expansion expansion = p.expansions[blockIdx.x];
    const Attention& a = p.attention;
    const uint64_t index = uint64_t(blockIdx.x) * a.kv_heads + blockIdx.y;
    const uint8_t* part = page_address(a.sequences[expansion.sequence], a.page_table, expansion.page) +
                          uint64_t(blockIdx.y) * head_bytes<true>(DIM);
    uint8_t* to = p.pages + index * PAGE_BYTES;
#pragma unroll
    for (int i = threadIdx.x; i < 2 * PAGE_ROWS * DIM / 8; i += 256) {
        const uint2 word = __ldcs(reinterpret_cast<const uint2*>(part) + i);
        int8_t codes[8];
        *reinterpret_cast<uint2*>(codes) = word;
        // 16 units of 8 codes a key, then 8 units a dimension of the values.
        const int unit = i < PAGE_ROWS * DIM / 8 ? i % 16 : i % 8;
        const int row = i < PAGE_ROWS * DIM / 8 ? i / 16 : (i - PAGE_ROWS * DIM / 8) / 8;
        const int tile = i < PAGE_ROWS * DIM / 8 ? unit / 8 * 8192 : 16384;
        *reinterpret_cast<uint4*>(to + tile + swizzled(row, unit % 8 * 16)) = eight_halves(codes);
    }
    const uint8_t* scales = part + 2 * PAGE_ROWS * DIM;
    const bool has_row = threadIdx.x < PAGE_ROWS;
    const float key = has_row ? reinterpret_cast<const float*>(scales)[threadIdx.x] : 0.0f;
    const uint32_t value = has_row ? reinterpret_cast<const uint32_t*>(scales)[PAGE_ROWS + threadIdx.x] : 0;
    __shared__ uint32_t largest;
    if (threadIdx.x == 0) largest = 0;
    __syncthreads();
    atomicMax(&largest, value);
    // |score| <= 2^24 * 2^100, and the merge's factors stay finite for value scales up to 2^100.
    const bool clean = fabsf(key) <= 0x1p100f && value <= __float_as_uint(0x1p100f);
    const bool all_clean = __syncthreads_and(clean);
    const int exponent = ValueScale{largest}.exponent();
    PageScales& out = p.scales[index];
    if (has_row) {
        out.key[threadIdx.x] = key;
        out.weight[threadIdx.x] = __fmul_rn(__uint_as_float(value), pow2(11 - exponent));
        out.value[threadIdx.x] = __uint_as_float(value);
    }
    if (threadIdx.x == 0) out.unit = all_clean ? pow2(exponent - 11) : 1.0f, out.clean = all_clean;
}

// Codes of the queries (rule 9 with 1023) as f16 tiles: two halves of 64 queries, each two swizzled tiles of 64 dimensions.
// Queries that do not exist become zeros. Grid: a warp per (tile, kv_head, query).
extern "C" __global__ void __launch_bounds__(256) expand_queries(const __grid_constant__ Prefill p) {
    begin_dependent();
    const Attention& a = p.attention;
    const uint32_t warp = blockIdx.x * 8 + threadIdx.x / 32, q = warp % PREFILL_QUERIES;
    const uint32_t kv_head = warp / PREFILL_QUERIES % a.kv_heads, tile = warp / PREFILL_QUERIES / a.kv_heads;
    if (tile >= p.tile_count) return;
    const QueryTile of = p.tiles[tile];
    const Query query(a, a.sequences[of.sequence], of.first_query + q, kv_head, DIM);
    HeadVector<DIM / 32> v;
#pragma unroll
    for (int j = 0; j < DIM / 32; j++) v.x[j] = 0.0f;
    if (query.exists()) v.load(a.queries + query.element);
    int code[DIM / 32];
    float scale;
    if (!v.codes(1023.0f, code, scale)) scale = not_a_number();
    const uint64_t index = uint64_t(tile) * a.kv_heads + kv_head;
    uint8_t* to = p.queries + index * QUERY_BYTES + q / 64 * 16384;
#pragma unroll
    for (int j = 0; j < DIM / 32; j++) {
        const int d = v.lane() + 32 * j;
        *reinterpret_cast<__half*>(to + d / 64 * 8192 + swizzled(q % 64, d % 64 * 2)) = __int2half_rn(code[j]);
    }
    if (v.lane() == 0) p.query_scales[index * PREFILL_QUERIES + q] = __fmul_rn(scale, a.score_scale);
}

#if HOPPER
namespace {

// Dynamic shared memory: the totals of both warpgroups, the codes of the queries, the ring of pages, their scales, the barriers.
constexpr int TOTAL_BYTES = PREFILL_QUERIES * DIM * 4;
constexpr int SLOTS = 4;
constexpr int RING = TOTAL_BYTES + QUERY_BYTES;
constexpr int SCALES = RING + SLOTS * PAGE_BYTES;
constexpr int BARRIERS = SCALES + SLOTS * SCALE_BYTES;

// One thread's part of a warpgroup's softmax: queries g and g + 8 of its warp (half 0 and 1), columns 2 t and 2 t + 1 of every
// eight keys or dimensions. Index 4 j + 2 half + i of an accumulator is column 8 j + 2 t + i.
struct PrefillThread {
    const Attention& a;
    uint32_t whole_first, whole_pages;  // pages of which every query of the warp sees every key
    float scale[2];              // cq of rule 9

    // Weights of a page as operand A of the products with the values, and what merging needs.
    struct Weights {
        uint32_t code[16];
        float h[2], sum[2], gain[2];  // gain: what O_t * 2^-24 is multiplied with, besides 2^(h - m)
        bool seen[2];
    };

    __device__ __forceinline__ static int column() { return threadIdx.x % 4; }

    // The largest of, or the sum over, the four threads that share a query.
    __device__ __forceinline__ static float across(float x, bool is_max) {
#pragma unroll
        for (int distance = 1; distance < 4; distance *= 2) {
            const float other = __shfl_xor_sync(ALL_LANES, x, distance);
            x = is_max ? fmaxf(x, other) : __fadd_rn(x, other);
        }
        return x;
    }

    __device__ __forceinline__ static uint32_t code_of(float p, float weight) {
        return __float_as_uint(__fmaf_rn(p, weight, ROUND_TO_INTEGER));
    }

    // A page that is clean and seen whole.
    __device__ __forceinline__ void weigh_all(const float (&score)[32], const PageScales& page, float unit, Weights& w) const {
        const int t = column();
        float largest[2] = {fmaxf(score[0], score[1]), fmaxf(score[2], score[3])};
#pragma unroll
        for (int j = 1; j < 8; j++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                largest[half] = fmaxf(largest[half], fmaxf(score[4 * j + 2 * half], score[4 * j + 2 * half + 1]));
            }
        float slope[2], shift[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            w.h[half] = tile_exponent(across(largest[half], true), scale[half]);
            slope[half] = scale[half] * 0.015625f;
            shift[half] = __fmaf_rn(w.h[half], -0.015625f, 1.0f);
            w.gain[half] = unit;
            w.seen[half] = true;
        }
        float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float2 weight = *reinterpret_cast<const float2*>(&page.weight[8 * j + 2 * t]);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float p0 = softmax_weight(fma_unit(score[4 * j + 2 * half], slope[half], shift[half]));
                const float p1 = softmax_weight(fma_unit(score[4 * j + 2 * half + 1], slope[half], shift[half]));
                sum[2 * half] = __fadd_rn(sum[2 * half], p0);
                sum[2 * half + 1] = __fadd_rn(sum[2 * half + 1], p1);
                w.code[2 * j + half] = __byte_perm(code_of(p0, weight.x), code_of(p1, weight.y), 0x5410);
            }
        }
#pragma unroll
        for (int half = 0; half < 2; half++) w.sum[half] = __fadd_rn(sum[2 * half], sum[2 * half + 1]);
    }

    // Any page: every key is masked, every score and value scale checked.
    __device__ __forceinline__ void weigh_masked(const float (&score)[32], const float* value_scales, const PrefillItem& item,
                                                 int index, Weights& w) const {
        const int t = column();
#pragma unroll
        for (int half = 0; half < 2; half++) {
            // Few pages come here: the position is worked out again rather than kept.
            const uint32_t query = item.first_query + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + 8 * half;
            const VisibleRows rows(Query(a, a.sequences[item.sequence], query, 0, DIM).position, int(a.window), index);
            float largest = -infinity();
            ValueScale value = {0};
#pragma unroll
            for (int j = 0; j < 8; j++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const int key = 8 * j + 2 * t + i;
                    const bool seen = rows.contains(key);
                    largest = fmaxf(largest, seen ? candidate(score[4 * j + 2 * half + i]) : -infinity());
                    value.largest = max(value.largest, __float_as_uint(where_seen(seen, value_scales[key])));
                }
#pragma unroll
            for (int distance = 1; distance < 4; distance *= 2) {
                value.largest = max(value.largest, __shfl_xor_sync(ALL_LANES, value.largest, distance));
            }
            const float h = tile_exponent(across(largest, true), scale[half]);
            const float slope = scale[half] * 0.015625f, shift = __fmaf_rn(h, -0.015625f, 1.0f);
            const float up = pow2(11 - value.exponent());
            float sum[2] = {0.0f, 0.0f};
#pragma unroll
            for (int j = 0; j < 8; j++) {
                uint32_t code[2];
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const int key = 8 * j + 2 * t + i;
                    const bool seen = rows.contains(key);
                    const float p = where_seen(seen, softmax_weight(fma_unit(score[4 * j + 2 * half + i], slope, shift)));
                    sum[i] = __fadd_rn(sum[i], p);
                    // Of +0 and a scale made +0, the code is 0.
                    code[i] = code_of(p, __fmul_rn(where_seen(seen, value_scales[key]), up));
                }
                w.code[2 * j + half] = __byte_perm(code[0], code[1], 0x5410);
            }
            w.h[half] = h;
            w.sum[half] = value.refused() ? not_a_number() : __fadd_rn(sum[0], sum[1]);
            w.gain[half] = pow2(value.exponent() - 11);
            w.seen[half] = rows.any();
        }
    }
};

// Running m, l of two queries.
struct PrefillSums {
    float m[2] = {-infinity(), -infinity()}, l[2] = {0.0f, 0.0f};
};

// Copies the queries of the item and then its pages, as slots become free. One thread.
__device__ __forceinline__ void copy_pages(const Prefill& p, const PrefillItem& item, uint32_t kv_head, uint32_t shared,
                                           uint32_t filled, uint32_t freed, uint32_t queries_filled) {
    const uint64_t tile = uint64_t(item.tile) * p.attention.kv_heads + kv_head;
    barrier_expect(queries_filled, QUERY_BYTES);
    bulk_copy(shared + TOTAL_BYTES, p.queries + tile * QUERY_BYTES, QUERY_BYTES, queries_filled);
    for (uint32_t i = 0; i < item.pages; i++) {
        const uint32_t slot = i % SLOTS;
        const uint64_t page = uint64_t(item.expanded + i) * p.attention.kv_heads + kv_head;
        barrier_wait(freed + 8 * slot, (i / SLOTS & 1) ^ 1);
        barrier_expect(filled + 8 * slot, PAGE_BYTES + SCALE_BYTES);
        bulk_copy(shared + RING + slot * PAGE_BYTES, p.pages + page * PAGE_BYTES, PAGE_BYTES, filled + 8 * slot);
        bulk_copy(shared + SCALES + slot * SCALE_BYTES, p.scales + page, SCALE_BYTES, filled + 8 * slot);
    }
}

}  // namespace
#endif  // HOPPER

extern __shared__ __align__(1024) uint8_t dynamic_shared[];

// Grid: items * kv_heads, longest items first.
extern "C" __global__ void __launch_bounds__(PREFILL_THREADS, 1) attend_prefill_d128(const __grid_constant__ Prefill p) {
#if HOPPER
    begin_dependent();
    const Attention& a = p.attention;
    const PrefillItem& item = p.items[blockIdx.x / a.kv_heads];
    const uint32_t kv_head = blockIdx.x % a.kv_heads;
    const uint32_t shared = shared_address(dynamic_shared);
    const uint32_t filled = shared + BARRIERS, freed = filled + 8 * SLOTS, queries_filled = freed + 8 * SLOTS;
    if (threadIdx.x == 0) {
        for (int i = 0; i < SLOTS; i++) {
            barrier_init(filled + 8 * i, 1);
            barrier_init(freed + 8 * i, 4 * WARPGROUPS);
        }
        barrier_init(queries_filled, 1);
        barrier_init_done();
    }
    __syncthreads();
    const int warpgroup = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    if (warpgroup == WARPGROUPS) {
        give_registers<24>();
        if (threadIdx.x == 128 * WARPGROUPS) copy_pages(p, item, kv_head, shared, filled, freed, queries_filled);
        return;
    }
    take_registers<240>();

    const Sequence s = a.sequences[item.sequence];
    const uint32_t first_query = item.first_query + warpgroup * 64 + warp * 16;
    const uint32_t last_query = min(first_query + 15, s.rows * a.group - 1);
    const float* query_scales = p.query_scales + (uint64_t(item.tile) * a.kv_heads + kv_head) * PREFILL_QUERIES;
    const int in_tile = warpgroup * 64 + warp * 16 + g;
    const int last = int(s.position + last_query / a.group), window = int(a.window);
    const uint32_t whole_first = window > 0 && last >= window ? (last - window) / PAGE_ROWS + 1 : 0;
    const uint32_t whole_end = (uint32_t(s.position) + min(first_query, last_query) / a.group + 1) / PAGE_ROWS;
    const PrefillThread thread = {
        a,
        whole_first,
        whole_end > whole_first ? whole_end - whole_first : 0,
        {query_scales[in_tile], query_scales[in_tile + 8]},
    };
    const uint32_t pages = item.pages, first_page = item.first_page;

    // The total over the segments so far, by thread.
    float4* total = reinterpret_cast<float4*>(dynamic_shared) + threadIdx.x;
#pragma unroll
    for (int j = 0; j < 16; j++) total[256 * j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);

    float score[32], tile[64], o[64];
    // The same in all lanes: through a reduction the compiler knows it, and keeps it where products want it.
    const uint32_t codes = __reduce_or_sync(ALL_LANES, operand_low(shared + TOTAL_BYTES + warpgroup * 16384));
#pragma unroll
    for (int i = 0; i < 64; i++) o[i] = 0.0f;
    PrefillSums segment, whole;
    auto start_scores = [&](uint32_t slot) {
        const uint32_t keys = operand_low(shared + RING + slot * PAGE_BYTES);
        wgmma_fence();
        product_start(score, codes, keys);
#pragma unroll
        for (int k = 1; k < 8; k++) {
            const int along = k / 4 * 512 + k % 4 * 2;
            product_add(score, codes + along, keys + along);
        }
        wgmma_commit();
    };
    // Says that this warp is done with a page: its products are complete, and so are the loads of its scales: those of keys and
    // weights went into the products, and the address takes the sign of the last one, which is 0.
    auto free_slot = [&](uint32_t slot, float unit) {
        if (lane == 0) barrier_arrive(freed + 8 * slot + (__float_as_uint(unit) >> 31));
    };
    barrier_wait(queries_filled, 0);
    barrier_wait(filled, 0);
    start_scores(0);
#pragma unroll 1
    for (uint32_t i = 0; i < pages; i++) {
        const uint32_t slot = i % SLOTS;
        const int index = int(first_page + i);
        const PageScales& page = *reinterpret_cast<const PageScales*>(dynamic_shared + SCALES + slot * SCALE_BYTES);
        const float unit = page.unit;
        // Complete since the page before, but for the first.
        wgmma_wait<0>();
        accumulators_ready(score);
        float scaled[32];
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float2 key = *reinterpret_cast<const float2*>(&page.key[8 * j + 2 * t]);
            scaled[4 * j] = __fmul_rn(score[4 * j], key.x), scaled[4 * j + 1] = __fmul_rn(score[4 * j + 1], key.y);
            scaled[4 * j + 2] = __fmul_rn(score[4 * j + 2], key.x), scaled[4 * j + 3] = __fmul_rn(score[4 * j + 3], key.y);
        }
        // The scores of the next page are multiplied while this one is weighed.
        const uint32_t next = min(i + 1, pages - 1);
        barrier_wait(filled + 8 * (next % SLOTS), next / SLOTS & 1);
        start_scores(next % SLOTS);
        PrefillThread::Weights w;
        const bool all = __all_sync(ALL_LANES, (page.clean != 0) & (uint32_t(index) - thread.whole_first < thread.whole_pages));
        if (all) {
            thread.weigh_all(scaled, page, unit, w);
        } else {
            const uint64_t expanded = uint64_t(item.expanded + i) * a.kv_heads + kv_head;
            thread.weigh_masked(scaled, p.scales[expanded].value, item, index, w);
        }

        wgmma_fence();
        const uint32_t values = operand_low(shared + RING + slot * PAGE_BYTES + 16384);
        product_start(tile, w.code, values);
#pragma unroll
        for (int k = 1; k < 4; k++) product_add(tile, w.code + 4 * k, values + 2 * k);
        wgmma_commit();

        float old[2], gain[2];
        if (all) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float l_t = checked_sum(PrefillThread::across(w.sum[half], false), w.h[half]);
                const Merge merge(segment.m[half], w.h[half]);
                segment.l[half] = merge.sum(segment.l[half], l_t);
                // 2^24 turns `tile` into O_t; a clean page's gain has room for it, and the product is exact.
                old[half] = merge.old, gain[half] = __fmul_rn(__fmul_rn(merge.fresh, w.gain[half]), 0x1p24f);
            }
            wgmma_wait<0>();
            accumulators_ready(tile);
            free_slot(slot, unit);
            if (__any_sync(ALL_LANES, old[0] != 1.0f || old[1] != 1.0f)) {
#pragma unroll
                for (int k = 0; k < 64; k++) o[k] = __fmul_rn(o[k], old[k / 2 % 2]);
            }
#pragma unroll
            for (int k = 0; k < 64; k++) o[k] = __fmaf_rn(tile[k], gain[k / 2 % 2], o[k]);
        } else {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float l_t = checked_sum(PrefillThread::across(w.sum[half], false), w.h[half]);
                old[half] = 1.0f, gain[half] = 0.0f;
                if (!w.seen[half]) continue;
                const Merge merge(segment.m[half], w.h[half]);
                segment.l[half] = merge.sum(segment.l[half], l_t);
                old[half] = merge.old, gain[half] = __fmul_rn(merge.fresh, w.gain[half]);
            }
            wgmma_wait<0>();
            accumulators_ready(tile);
            free_slot(slot, unit);
#pragma unroll
            for (int k = 0; k < 64; k++) {
                const int half = k / 2 % 2;
                if (w.seen[half]) o[k] = __fmaf_rn(__fmul_rn(tile[k], 0x1p24f), gain[half], __fmul_rn(o[k], old[half]));
            }
        }

        if (uint32_t(index) % SEGMENT_PAGES != SEGMENT_PAGES - 1 && i + 1 != pages) continue;
        // The end of a segment.
        if (item.kind == SEGMENT) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int q = in_tile + 8 * half;
                const uint32_t segment_index = uint32_t(index) / SEGMENT_PAGES - item.first_segment;
                const uint64_t partial = item.partial + q / TILE_QUERIES * item.partials + segment_index;
                const uint64_t at = (partial * a.kv_heads + kv_head) * TILE_QUERIES + q % TILE_QUERIES;
                if (t == 0) a.partial_sums[at] = make_float4(segment.m[half], segment.l[half], 1.0f, 0.0f);
#pragma unroll
                for (int j = 0; j < 16; j++) {
                    float* to = a.partial_outputs + at * DIM + 8 * j + 2 * t;
                    *reinterpret_cast<float2*>(to) = make_float2(o[4 * j + 2 * half], o[4 * j + 2 * half + 1]);
                }
            }
        } else {
            float old_total[2], fresh[2];
            bool seen[2];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                seen[half] = segment.m[half] != -infinity();
                const float m = seen[half] ? segment.m[half] : whole.m[half];
                const Merge merge(whole.m[half], m);
                if (seen[half]) whole.l[half] = merge.sum(whole.l[half], segment.l[half]);
                old_total[half] = merge.old, fresh[half] = merge.fresh;
            }
#pragma unroll
            for (int j = 0; j < 16; j++) {
                float4 v = total[256 * j];
                if (seen[0]) {
                    v.x = __fmaf_rn(o[4 * j], fresh[0], __fmul_rn(v.x, old_total[0]));
                    v.y = __fmaf_rn(o[4 * j + 1], fresh[0], __fmul_rn(v.y, old_total[0]));
                }
                if (seen[1]) {
                    v.z = __fmaf_rn(o[4 * j + 2], fresh[1], __fmul_rn(v.z, old_total[1]));
                    v.w = __fmaf_rn(o[4 * j + 3], fresh[1], __fmul_rn(v.w, old_total[1]));
                }
                total[256 * j] = v;
            }
        }
        segment = PrefillSums();
#pragma unroll
        for (int k = 0; k < 64; k++) o[k] = 0.0f;
    }
    wgmma_wait<0>();
    if (item.kind == SEGMENT) return;

    // RN(O * RN(1 / L)). A head vector with an element that is not finite becomes zeros and its row is reported.
    const float inverse[2] = {__fdiv_rn(1.0f, whole.l[0]), __fdiv_rn(1.0f, whole.l[1])};
    bool finite[2] = {true, true};
#pragma unroll
    for (int j = 0; j < 16; j++) {
        const float4 v = total[256 * j];
        o[4 * j] = __fmul_rn(v.x, inverse[0]), o[4 * j + 1] = __fmul_rn(v.y, inverse[0]);
        o[4 * j + 2] = __fmul_rn(v.z, inverse[1]), o[4 * j + 3] = __fmul_rn(v.w, inverse[1]);
        finite[0] &= is_finite(o[4 * j]) && is_finite(o[4 * j + 1]);
        finite[1] &= is_finite(o[4 * j + 2]) && is_finite(o[4 * j + 3]);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint32_t of_row = 0xfu << (lane & ~3);
        const bool fine = (__ballot_sync(ALL_LANES, finite[half]) & of_row) == of_row;
        const Query query(a, s, first_query + g + 8 * half, kv_head, DIM);
        if (!query.exists()) continue;
        if (!fine && t == 0) report(a.status, query.row, a.place);
#pragma unroll
        for (int j = 0; j < 16; j++) {
            float* to = a.out + query.element + 8 * j + 2 * t;
            *reinterpret_cast<float2*>(to) =
                fine ? make_float2(o[4 * j + 2 * half], o[4 * j + 2 * half + 1]) : make_float2(0.0f, 0.0f);
        }
    }
#endif  // HOPPER
}
