// Attention over q8 pages on integer tensor cores (mma.sync, sm_80 and later), every head size and group ratio.
//
// A block is a team of 8 warps on one tile of 16 queries. Page by page: warp w scores keys 8 w .. 8 w + 7, all warps exchange
// maxima, weigh their keys, exchange weights, and warp w sums dimension tiles w, w + 8, ... (8 dimensions each). The next
// page's bytes are in flight meanwhile.
//
// Exact: a query code q is 128 qh + ql with |qh| <= 8 and |ql| <= 64, a weight pq is 64 ph + pl with ph <= 32 and pl <= 63.
// Both planes meet 8-bit codes, so every sum is an int32 (at most 2^25), converted once.
//
// Roofline: one row reads (2 head_dim + 8) * 64 B per page and head and does 4 * 16 * 64 * head_dim multiply-adds on it, so
// it is bound by memory; the two barriers and about 60 dependent instructions of a page are hidden by a second block on the
// same multiprocessor. Measured on an H200 with the merge: one row at 131,007 in 44.6 us, 1.55 TB/s of 4.55; 32 sequences at
// 8,191 in 79 us, 1.74 TB/s. For many rows the pages come from L2 and the softmax of 16 x 64 scores is the bound;
// attend_prefill.cu is the faster kernel for head_dim 128 on sm_90a.
#include "attend.cuh"
#include "heads.cuh"
#include "mma.cuh"

namespace {

constexpr int TEAM_WARPS = 8;
constexpr int TEAM_THREADS = 32 * TEAM_WARPS;

template <int HEAD_DIM>
struct Q8Team {
    static constexpr int DIM_STEPS = HEAD_DIM / 32;                      // steps of a score's sum
    static constexpr int DIM_TILES = HEAD_DIM / 8;                       // tiles of 8 output dimensions
    static constexpr int WARP_TILES = (DIM_TILES + TEAM_WARPS - 1) / TEAM_WARPS;
    static constexpr bool WIDE_KEYS = HEAD_DIM % 64 == 0;                // keys in 16-byte loads
    static constexpr int QUERY_STRIDE = HEAD_DIM + 16;
    // 80 bytes: 16-byte aligned, and the 8 rows of a fragment start in different banks.
    static constexpr int WEIGHT_STRIDE = 80;
    static constexpr int SUM_STRIDE = 68;

    struct Shared {
        int8_t query_high[TILE_QUERIES][QUERY_STRIDE];
        int8_t query_low[TILE_QUERIES][QUERY_STRIDE];
        float query_scale[TILE_QUERIES];
        // Two of each, used in turn: whoever writes page n + 1 does not wait for the readers of page n.
        float largest[2][TILE_QUERIES][TEAM_WARPS];
        uint32_t value_scale[2][TILE_QUERIES][TEAM_WARPS];
        float weight[2][TILE_QUERIES][SUM_STRIDE];
        alignas(16) uint8_t weight_high[2][TILE_QUERIES][WEIGHT_STRIDE];
        alignas(16) uint8_t weight_low[2][TILE_QUERIES][WEIGHT_STRIDE];
        float2 total[WARP_TILES][2][TEAM_THREADS];  // O over the segments so far, by thread: touched once a segment
        float inverse[TILE_QUERIES];
        uint32_t not_finite[TILE_QUERIES];
    };

    // One thread's part of a page: its key's and its dimensions' bytes, and the scales of its two score columns.
    struct PageBytes {
        uint32_t keys[DIM_STEPS][2];
        uint4 values[WARP_TILES];
        float2 key_scales;
        uint2 value_scales;

