// Head vectors between the projections and attention: QK-norm, rotary embedding and Hadamard transform (rules 5, 7, 8b), and
// the rounding of keys and values into their pages (rule 9).
//
// A warp owns one head vector: lane l holds elements l, l + 32, ... A kernel per head size keeps them in registers. Memory
// bound: each vector is read and written once; the transform adds log2(block) additions an element.
#include "heads.cuh"
#include "pages.cuh"

namespace {

constexpr int HEAD_WARPS = 8;
constexpr int HEAD_THREADS = 32 * HEAD_WARPS;

// One kind of head vector of a step: the queries, keys or values, [rows, heads * head_dim], changed in place.
struct HeadPart {
    float* x;
    const float* norm_weight;  // [head_dim]; null: no norm
    uint32_t heads;
    float eps;
    float hadamard_factor;     // 0: no transform
    uint32_t rotates;          // 1: rotary embedding
};

// Arguments of place_heads.
struct Placement {
    HeadPart part[3];           // those without heads are not there
    const uint32_t* positions;  // [rows]
    const float* angles;        // [positions][2][pairs]: cosines, then sines
    uint32_t pairs;             // rotated dimensions / 2
    uint32_t neox;              // 1 pairs (i, i + pairs), 0 pairs (2 i, 2 i + 1)
    uint32_t rows;
    uint32_t unused;
};

// A head vector of a step: which of the parts it belongs to, its row, and its number among the part's heads.
struct HeadVectorOf {
    uint32_t part, row, head;

    // The warp's own; rows past the last where it has none.
    __device__ __forceinline__ HeadVectorOf(const Placement& p) {
        const uint32_t heads = p.part[0].heads + p.part[1].heads + p.part[2].heads;
        const uint32_t warp = blockIdx.x * HEAD_WARPS + threadIdx.x / 32;
        part = 0, row = warp / heads, head = warp % heads;
        while (head >= p.part[part].heads) head -= p.part[part++].heads;
    }
};

// What a head vector is placed by, for the lane's elements: written by copies alone, and so read before the kernel waits.
template <int CHUNKS>
struct PlacedBy {
    float weight[CHUNKS], cosine[CHUNKS], sine[CHUNKS];

