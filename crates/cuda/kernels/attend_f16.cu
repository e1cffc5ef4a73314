// Attention over f16 pages, every head size and group ratio, sm_80 and later. For compatibility with f16 caches only: the
// scores and values are ordered chains of f32 fmas, which tensor cores cannot form.
//
// A block of 8 warps takes a tile of 16 queries. Page by page: keys and values are staged in shared memory as f16; thread
// (key, quarter) scores one key for four queries, keeping the 32 lanes of each sum in registers; then thread (pair of
// dimensions, group) runs the chains over the keys for its queries.
//
// Roofline: about 290 FP32 instructions per query-key pair at head_dim 128 (128 + 31 for a score, 128 for the values), at
// most 52 TFLOPS counted as matrix products on an H200. Conversions from f16 are shared by two to eight queries. Measured there:
// 10 TFLOPS for 512 rows at 0, presumably bound by loads from shared memory; one row at 32,767 in 133 us, 0.25 TB/s.
#include "attend.cuh"

namespace {

constexpr int TEAM_THREADS = 256;

template <int HEAD_DIM>
struct F16Team {
    static constexpr int ROW_HALVES = HEAD_DIM + 8;  // 16 bytes more than a row: the rows of 8 threads start in different banks
    static constexpr int PAIRS = HEAD_DIM / 2;
    // Threads of the value step: groups of PAIRS threads, each with up to GROUP_QUERIES queries.
    static constexpr int GROUPS = TEAM_THREADS / PAIRS < TILE_QUERIES ? TEAM_THREADS / PAIRS : TILE_QUERIES;
    static constexpr int GROUP_QUERIES = (TILE_QUERIES + GROUPS - 1) / GROUPS;
    static constexpr int QUARTER_QUERIES = 4;        // queries of a thread of the score step
    static constexpr int AT_ONCE = 2;                // of them, with their lanes in registers

    // Dynamic shared memory.
    struct Shared {
        alignas(16) __half keys[PAGE_ROWS][ROW_HALVES];
        alignas(16) __half values[PAGE_ROWS][HEAD_DIM];
        alignas(16) float query[TILE_QUERIES][HEAD_DIM];
        float weight[TILE_QUERIES][PAGE_ROWS + 4];   // scores, then weights
        float exponent[TILE_QUERIES];
        float sum[TILE_QUERIES];
        float inverse[TILE_QUERIES];
        int lo[TILE_QUERIES], hi[TILE_QUERIES];
        uint32_t not_finite[TILE_QUERIES];
    };

    __device__ __forceinline__ static void load_queries(Shared& sh, const Attention& a, const Item& item, const Sequence& s,
                                                        uint32_t kv_head) {
        for (int i = threadIdx.x; i < TILE_QUERIES * HEAD_DIM; i += TEAM_THREADS) {
            const Query query(a, s, item.first_query + i / HEAD_DIM, kv_head, HEAD_DIM);
            sh.query[i / HEAD_DIM][i % HEAD_DIM] = query.exists() ? a.queries[query.element + i % HEAD_DIM] : 0.0f;
        }
    }

    __device__ __forceinline__ static void load_page(Shared& sh, const uint8_t* part) {
        const uint4* stored = reinterpret_cast<const uint4*>(part);
        constexpr int ROW_WORDS = HEAD_DIM / 8;
#pragma unroll 4
        for (int i = threadIdx.x; i < 2 * PAGE_ROWS * ROW_WORDS; i += TEAM_THREADS) {
            const int row = i / ROW_WORDS, at = i % ROW_WORDS * 8;
            __half* to = row < PAGE_ROWS ? &sh.keys[row][at] : &sh.values[row - PAGE_ROWS][at];
            *reinterpret_cast<uint4*>(to) = __ldcg(stored + i);
        }
    }