        __device__ __forceinline__ void load(const uint8_t* part, int warp, int g, int t) {
            const uint8_t* key = part + (8 * warp + g) * HEAD_DIM;
            if (WIDE_KEYS) {
#pragma unroll
                for (int c = 0; c < DIM_STEPS / 2; c++) {
                    uint4 w = __ldcg(reinterpret_cast<const uint4*>(key + 64 * c + 16 * t));
                    keys[2 * c][0] = w.x, keys[2 * c][1] = w.y, keys[2 * c + 1][0] = w.z, keys[2 * c + 1][1] = w.w;
                }
            } else {
#pragma unroll
                for (int s = 0; s < DIM_STEPS; s++) {
                    uint2 w = __ldcg(reinterpret_cast<const uint2*>(key + 32 * s + 8 * t));
                    keys[s][0] = w.x, keys[s][1] = w.y;
                }
            }
#pragma unroll
            for (int i = 0; i < WARP_TILES; i++) {
                int tile = min(warp + TEAM_WARPS * i, DIM_TILES - 1);  // a tile too many is loaded, but not used
                const uint8_t* value = part + PAGE_ROWS * HEAD_DIM + (8 * tile + g) * PAGE_ROWS + 16 * t;
                values[i] = __ldcg(reinterpret_cast<const uint4*>(value));
            }
            const uint8_t* scales = part + 2 * PAGE_ROWS * HEAD_DIM + (8 * warp + 2 * t) * 4;
            key_scales = __ldcg(reinterpret_cast<const float2*>(scales));
            value_scales = __ldcg(reinterpret_cast<const uint2*>(scales + PAGE_ROWS * 4));
        }
    };

    // The first of the four dimensions in word w of step s, for the threads of column t.
    __device__ __forceinline__ static int dimension(int s, int w, int t) {
        return WIDE_KEYS ? 64 * (s / 2) + 16 * t + 8 * (s % 2) + 4 * w : 32 * s + 8 * t + 4 * w;
    }

    // The two queries of the tile that a warp quantises: where they are, or null.
    struct WarpQueries {
        const float* x[2];

