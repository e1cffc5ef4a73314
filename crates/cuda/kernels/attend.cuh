// Attention (rule 9): what the kernels of both layouts share. Work items, merging, and where results go.
//
// The queries of a sequence's rows that share one key-value head are numbered row * group + head; a tile is TILE_QUERIES of
// them in order. An item is one tile and a run of pages; a block computes one item for one key-value head. Three kinds:
//
//   WHOLE    all visible pages of the tile; the block merges segments itself and writes the output.
//   SEGMENT  the visible pages of one segment; the block writes the segment's (m, l, O) as one partial result.
//   PAGE     one page; the block writes the tile's (h, l, O, unit) as one partial result.
//
// merge_partials then folds partial results in the order of the contract. WHOLE suits many tiles, SEGMENT few tiles over a
// long context, PAGE a single row over few pages. The kind changes no bit: a partial result is exactly the value that the
// contract defines for its tile or segment.
#pragma once
#include "pages.cuh"

constexpr int TILE_QUERIES = 16;

enum ItemKind : uint32_t { WHOLE = 0, SEGMENT = 1, PAGE = 2 };

struct Item {
    uint32_t sequence;
    uint32_t first_query;  // row * group + head of the tile's first query
    uint32_t first_page;   // absolute
    uint32_t pages;        // 0: no work
    uint32_t kind;
    uint32_t partial;      // index of the partial result, times kv_heads; unused for WHOLE
};

// Attention of one layer over one step: the argument of every attend kernel.
struct Attention {
    const Sequence* sequences;
    const Item* items;
    const uint64_t* page_table;  // of this layer
    const float* queries;        // [rows, kv_heads * group * head_dim]
    float* out;                  // the same shape
    float4* partial_sums;        // [partials][kv_heads][TILE_QUERIES]: h or m, l, unit, unused
    float* partial_outputs;      // [partials][kv_heads][TILE_QUERIES][head_dim]
    uint32_t* status;
    uint32_t place;
    uint32_t kv_heads;
    uint32_t group;              // query heads per key-value head
    uint32_t window;             // 0: none
    float score_scale;           // S of rule 9
    uint32_t unused;
};

// One query of a tile: where it is and what it sees.
struct Query {
    uint32_t row;      // of the step
    int position;      // -1 if there is no such query: it sees nothing
    uint64_t element;  // of its head vector's first element in queries and out

    __device__ __forceinline__ Query(const Attention& a, const Sequence& s, uint32_t query, uint32_t kv_head, uint32_t head_dim) {
        uint32_t row_of_sequence = query / a.group, head = query % a.group;
        row = s.first_row + row_of_sequence;
        position = row_of_sequence < s.rows ? int(s.position + row_of_sequence) : -1;
        element = (uint64_t(row) * a.kv_heads * a.group + kv_head * a.group + head) * head_dim;
    }
    __device__ __forceinline__ bool exists() const { return position >= 0; }
};

// Factors of one merge: O = fma(O_t, gain * unit, RN(O * old)), l = fma(l, old, RN(fresh * l_t)).
struct Merge {
    float old, fresh;

    // Merges a tile or segment of exponent h into running exponent m. `h` is never -inf: what is not finite was made +inf,
    // so that m = -inf means that nothing was merged.
    __device__ __forceinline__ Merge(float& m, float h) {
        float m_new = h > m ? h : m;
        old = pow2(m - m_new);
        fresh = pow2(h - m_new);
        m = m_new;
    }
    __device__ __forceinline__ float sum(float l, float l_t) const { return __fmaf_rn(l, old, fresh * l_t); }
};

// x, or +0 where not `seen`, without a branch that would divide the warp.
__device__ __forceinline__ float where_seen(bool seen, float x) { return __uint_as_float(__float_as_uint(x) & -uint32_t(seen)); }

// A visible score as a candidate for the largest: +inf if it is not finite, which no maximum drops.
__device__ __forceinline__ float candidate(float score) { return is_finite(score) ? score : infinity(); }

// h of a tile from its largest candidate: +inf if a score or h itself is not finite.
__device__ __forceinline__ float tile_exponent(float largest, float query_scale) {
    float h = ceilf(largest * query_scale);
    return is_finite(h) ? h : infinity();
}

// l_t, or NaN where h is not finite: every later merge keeps the NaN, and the result is refused.
__device__ __forceinline__ float checked_sum(float l_t, float h) { return l_t + (h - h); }

// The largest visible value scale of a tile, as bits: those of a scale that is negative or not finite are the largest of all.
struct ValueScale {
    uint32_t largest;  // bits
    __device__ __forceinline__ bool refused() const { return largest >= INFINITY_BITS; }
    // E of rule 9.
    __device__ __forceinline__ int exponent() const { return max(int(largest >> 23) - 126, -100); }
};