    // t_k of key `threadIdx.x % 64` for queries 4 quarter .. 4 quarter + 3: 32 lanes, dimensions ascending, then the tree.
    __device__ __forceinline__ static void score(Shared& sh) {
        const int key = threadIdx.x % PAGE_ROWS, quarter = threadIdx.x / PAGE_ROWS;
#pragma unroll 1
        for (int q = quarter * QUARTER_QUERIES; q < (quarter + 1) * QUARTER_QUERIES; q += AT_ONCE) {
            float lane[AT_ONCE][32];
#pragma unroll
            for (int i = 0; i < AT_ONCE * 32; i++) lane[i / 32][i % 32] = 0.0f;
#pragma unroll 1
            for (int start = 0; start < HEAD_DIM; start += 32) {
#pragma unroll
                for (int part = 0; part < 32; part += 8) {
                    const uint4 word = *reinterpret_cast<const uint4*>(&sh.keys[key][start + part]);
                    const __half2* halves = reinterpret_cast<const __half2*>(&word);
#pragma unroll
                    for (int i = 0; i < AT_ONCE; i++) {
                        const float4 low = *reinterpret_cast<const float4*>(&sh.query[q + i][start + part]);
                        const float4 high = *reinterpret_cast<const float4*>(&sh.query[q + i][start + part + 4]);
                        const float x[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
                        for (int d = 0; d < 8; d++) {
                            const float k = d % 2 == 0 ? __low2float(halves[d / 2]) : __high2float(halves[d / 2]);
                            lane[i][part + d] = __fmaf_rn(k, x[d], lane[i][part + d]);
                        }
                    }
                }
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
#pragma unroll
                for (int step = 16; step > 0; step /= 2)
#pragma unroll
                    for (int l = 0; l < 16; l++)
                        if (l < step) lane[i][l] = __fadd_rn(lane[i][l], lane[i][l + step]);
                sh.weight[q + i][key] = lane[i][0];
            }
        }
    }

    // Weights, exponent and sum of the page for queries 2 warp and 2 warp + 1. Lane l holds keys l and l + 32.
    __device__ __forceinline__ static void weigh(Shared& sh, float score_scale) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll 1
        for (int q = 2 * warp; q < 2 * warp + 2; q++) {
            const bool seen[2] = {lane >= sh.lo[q] && lane < sh.hi[q], lane + 32 >= sh.lo[q] && lane + 32 < sh.hi[q]};
            const float score[2] = {sh.weight[q][lane], sh.weight[q][lane + 32]};
            float largest = -infinity();
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (seen[i]) largest = fmaxf(largest, candidate(score[i]));
            const float h = tile_exponent(warp_max(largest), score_scale);
            const float slope = score_scale * 0.015625f, shift = __fmaf_rn(h, -0.015625f, 1.0f);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                sh.weight[q][lane + 32 * i] = seen[i] ? softmax_weight(fma_unit(score[i], slope, shift)) : 0.0f;
            }
            __syncwarp();
            // A_c in lane c = 0 .. 7, then pairwise; the other lanes do the same sums again.
            float l = sh.weight[q][lane % 8];
#pragma unroll
            for (int j = 1; j < 8; j++) l = __fadd_rn(l, sh.weight[q][8 * j + lane % 8]);
#pragma unroll
            for (int distance = 1; distance < 8; distance *= 2) l = __fadd_rn(l, __shfl_xor_sync(ALL_LANES, l, distance));
            if (lane == 0) sh.exponent[q] = h, sh.sum[q] = checked_sum(l, h);
        }
    }

    // O_t of this thread's two dimensions for its queries: visible keys ascending. What is hidden may be NaN, so it is left
    // out rather than multiplied by zero.
    __device__ __forceinline__ static void sum_values(const Shared& sh, int first, int pair, float2 (&o)[GROUP_QUERIES]) {
        int lo[GROUP_QUERIES], hi[GROUP_QUERIES], start = PAGE_ROWS, end = 0;
#pragma unroll
        for (int i = 0; i < GROUP_QUERIES; i++) {
            const int q = min(first + i, TILE_QUERIES - 1);
            lo[i] = sh.lo[q], hi[i] = sh.hi[q];
            o[i] = make_float2(0.0f, 0.0f);
            if (lo[i] < hi[i]) start = min(start, lo[i]), end = max(end, hi[i]);
        }
#pragma unroll 4
        for (int k = start; k < end; k++) {
            const float2 v = __half22float2(*reinterpret_cast<const __half2*>(&sh.values[k][2 * pair]));
#pragma unroll
            for (int i = 0; i < GROUP_QUERIES; i++) {
                if (k < lo[i] || k >= hi[i]) continue;
                const float p = sh.weight[min(first + i, TILE_QUERIES - 1)][k];
                o[i].x = __fmaf_rn(p, v.x, o[i].x);
                o[i].y = __fmaf_rn(p, v.y, o[i].y);
            }
        }
    }

