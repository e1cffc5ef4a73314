// Pages between the device's form and the canonical bytes that leave the process (docs/numerics.md, rule 9).
//
// Memory bound: a page is read and written once. The q8 values are transposed through shared memory, so that both sides are
// read and written in whole sectors.
#include "pages.cuh"
#include "softmax.cuh"

namespace {

constexpr int PAGE_THREADS = 256;
constexpr int TILE_DIMS = 32;
constexpr int TILE_STRIDE = PAGE_ROWS + 4;  // words of a column start in different banks

// One page to pack or unpack. Both addresses are multiples of 16.
struct PageCopy {
    uint64_t device;     // address of the device page
    uint64_t canonical;  // address of its canonical bytes
    uint32_t rows;       // rows that hold a position; packing writes zeros for the others, unpacking ignores it
    uint32_t unused;
};

// Arguments of pack_pages and unpack_pages.
struct Copying {
    const PageCopy* pages;
    uint32_t kv_heads;
    uint32_t head_dim;
};

// Copies `words` 4-byte words of rows of `row_words`, with zeros for rows from `rows` on.
__device__ __forceinline__ void copy_rows(uint32_t* to, const uint32_t* from, uint32_t words, uint32_t row_words, uint32_t rows) {
    for (uint32_t i = threadIdx.x; i < words; i += PAGE_THREADS) to[i] = i / row_words < rows ? from[i] : 0;
}

// Values [d][64] of the device to canonical [64][d], 32 dimensions at a time; zeros for rows from `rows` on.
__device__ __forceinline__ void pack_values(uint8_t* to, const uint8_t* from, uint32_t head_dim, uint32_t rows) {
    __shared__ alignas(16) uint8_t tile[TILE_DIMS * TILE_STRIDE];
    for (uint32_t start = 0; start < head_dim; start += TILE_DIMS) {
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < TILE_DIMS * PAGE_ROWS / 4; i += PAGE_THREADS) {
            const uint32_t d = i / (PAGE_ROWS / 4), at = i % (PAGE_ROWS / 4) * 4;
            *reinterpret_cast<uint32_t*>(&tile[d * TILE_STRIDE + at]) =
                *reinterpret_cast<const uint32_t*>(from + (start + d) * PAGE_ROWS + at);
        }
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < PAGE_ROWS * TILE_DIMS / 4; i += PAGE_THREADS) {
            const uint32_t row = i / (TILE_DIMS / 4), d = i % (TILE_DIMS / 4) * 4;
            uint32_t word = 0;
            for (uint32_t k = 0; k < 4; k++) word |= uint32_t(tile[(d + k) * TILE_STRIDE + row]) << (8 * k);
            *reinterpret_cast<uint32_t*>(to + row * head_dim + start + d) = row < rows ? word : 0;
        }
    }
}

// The way back, all rows.
__device__ __forceinline__ void unpack_values(uint8_t* to, const uint8_t* from, uint32_t head_dim) {
    __shared__ alignas(16) uint8_t tile[TILE_DIMS * TILE_STRIDE];
    for (uint32_t start = 0; start < head_dim; start += TILE_DIMS) {
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < PAGE_ROWS * TILE_DIMS / 4; i += PAGE_THREADS) {
            const uint32_t row = i / (TILE_DIMS / 4), d = i % (TILE_DIMS / 4) * 4;
            const uint32_t word = *reinterpret_cast<const uint32_t*>(from + row * head_dim + start + d);
            for (uint32_t k = 0; k < 4; k++) tile[(d + k) * TILE_STRIDE + row] = uint8_t(word >> (8 * k));
        }
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < TILE_DIMS * PAGE_ROWS / 4; i += PAGE_THREADS) {
            const uint32_t d = i / (PAGE_ROWS / 4), at = i % (PAGE_ROWS / 4) * 4;
            *reinterpret_cast<uint32_t*>(to + (start + d) * PAGE_ROWS + at) =
                *reinterpret_cast<const uint32_t*>(&tile[d * TILE_STRIDE + at]);
        }
    }
}

// The head's part of both forms: the same offset and length.
struct HeadPart {
    uint8_t* device;
    uint8_t* canonical;
    __device__ HeadPart(const PageCopy& page, uint64_t offset)
        : device(reinterpret_cast<uint8_t*>(page.device) + offset), canonical(reinterpret_cast<uint8_t*>(page.canonical) + offset) {}
    __device__ static uint32_t* words(uint8_t* at) { return reinterpret_cast<uint32_t*>(at); }
};

}  // namespace

// Grid of all four: (pages, kv_heads).
extern "C" __global__ void __launch_bounds__(PAGE_THREADS) pack_pages_q8(const __grid_constant__ Copying p) {
    begin_dependent();
    const PageCopy page = p.pages[blockIdx.x];
    const HeadPart head(page, uint64_t(blockIdx.y) * head_bytes<true>(p.head_dim));
    const uint32_t side = PAGE_ROWS * p.head_dim;
    copy_rows(head.words(head.canonical), head.words(head.device), side / 4, p.head_dim / 4, page.rows);
    pack_values(head.canonical + side, head.device + side, p.head_dim, page.rows);
    for (uint32_t part = 0; part < 2; part++) {
        const uint32_t at = 2 * side + part * PAGE_ROWS * 4;
        copy_rows(head.words(head.canonical + at), head.words(head.device + at), PAGE_ROWS, 1, page.rows);
    }
}

extern "C" __global__ void __launch_bounds__(PAGE_THREADS) unpack_pages_q8(const __grid_constant__ Copying p) {
    begin_dependent();
    const PageCopy page = p.pages[blockIdx.x];
    const HeadPart head(page, uint64_t(blockIdx.y) * head_bytes<true>(p.head_dim));
    const uint32_t side = PAGE_ROWS * p.head_dim;
    copy_rows(head.words(head.device), head.words(head.canonical), side / 4, p.head_dim / 4, PAGE_ROWS);
    unpack_values(head.device + side, head.canonical + side, p.head_dim);
    copy_rows(head.words(head.device + 2 * side), head.words(head.canonical + 2 * side), 2 * PAGE_ROWS, 1, 2 * PAGE_ROWS);
}

extern "C" __global__ void __launch_bounds__(PAGE_THREADS) pack_pages_f16(const __grid_constant__ Copying p) {
    begin_dependent();
    const PageCopy page = p.pages[blockIdx.x];
    const HeadPart head(page, uint64_t(blockIdx.y) * head_bytes<false>(p.head_dim));
    const uint32_t side = 2 * PAGE_ROWS * p.head_dim;
    for (uint32_t at = 0; at < 2 * side; at += side) {
        copy_rows(head.words(head.canonical + at), head.words(head.device + at), side / 4, p.head_dim / 2, page.rows);
    }
}

extern "C" __global__ void __launch_bounds__(PAGE_THREADS) unpack_pages_f16(const __grid_constant__ Copying p) {
    begin_dependent();
    const PageCopy page = p.pages[blockIdx.x];
    const HeadPart head(page, uint64_t(blockIdx.y) * head_bytes<false>(p.head_dim));
    const uint32_t words = PAGE_ROWS * p.head_dim;
    copy_rows(head.words(head.device), head.words(head.canonical), words, 1, words);
}