        __device__ __forceinline__ WarpQueries(const Attention& a, const Item& item, const Sequence& s, uint32_t kv_head, int warp) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const Query query(a, s, item.first_query + 2 * warp + i, kv_head, HEAD_DIM);
                x[i] = query.exists() ? a.queries + query.element : nullptr;
            }
        }
    };

    // Codes of the tile's queries (rule 9 with 1023), two vectors a warp, which are loaded together. A query that is not finite
    // gets a NaN scale, and with it a NaN score.
    __device__ __forceinline__ static void quantise_queries(Shared& sh, const Attention& a, const WarpQueries& queries, int warp,
                                                            int lane) {
        HeadVector<DIM_STEPS> vectors[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int j = 0; j < DIM_STEPS; j++) vectors[i].x[j] = 0.0f;
            if (queries.x[i] != nullptr) vectors[i].load(queries.x[i]);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const HeadVector<DIM_STEPS>& v = vectors[i];
            const int q = 2 * warp + i;
            int code[DIM_STEPS];
            float scale = 0.0f;
            if (!v.codes(1023.0f, code, scale)) scale = not_a_number();
#pragma unroll
            for (int j = 0; j < DIM_STEPS; j++) {
                int high = (code[j] + 64) >> 7;
                sh.query_high[q][lane + 32 * j] = int8_t(high);
                sh.query_low[q][lane + 32 * j] = int8_t(code[j] - 128 * high);
            }
            if (lane == 0) sh.query_scale[q] = scale * a.score_scale;
        }
    }

    // A fragment of 16 queries for step s.
    __device__ __forceinline__ static void load_fragment(uint32_t (&fragment)[4], const int8_t (&plane)[TILE_QUERIES][QUERY_STRIDE],
                                                         int s, int g, int t) {
#pragma unroll
        for (int r = 0; r < 4; r++) {
            fragment[r] = *reinterpret_cast<const uint32_t*>(&plane[g + 8 * (r & 1)][dimension(s, r >> 1, t)]);
        }
    }

    // The largest of the team's candidates for one query.
    __device__ __forceinline__ static float largest_of(const float (&by_warp)[TEAM_WARPS]) {
        float4 x = *reinterpret_cast<const float4*>(&by_warp[0]), y = *reinterpret_cast<const float4*>(&by_warp[4]);
        return fmaxf(fmaxf(fmaxf(x.x, x.y), fmaxf(x.z, x.w)), fmaxf(fmaxf(y.x, y.y), fmaxf(y.z, y.w)));
    }
    __device__ __forceinline__ static ValueScale largest_of(const uint32_t (&by_warp)[TEAM_WARPS]) {
        uint4 x = *reinterpret_cast<const uint4*>(&by_warp[0]), y = *reinterpret_cast<const uint4*>(&by_warp[4]);
        return {max(max(max(x.x, x.y), max(x.z, x.w)), max(max(y.x, y.y), max(y.z, y.w)))};
    }

    // Outputs of queries g (half 0) and g + 8 (half 1): dimensions 2 t and 2 t + 1 of each of the warp's tiles.
    struct Outputs {
        float2 o[WARP_TILES][2];

        __device__ __forceinline__ void clear(int half) {
#pragma unroll
            for (int i = 0; i < WARP_TILES; i++) o[i][half] = make_float2(0.0f, 0.0f);
        }
    };

    // O = fma(O_t, gain, RN(O * old)).
    __device__ __forceinline__ static float2 merged(float2 o, float2 tile, float old, float gain) {
        return make_float2(__fmaf_rn(tile.x, gain, o.x * old), __fmaf_rn(tile.y, gain, o.y * old));
    }

    // The denominators of a tile's queries. Eight threads keep each, one for each of the eight strided sums of a page.
    struct Sums {
        int query, lane, position;
        float scale;
        float m, l, unit;        // of the segment, or of the one page
        float total_m, total_l;

        __device__ __forceinline__ Sums(const Shared& sh, const Attention& a, const Sequence& s, const Item& item, uint32_t kv_head) {
            query = threadIdx.x / 8 % TILE_QUERIES, lane = threadIdx.x % 8;
            position = Query(a, s, item.first_query + query, kv_head, HEAD_DIM).position;
            scale = sh.query_scale[query];
            m = total_m = -infinity(), l = total_l = 0.0f, unit = 1.0f;
        }
        __device__ __forceinline__ static bool thread_has_one() { return threadIdx.x < 8 * TILE_QUERIES; }

        // A_c = p_c + p_(8 + c) + ... ascending, then pairwise: a butterfly, since a + b and b + a are the same bits.
        __device__ __forceinline__ void add_page(const Shared& sh, int turn, bool visible, uint32_t kind) {
            const float* p = &sh.weight[turn][query][lane];
            float l_t = p[0];
#pragma unroll
            for (int j = 1; j < 8; j++) l_t += p[8 * j];
            float largest = sh.largest[turn][query][lane];
            ValueScale value_scale = {sh.value_scale[turn][query][lane]};
#pragma unroll
            for (int distance = 1; distance < 8; distance *= 2) {
                l_t += __shfl_xor_sync(ALL_LANES, l_t, distance);
                largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, distance));
                value_scale.largest = max(value_scale.largest, __shfl_xor_sync(ALL_LANES, value_scale.largest, distance));
            }
            const float h = tile_exponent(largest, scale);
            l_t = value_scale.refused() ? not_a_number() : checked_sum(l_t, h);
            if (!visible) return;
            if (kind == PAGE) {
                m = h, l = l_t, unit = pow2(value_scale.exponent() - 11);
            } else {
                l = Merge(m, h).sum(l, l_t);
            }
        }

        __device__ __forceinline__ void end_segment() {
            if (m == -infinity()) return;
            total_l = Merge(total_m, m).sum(total_l, l);
            m = -infinity(), l = 0.0f;
        }
    };

    // Leaves h and unit of the page for queries g and g + 8, and the weights of keys `key` and `key` + 1 in shared memory.
    __device__ __forceinline__ static void weigh(Shared& sh, int turn, int half, int g, int key, const float (&score)[2],
                                                 const bool (&seen)[2], const float (&value_scale)[2], float query_scale,
                                                 float& h, float& unit) {
        h = tile_exponent(largest_of(sh.largest[turn][g + 8 * half]), query_scale);
        const int exponent = largest_of(sh.value_scale[turn][g + 8 * half]).exponent();
        const float slope = query_scale * 0.015625f, shift = __fmaf_rn(h, -0.015625f, 1.0f), up = pow2(11 - exponent);
        unit = pow2(exponent - 11);
        uint32_t code[2];
        float p[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            p[i] = where_seen(seen[i], softmax_weight(fma_unit(score[i], slope, shift)));
            // In [0, 2048]: the low half of the bits of a number in [2^23 + 2^22, 2^23 + 2^22 + 2048]; 0 where not seen.
            code[i] = __float_as_uint(__fmaf_rn(p[i], where_seen(seen[i], value_scale[i]) * up, ROUND_TO_INTEGER)) & 0xffff;
        }
        const int row = g + 8 * half;
        *reinterpret_cast<float2*>(&sh.weight[turn][row][key]) = make_float2(p[0], p[1]);
        *reinterpret_cast<uint16_t*>(&sh.weight_high[turn][row][key]) = uint16_t((code[0] >> 6 & 255) | (code[1] >> 6 & 255) << 8);
        *reinterpret_cast<uint16_t*>(&sh.weight_low[turn][row][key]) = uint16_t((code[0] & 63) | (code[1] & 63) << 8);
    }

    // O_t of the page for the warp's dimension tiles.
    __device__ __forceinline__ static void sum_values(const Shared& sh, int turn, int g, int t, const uint4 (&values)[WARP_TILES],
                                                      Outputs& tile) {
        int sum[2][WARP_TILES][4] = {};
#pragma unroll
        for (int plane = 0; plane < 2; plane++) {
            const auto& weights = plane == 0 ? sh.weight_high[turn] : sh.weight_low[turn];
            const uint4 low = *reinterpret_cast<const uint4*>(&weights[g][16 * t]);
            const uint4 high = *reinterpret_cast<const uint4*>(&weights[g + 8][16 * t]);
            const uint32_t first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
            for (int i = 0; i < WARP_TILES; i++) {
                const uint32_t low_keys[2] = {values[i].x, values[i].y}, high_keys[2] = {values[i].z, values[i].w};
                mma_u8(sum[plane][i], first, low_keys);
                mma_u8(sum[plane][i], second, high_keys);
            }
        }
#pragma unroll
        for (int i = 0; i < WARP_TILES; i++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                tile.o[i][half] = make_float2(float(sum[0][i][2 * half] * 64 + sum[1][i][2 * half]),
                                              float(sum[0][i][2 * half + 1] * 64 + sum[1][i][2 * half + 1]));
            }
    }

    __device__ static void write_partial(const Attention& a, const Item& item, uint32_t kv_head, const Sums& sums,
                                         const Outputs& outputs) {
        const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        const uint64_t first = (uint64_t(item.partial) * a.kv_heads + kv_head) * TILE_QUERIES;
        if (Sums::thread_has_one() && sums.lane == 0) {
            a.partial_sums[first + sums.query] = make_float4(sums.m, sums.l, sums.unit, 0.0f);
        }
#pragma unroll
        for (int i = 0; i < WARP_TILES; i++) {
            const int tile = warp + TEAM_WARPS * i;
            if (tile >= DIM_TILES) continue;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float* to = a.partial_outputs + (first + g + 8 * half) * HEAD_DIM + 8 * tile + 2 * t;
                *reinterpret_cast<float2*>(to) = outputs.o[i][half];
            }
        }
    }

    // RN(O * RN(1 / L)); a head vector with an element that is not finite becomes zeros and its row is reported.
    __device__ static void write_output(Shared& sh, const Attention& a, const Item& item, const Sequence& s, uint32_t kv_head,
                                        const Sums& sums) {
        const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        if (Sums::thread_has_one() && sums.lane == 0) sh.inverse[sums.query] = 1.0f / sums.total_l;
        __syncthreads();
        Outputs result;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float inverse = sh.inverse[g + 8 * half];
            bool finite = true;
#pragma unroll
            for (int i = 0; i < WARP_TILES; i++) {
                if (warp + TEAM_WARPS * i >= DIM_TILES) continue;
                const float2 o = sh.total[i][half][threadIdx.x];
                result.o[i][half] = make_float2(o.x * inverse, o.y * inverse);
                finite &= is_finite(result.o[i][half].x) && is_finite(result.o[i][half].y);
            }
            if (!finite) sh.not_finite[g + 8 * half] = 1;
        }
        __syncthreads();
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const Query query(a, s, item.first_query + g + 8 * half, kv_head, HEAD_DIM);
            if (!query.exists()) continue;
            const bool fine = sh.not_finite[g + 8 * half] == 0;
            if (!fine && warp == 0 && t == 0) report(a.status, query.row, a.place);