    __device__ __forceinline__ static float2 merged(float2 o, float2 tile, float old, float gain) {
        return make_float2(__fmaf_rn(tile.x, gain, __fmul_rn(o.x, old)), __fmaf_rn(tile.y, gain, __fmul_rn(o.y, old)));
    }

    __device__ __forceinline__ static void run(const Attention& a, Shared& sh);
};

template <int HEAD_DIM>
__device__ __forceinline__ void F16Team<HEAD_DIM>::run(const Attention& a, Shared& sh) {
    const Item item = a.items[blockIdx.x];
    if (item.pages == 0) return;
    const Sequence s = a.sequences[item.sequence];
    begin_dependent();
    const uint32_t kv_head = blockIdx.y;
    // This thread's queries of the value step: first .. first + GROUP_QUERIES - 1 as far as they are in the tile.
    const int pair = threadIdx.x % PAIRS, first = threadIdx.x / PAIRS * GROUP_QUERIES;
    const uint64_t partial = (uint64_t(item.partial) * a.kv_heads + kv_head) * TILE_QUERIES;
    load_queries(sh, a, item, s, kv_head);
    if (threadIdx.x < TILE_QUERIES) sh.not_finite[threadIdx.x] = 0;

    float2 segment[GROUP_QUERIES], total[GROUP_QUERIES];
    float m[GROUP_QUERIES], total_m[GROUP_QUERIES];
#pragma unroll
    for (int i = 0; i < GROUP_QUERIES; i++) {
        segment[i] = total[i] = make_float2(0.0f, 0.0f);
        m[i] = total_m[i] = -infinity();
    }
    // Denominators: thread q < 16 keeps those of query q.
    const bool sums = threadIdx.x < TILE_QUERIES;
    float sum_m = -infinity(), sum_l = 0.0f, total_sum_m = -infinity(), total_l = 0.0f;

    const uint32_t end = item.first_page + item.pages;
#pragma unroll 1
    for (uint32_t page = item.first_page; page < end; page++) {
        __syncthreads();  // the page before this one has been read
        load_page(sh, page_address(s, a.page_table, page) + uint64_t(kv_head) * head_bytes<false>(HEAD_DIM));
        if (sums) {
            const Query query(a, s, item.first_query + threadIdx.x, kv_head, HEAD_DIM);
            const VisibleRows rows(query.position, int(a.window), int(page));
            sh.lo[threadIdx.x] = rows.lo;
            sh.hi[threadIdx.x] = rows.hi;
        }
        __syncthreads();
        score(sh);
        __syncthreads();
        weigh(sh, a.score_scale);
        __syncthreads();

        const bool segment_ends = page + 1 == end || (page + 1) % SEGMENT_PAGES == 0;
        if (sums && sh.lo[threadIdx.x] < sh.hi[threadIdx.x]) {
            const float h = sh.exponent[threadIdx.x], l = sh.sum[threadIdx.x];
            if (item.kind == PAGE) {
                sum_m = h, sum_l = l;
            } else {
                sum_l = Merge(sum_m, h).sum(sum_l, l);
            }
        }
        if (item.kind == WHOLE && segment_ends && sum_m != -infinity()) {
            total_l = Merge(total_sum_m, sum_m).sum(total_l, sum_l);
            sum_m = -infinity(), sum_l = 0.0f;
        }
        float2 tile[GROUP_QUERIES];
        sum_values(sh, first, pair, tile);
#pragma unroll
        for (int i = 0; i < GROUP_QUERIES; i++) {
            const int q = first + i;
            if (q >= TILE_QUERIES) continue;
            if (sh.lo[q] < sh.hi[q]) {
                if (item.kind == PAGE) {
                    segment[i] = tile[i];
                } else {
                    const Merge merge(m[i], sh.exponent[q]);
                    segment[i] = merged(segment[i], tile[i], merge.old, merge.fresh);
                }
            }
            if (item.kind == WHOLE && segment_ends && m[i] != -infinity()) {
                const Merge merge(total_m[i], m[i]);
                total[i] = merged(total[i], segment[i], merge.old, merge.fresh);
                segment[i] = make_float2(0.0f, 0.0f);
                m[i] = -infinity();
            }
        }
    }

    if (item.kind != WHOLE) {
        if (sums) a.partial_sums[partial + threadIdx.x] = make_float4(sum_m, sum_l, 1.0f, 0.0f);
#pragma unroll
        for (int i = 0; i < GROUP_QUERIES; i++) {
            if (first + i >= TILE_QUERIES) continue;
            *reinterpret_cast<float2*>(a.partial_outputs + (partial + first + i) * HEAD_DIM + 2 * pair) = segment[i];
        }
        return;
    }
    if (sums) sh.inverse[threadIdx.x] = __fdiv_rn(1.0f, total_l);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < GROUP_QUERIES; i++) {
        if (first + i >= TILE_QUERIES) continue;
        const float inverse = sh.inverse[first + i];
        total[i] = make_float2(__fmul_rn(total[i].x, inverse), __fmul_rn(total[i].y, inverse));
        if (!is_finite(total[i].x) || !is_finite(total[i].y)) sh.not_finite[first + i] = 1;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < GROUP_QUERIES; i++) {
        if (first + i >= TILE_QUERIES) continue;
        const Query query(a, s, item.first_query + first + i, kv_head, HEAD_DIM);
        if (!query.exists()) continue;
        const bool fine = sh.not_finite[first + i] == 0;
        if (!fine && pair == 0) report(a.status, query.row, a.place);
        *reinterpret_cast<float2*>(a.out + query.element + 2 * pair) = fine ? total[i] : make_float2(0.0f, 0.0f);
    }
}