    __device__ __forceinline__ PlacedBy(const Placement& p, const HeadVectorOf& of) {
        const HeadPart& part = p.part[of.part];
        const int lane = threadIdx.x % 32;
        if (part.norm_weight != nullptr) {
#pragma unroll
            for (int j = 0; j < CHUNKS; j++) weight[j] = part.norm_weight[lane + 32 * j];
        }
        if (part.rotates) {
            const float* row = p.angles + uint64_t(p.positions[of.row]) * 2 * p.pairs;
#pragma unroll
            for (int j = 0; j < CHUNKS; j++) {
                const uint32_t d = lane + 32 * j, pair = p.neox == 0 ? d / 2 : d < p.pairs ? d : d - p.pairs;
                cosine[j] = d < 2 * p.pairs ? row[pair] : 1.0f;
                sine[j] = d < 2 * p.pairs ? row[p.pairs + pair] : 0.0f;
            }
        }
    }
};

// Loads a head vector and places it in the order of the layer graph: norm, rotation, transform. Returns where it came from.
template <int HEAD_DIM>
__device__ __forceinline__ float* load_placed(HeadVector<HEAD_DIM / 32>& v, const Placement& p, const HeadVectorOf& of,
                                              const PlacedBy<HEAD_DIM / 32>& by) {
    const HeadPart& part = p.part[of.part];
    float* x = part.x + (uint64_t(of.row) * part.heads + of.head) * HEAD_DIM;
    v.load(x);
    if (part.norm_weight != nullptr) v.norm(by.weight, part.eps);
    if (part.rotates) v.rotate(by.cosine, by.sine, p.pairs, p.neox != 0);
    if (part.hadamard_factor != 0.0f) v.hadamard(part.hadamard_factor);
    return x;
}

// Places every head vector in place. Grid: a warp per row and head.
template <int HEAD_DIM>
__device__ __forceinline__ void place_heads(const Placement& p) {
    const HeadVectorOf of(p);
    if (of.row >= p.rows) return;
    const PlacedBy<HEAD_DIM / 32> by(p, of);
    begin_dependent();
    HeadVector<HEAD_DIM / 32> v;
    float* x = load_placed<HEAD_DIM>(v, p, of, by);
    v.store(x);
}

// Arguments of store_q8 and store_f16.
struct Storing {
    Placement placement;            // queries (or none), keys, values: what is done to each before
    const Sequence* sequences;
    const uint32_t* row_sequences;  // [rows]: index of each row's sequence
    const uint64_t* page_table;     // of this layer
    uint32_t* status;
    uint8_t* row_bytes;             // [rows][kv_heads][keys, values, K scale, V scale of one row], canonical; null: not wanted
    uint32_t place;
    uint32_t unused;
};

// Where one vector goes: its head's part of the page, its row there, and its head's part of the row's bytes, if wanted.
struct StoredPlace {
    uint8_t* part;
    uint8_t* row_bytes;
    uint32_t row;
    bool is_value;
};

// Codes and scale of one vector (rule 9, storing, q8). Keys go to [64][d], values to [d][64].
template <int HEAD_DIM>
__device__ __forceinline__ bool store_codes(const HeadVector<HEAD_DIM / 32>& v, const StoredPlace& to) {
    int code[HEAD_DIM / 32];
    float scale;
    bool finite = v.codes(127.0f, code, scale);
#pragma unroll
    for (int j = 0; j < HEAD_DIM / 32; j++) {
        uint32_t d = v.lane() + 32 * j;
        uint8_t byte = uint8_t(finite ? code[j] : 0);
        to.part[to.is_value ? (HEAD_DIM + d) * PAGE_ROWS + to.row : to.row * HEAD_DIM + d] = byte;
        if (to.row_bytes != nullptr) to.row_bytes[(to.is_value ? HEAD_DIM : 0) + d] = byte;
    }
    if (!finite) scale = 0.0f;
    if (v.lane() == 0) {
        reinterpret_cast<float*>(to.part + 2 * PAGE_ROWS * HEAD_DIM)[(to.is_value ? PAGE_ROWS : 0) + to.row] = scale;
        if (to.row_bytes != nullptr) reinterpret_cast<float*>(to.row_bytes + 2 * HEAD_DIM)[to.is_value ? 1 : 0] = scale;
    }
    return finite;
}

// One vector as f16, refused if an element becomes infinite. Both go to [64][d].
template <int HEAD_DIM>
__device__ __forceinline__ bool store_halves(const HeadVector<HEAD_DIM / 32>& v, const StoredPlace& to) {
    __half* stored = reinterpret_cast<__half*>(to.part) + ((to.is_value ? PAGE_ROWS : 0) + to.row) * HEAD_DIM;
    __half* row = reinterpret_cast<__half*>(to.row_bytes) + (to.is_value ? HEAD_DIM : 0);
    __half rounded[HEAD_DIM / 32];
    bool finite = true;
#pragma unroll
    for (int j = 0; j < HEAD_DIM / 32; j++) {
        rounded[j] = __float2half_rn(v.x[j]);
        finite &= is_finite(__half2float(rounded[j]));
    }
    finite = __all_sync(ALL_LANES, finite);
#pragma unroll
    for (int j = 0; j < HEAD_DIM / 32; j++) {
        uint32_t d = v.lane() + 32 * j;
        __half half = finite ? rounded[j] : __ushort_as_half(0);
        stored[d] = half;
        if (to.row_bytes != nullptr) row[d] = half;
    }
    return finite;
}

// Places the queries of a step in place, and places its keys and values and rounds them into their pages. Grid: a warp per row
// and head of all. A key or value that cannot be stored becomes zeros, and its row gets `place`.
template <int HEAD_DIM, bool Q8>
__device__ __forceinline__ void store_heads(const Storing& p) {
    const HeadVectorOf of(p.placement);
    if (of.row >= p.placement.rows) return;
    const Sequence s = p.sequences[p.row_sequences[of.row]];
    const uint32_t position = s.position + of.row - s.first_row;
    StoredPlace to = {page_address(s, p.page_table, position / PAGE_ROWS), nullptr, position % PAGE_ROWS, of.part == 2};
    to.part += uint64_t(of.head) * head_bytes<Q8>(HEAD_DIM);
    if (p.row_bytes != nullptr) {
        const uint64_t vectors = uint64_t(of.row) * p.placement.part[1].heads + of.head;
        to.row_bytes = p.row_bytes + vectors * (head_bytes<Q8>(HEAD_DIM) / PAGE_ROWS);
    }
    const PlacedBy<HEAD_DIM / 32> by(p.placement, of);
    begin_dependent();
    HeadVector<HEAD_DIM / 32> v;
    float* x = load_placed<HEAD_DIM>(v, p.placement, of, by);
    if (of.part == 0) {
        v.store(x);
        return;
    }
    const bool finite = Q8 ? store_codes<HEAD_DIM>(v, to) : store_halves<HEAD_DIM>(v, to);
    if (!finite && v.lane() == 0) report(p.status, of.row, p.place);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(HEAD_THREADS) place_heads_d32(const __grid_constant__ Placement p) { place_heads<32>(p); }
extern "C" __global__ void __launch_bounds__(HEAD_THREADS) place_heads_d64(const __grid_constant__ Placement p) { place_heads<64>(p); }
extern "C" __global__ void __launch_bounds__(HEAD_THREADS) place_heads_d96(const __grid_constant__ Placement p) { place_heads<96>(p); }
extern "C" __global__ void __launch_bounds__(HEAD_THREADS) place_heads_d128(const __grid_constant__ Placement p) { place_heads<128>(p); }
extern "C" __global__ void __launch_bounds__(HEAD_THREADS) place_heads_d160(const __grid_constant__ Placement p) { place_heads<160>(p); }
extern "C" __global__ void __launch_bounds__(HEAD_THREADS) place_heads_d192(const __grid_constant__ Placement p) { place_heads<192>(p); }
extern "C" __global__ void __launch_bounds__(HEAD_THREADS) place_heads_d224(const __grid_constant__ Placement p) { place_heads<224>(p); }
extern "C" __global__ void __launch_bounds__(HEAD_THREADS) place_heads_d256(const __grid_constant__ Placement p) { place_heads<256>(p); }

extern "C" __global__ void __launch_bounds__(HEAD_THREADS) store_q8_d32(const __grid_constant__ Storing p) { store_heads<32, true>(p); }
extern "C" __global__ void __launch_bounds__(HEAD_THREADS) store_q8_d64(const __grid_constant__ Storing p) { store_heads<64, true>(p); }
extern "C" __global__ void __launch_bounds__(HEAD_THREADS) store_q8_d96(const __grid_constant__ Storing p) { store_heads<96, true>(p); }
extern "C" __global__ void __launch_bounds__(HEAD_THREADS) store_q8_d128(const __grid_constant__ Storing p) { store_heads<128, true>(p); }
extern "C" __global__ void __launch_bounds__(HEAD_THREADS) store_q8_d160(const __grid_constant__ Storing p) { store_heads<160, true>(p); }
extern "C" __global__ void __launch_bounds__(HEAD_THREADS) store_q8_d192(const __grid_constant__ Storing p) { store_heads<192, true>(p); }
extern "C" __global__ void __launch_bounds__(HEAD_THREADS) store_q8_d224(const __grid_constant__ Storing p) { store_heads<224, true>(p); }
extern "C" __global__ void __launch_bounds__(HEAD_THREADS) store_q8_d256(const __grid_constant__ Storing p) { store_heads<256, true>(p); }

extern "C" __global__ void __launch_bounds__(HEAD_THREADS) store_f16_d32(const __grid_constant__ Storing p) { store_heads<32, false>(p); }
extern "C" __global__ void __launch_bounds__(HEAD_THREADS) store_f16_d64(const __grid_constant__ Storing p) { store_heads<64, false>(p); }
extern "C" __global__ void __launch_bounds__(HEAD_THREADS) store_f16_d96(const __grid_constant__ Storing p) { store_heads<96, false>(p); }
extern "C" __global__ void __launch_bounds__(HEAD_THREADS) store_f16_d128(const __grid_constant__ Storing p) { store_heads<128, false>(p); }
extern "C" __global__ void __launch_bounds__(HEAD_THREADS) store_f16_d160(const __grid_constant__ Storing p) { store_heads<160, false>(p); }
extern "C" __global__ void __launch_bounds__(HEAD_THREADS) store_f16_d192(const __grid_constant__ Storing p) { store_heads<192, false>(p); }
extern "C" __global__ void __launch_bounds__(HEAD_THREADS) store_f16_d224(const __grid_constant__ Storing p) { store_heads<224, false>(p); }
extern "C" __global__ void __launch_bounds__(HEAD_THREADS) store_f16_d256(const __grid_constant__ Storing p) { store_heads<256, false>(p); }