#pragma unroll
            for (int i = 0; i < WARP_TILES; i++) {
                const int tile = warp + TEAM_WARPS * i;
                if (tile >= DIM_TILES) continue;
                float* to = a.out + query.element + 8 * tile + 2 * t;
                *reinterpret_cast<float2*>(to) = fine ? result.o[i][half] : make_float2(0.0f, 0.0f);
            }
        }
    }

    __device__ __forceinline__ static void run(const Attention& a);
};

template <int HEAD_DIM>
__device__ __forceinline__ void Q8Team<HEAD_DIM>::run(const Attention& a) {
    __shared__ Shared sh;
    const Item item = a.items[blockIdx.x];
    if (item.pages == 0) return;
    const Sequence s = a.sequences[item.sequence];
    const uint32_t kv_head = blockIdx.y;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, key = 8 * warp + 2 * t;
    const uint64_t head_offset = uint64_t(kv_head) * head_bytes<true>(HEAD_DIM);
    // Addresses are read two pages ahead and bytes one, so that no load of a page waits for another.
    const uint64_t* addresses = a.page_table + s.table + item.first_page - s.first_page;
    const uint64_t* const last_address = addresses + item.pages - 1;
    const uint64_t first_address = *addresses;
    if (addresses < last_address) addresses++;
    uint64_t next_address = *addresses;
    const WarpQueries queries(a, item, s, kv_head, warp);
    if (threadIdx.x < TILE_QUERIES) sh.not_finite[threadIdx.x] = 0;
#pragma unroll
    for (int i = 0; i < 2 * WARP_TILES; i++) sh.total[i / 2][i % 2][threadIdx.x] = make_float2(0.0f, 0.0f);
    begin_dependent();
    PageBytes next;
    next.load(reinterpret_cast<const uint8_t*>(first_address) + head_offset, warp, g, t);

    quantise_queries(sh, a, queries, warp, lane);
    __syncthreads();
    uint32_t query_high[DIM_STEPS][4], query_low[DIM_STEPS][4];
#pragma unroll
    for (int step = 0; step < DIM_STEPS; step++) {
        load_fragment(query_high[step], sh.query_high, step, g, t);
        load_fragment(query_low[step], sh.query_low, step, g, t);
    }
    const float query_scale[2] = {sh.query_scale[g], sh.query_scale[g + 8]};
    const int position[2] = {Query(a, s, item.first_query + g, kv_head, HEAD_DIM).position,
                             Query(a, s, item.first_query + g + 8, kv_head, HEAD_DIM).position};
    Sums sums(sh, a, s, item, kv_head);
    Outputs segment;
    float m[2] = {-infinity(), -infinity()}, total_m[2] = {-infinity(), -infinity()};
    segment.clear(0);
    segment.clear(1);

    const uint32_t end = item.first_page + item.pages;
#pragma unroll 1
    for (uint32_t page = item.first_page; page < end; page++) {
        const int turn = page & 1;
        int high[4] = {0, 0, 0, 0}, low[4] = {0, 0, 0, 0};
#pragma unroll
        for (int step = 0; step < DIM_STEPS; step++) {
            mma_s8(high, query_high[step], next.keys[step]);
            mma_s8(low, query_low[step], next.keys[step]);
        }
        const float key_scale[2] = {next.key_scales.x, next.key_scales.y};
        const uint32_t scale_bits[2] = {next.value_scales.x, next.value_scales.y};
        const float value_scale[2] = {__uint_as_float(scale_bits[0]), __uint_as_float(scale_bits[1])};
        uint4 values[WARP_TILES];
#pragma unroll
        for (int i = 0; i < WARP_TILES; i++) values[i] = next.values[i];
        // After the last page this loads it again rather than branching.
        next.load(reinterpret_cast<const uint8_t*>(next_address) + head_offset, warp, g, t);
        if (addresses < last_address) addresses++;
        next_address = *addresses;

        float score[2][2];
        bool seen[2][2], any[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const VisibleRows rows(position[half], int(a.window), int(page));
            any[half] = rows.any();
            float largest = -infinity();
            uint32_t scale = 0;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                score[half][i] = float(high[2 * half + i] * 128 + low[2 * half + i]) * key_scale[i];
                seen[half][i] = rows.contains(key + i);
                if (seen[half][i]) {
                    largest = fmaxf(largest, candidate(score[half][i]));
                    scale = max(scale, scale_bits[i]);
                }
            }
#pragma unroll
            for (int distance = 1; distance < 4; distance *= 2) {
                largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, distance));
                scale = max(scale, __shfl_xor_sync(ALL_LANES, scale, distance));
            }
            if (t == 0) {
                sh.largest[turn][g + 8 * half][warp] = largest;
                sh.value_scale[turn][g + 8 * half][warp] = scale;
            }
        }
        __syncthreads();
        float h[2], unit[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            weigh(sh, turn, half, g, key, score[half], seen[half], value_scale, query_scale[half], h[half], unit[half]);
        }
        __syncthreads();
        if (Sums::thread_has_one()) {
            sums.add_page(sh, turn, VisibleRows(sums.position, int(a.window), int(page)).any(), item.kind);
        }
        Outputs tile;
        sum_values(sh, turn, g, t, values, tile);

        const bool segment_ends = page + 1 == end || (page + 1) % SEGMENT_PAGES == 0;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (item.kind == PAGE) {
#pragma unroll
                for (int i = 0; i < WARP_TILES; i++) segment.o[i][half] = tile.o[i][half];
                continue;
            }
            if (any[half]) {
                const Merge merge(m[half], h[half]);
                const float gain = merge.fresh * unit[half];
#pragma unroll
                for (int i = 0; i < WARP_TILES; i++) {
                    segment.o[i][half] = merged(segment.o[i][half], tile.o[i][half], merge.old, gain);
                }
            }
            if (item.kind == WHOLE && segment_ends && m[half] != -infinity()) {
                const Merge merge(total_m[half], m[half]);
#pragma unroll
                for (int i = 0; i < WARP_TILES; i++) {
                    float2& total = sh.total[i][half][threadIdx.x];
                    total = merged(total, segment.o[i][half], merge.old, merge.fresh);
                }
                segment.clear(half);
                m[half] = -infinity();
            }
        }
        if (item.kind == WHOLE && segment_ends) sums.end_segment();
    }
    if (item.kind == WHOLE) {
        write_output(sh, a, item, s, kv_head, sums);
    } else {
        write_partial(a, item, kv_head, sums, segment);
    }
}

}  // namespace