extern __shared__ __align__(16) uint8_t dynamic_shared[];

template <int HEAD_DIM>
__device__ __forceinline__ void attend(const Attention& a) {
    F16Team<HEAD_DIM>::run(a, *reinterpret_cast<typename F16Team<HEAD_DIM>::Shared*>(dynamic_shared));
}

}  // namespace

// Grid: (items, kv_heads). Dynamic shared memory: the size of Shared, which queue/attend.rs computes.
extern "C" __global__ void __launch_bounds__(TEAM_THREADS) attend_f16_d32(const __grid_constant__ Attention a) { attend<32>(a); }
extern "C" __global__ void __launch_bounds__(TEAM_THREADS) attend_f16_d64(const __grid_constant__ Attention a) { attend<64>(a); }
extern "C" __global__ void __launch_bounds__(TEAM_THREADS) attend_f16_d96(const __grid_constant__ Attention a) { attend<96>(a); }
extern "C" __global__ void __launch_bounds__(TEAM_THREADS) attend_f16_d128(const __grid_constant__ Attention a) { attend<128>(a); }
extern "C" __global__ void __launch_bounds__(TEAM_THREADS) attend_f16_d160(const __grid_constant__ Attention a) { attend<160>(a); }
extern "C" __global__ void __launch_bounds__(TEAM_THREADS) attend_f16_d192(const __grid_constant__ Attention a) { attend<192>(a); }
extern "C" __global__ void __launch_bounds__(TEAM_THREADS) attend_f16_d224(const __grid_constant__ Attention a) { attend<224>(a); }
extern "C" __global__ void __launch_bounds__(TEAM_THREADS) attend_f16_d256(const __grid_constant__ Attention a) { attend<256>(a); }
