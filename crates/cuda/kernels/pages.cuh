// Pages of keys and values as they lie on the device, and the rows of a step that read and write them.
//
// A page holds PAGE_ROWS consecutive positions of one sequence and layer: its key-value heads in order, each, with
// d = head_dim,
//
//   | layout | byte        | field    | type and shape           |
//   |--------|-------------|----------|--------------------------|
//   | q8     | 0           | keys     | i8  [64][d]              |
//   |        | 64 d        | values   | i8  [d][64], transposed  |
//   |        | 128 d       | K scales | f32 [64]                 |
//   |        | 128 d + 256 | V scales | f32 [64]                 |
//   | f16    | 0           | keys     | f16 [64][d]              |
//   |        | 128 d       | values   | f16 [64][d]              |
//
// It differs from the canonical form (docs/numerics.md, rule 9) only in the transposed q8 values: then the weights of a
// tile meet the values of one dimension in consecutive bytes, which is the order the tensor cores want. Pages start at
// multiples of 256 bytes. Rows never written hold anything.
#pragma once
#include "softmax.cuh"

constexpr int PAGE_ROWS = 64;
constexpr int SEGMENT_PAGES = 16;

// Bytes of one key-value head's part of a page.
template <bool Q8>
__device__ constexpr uint32_t head_bytes(uint32_t head_dim) {
    return Q8 ? 2 * PAGE_ROWS * head_dim + 2 * PAGE_ROWS * 4 : 4 * PAGE_ROWS * head_dim;
}

// One sequence's rows of a step. A page's address is page_table[table + page - first_page] of the layer at hand.
struct Sequence {
    uint32_t first_row;   // among the rows of the step
    uint32_t rows;
    uint32_t position;    // absolute position of its first row; the others follow
    uint32_t first_page;  // absolute index of the page at `table`
    uint32_t table;       // index into the layer's page table
};

// The address of an absolute page of a sequence.
__device__ __forceinline__ uint8_t* page_address(const Sequence& s, const uint64_t* page_table, uint32_t page) {
    return reinterpret_cast<uint8_t*>(page_table[s.table + page - s.first_page]);
}

// Rows lo..hi of `page` that a query at `position` sees; none where lo >= hi. `window` 0 means all.
struct VisibleRows {
    int lo, hi;
    __device__ VisibleRows(int position, int window, int page) {
        int start = page * PAGE_ROWS;
        int first = window > 0 && position >= window ? position + 1 - window : 0;
        lo = max(first - start, 0);
        hi = min(position + 1 - start, PAGE_ROWS);
    }
    __device__ bool any() const { return lo < hi; }
    __device__ bool contains(int row) const { return row >= lo && row < hi; }
};

// The first page that a query at `position` sees.
__device__ __forceinline__ int first_visible_page(int position, int window) {
    return window > 0 && position >= window ? (position + 1 - window) / PAGE_ROWS : 0;
}