// Grid: (items, kv_heads).
extern "C" __global__ void __launch_bounds__(TEAM_THREADS, 2) attend_q8_d32(const __grid_constant__ Attention a) { Q8Team<32>::run(a); }
extern "C" __global__ void __launch_bounds__(TEAM_THREADS, 2) attend_q8_d64(const __grid_constant__ Attention a) { Q8Team<64>::run(a); }
extern "C" __global__ void __launch_bounds__(TEAM_THREADS, 2) attend_q8_d96(const __grid_constant__ Attention a) { Q8Team<96>::run(a); }
extern "C" __global__ void __launch_bounds__(TEAM_THREADS, 2) attend_q8_d128(const __grid_constant__ Attention a) { Q8Team<128>::run(a); }
extern "C" __global__ void __launch_bounds__(TEAM_THREADS, 1) attend_q8_d160(const __grid_constant__ Attention a) { Q8Team<160>::run(a); }
extern "C" __global__ void __launch_bounds__(TEAM_THREADS, 1) attend_q8_d192(const __grid_constant__ Attention a) { Q8Team<192>::run(a); }
extern "C" __global__ void __launch_bounds__(TEAM_THREADS, 1) attend_q8_d224(const __grid_constant__ Attention a) { Q8Team<224>::run(a); }
extern "C" __global__ void __launch_bounds__(TEAM_THREADS, 1) attend_q8_d256(const __grid_constant__ Attention a) { Q8Team<256>::run(a); }
