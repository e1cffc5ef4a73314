// Operations that end in a quantisation: norm, SiLU, and the gate of attention (rules 5, 6, 8, 8b, then 2).
//
// Memory-bound: each value is read and its codes are written once. At 2,048 rows: residual, two norms and f16 codes of 6,656
// values 14 bytes each (191 MB, 42 us at 4.55 TB/s); SiLU and codes of 19,968 values 10 bytes (409 MB, 90 us). With one row
// everything is latency: loads are issued together, and the norm's weights are fetched before the kernel waits for the one
// before it.
#include "hadamard.cuh"
#include "launch.cuh"
#include "quantise.cuh"

// Threads of a norm, and the lanes of its sum of squares, which the first of them hold.
constexpr int NORM_THREADS = 512;
constexpr int NORM_LANES = 256;

extern __shared__ __align__(16) float row_values[];

// Rule 5, step 2: the sum of the 256 lanes in shared memory by halves, the same on every thread.
__device__ __forceinline__ float sum_of_lanes(const float* lanes) {
    const int lane = threadIdx.x % 32;
    float a[8];
#pragma unroll
    for (int j = 0; j < 8; j++) a[j] = lanes[lane + 32 * j];
    // Distances 128, 64 and 32, then 16 to 1 between the lanes of a warp.
    float sum = __fadd_rn(__fadd_rn(__fadd_rn(a[0], a[4]), __fadd_rn(a[2], a[6])),
                          __fadd_rn(__fadd_rn(a[1], a[5]), __fadd_rn(a[3], a[7])));
#pragma unroll
    for (int step = 16; step; step >>= 1) sum = __fadd_rn(sum, __shfl_xor_sync(ALL_LANES, sum, step));
    return sum;
}

// The same of a lane each of the first 256 threads. `lanes` is shared memory.
__device__ __forceinline__ float sum_by_halves(float mine, float* lanes) {
    if (threadIdx.x < NORM_LANES) lanes[threadIdx.x] = mine;
    __syncthreads();
    const float sum = sum_of_lanes(lanes);
    __syncthreads();
    return sum;
}

// Brings `cols` floats into the second-level cache.
__device__ __forceinline__ void fetch_ahead(const float* values, int cols) {
    for (int k = threadIdx.x * 32; k < cols; k += NORM_THREADS * 32) {
        asm volatile("prefetch.global.L2 [%0];" ::"l"(values + k));
    }
}

// Operands of a norm. hidden f32 [_][cols]; row r of the result is row indices[r] of it, or r where `indices` is null. Where
// `addend` f32 [_][cols] is given, the row first becomes hidden + addend, or hidden + norm(addend) * post_weight, and is
// written back. weight f32 [cols].
struct NormOperands {
    float* hidden;
    const uint32_t* indices;
    const float* addend;
    const float* post_weight;
    const float* weight;
    uint32_t* status;
    uint64_t cols;
    uint64_t eps_and_post_eps;  // bits of two floats
    uint64_t place;
    __device__ __forceinline__ float eps() const { return __uint_as_float((uint32_t)eps_and_post_eps); }
    __device__ __forceinline__ float post_eps() const { return __uint_as_float((uint32_t)(eps_and_post_eps >> 32)); }
};

// Rule 5, step 1: this thread's lane of the sum of squares of a row in shared memory, ascending; 256 lanes.
__device__ __forceinline__ float lane_of_squares(const float* row, int cols) {
    float sum = 0.0f;
    if (threadIdx.x < NORM_LANES) {
#pragma unroll 4
        for (int k = threadIdx.x; k < cols; k += NORM_LANES) sum = __fmaf_rn(row[k], row[k], sum);
    }
    return sum;
}

// Residual sum (rule 6), norm (rule 5) and quantisation (rule 2) of one row, which stays in shared memory; `cols` is a
// multiple of 4. Loops are short on purpose: with one row this code runs cold, and fetching instructions would take longer
// than the work. With many rows it is the waits between the phases that cost: four blocks share a processor.
extern "C" __global__ void __launch_bounds__(NORM_THREADS, 4)
    quantise_norm(const __grid_constant__ ActivationForms out, const __grid_constant__ NormOperands in) {
    __shared__ float lanes[NORM_LANES];
    const int cols = (int)in.cols, quads = cols / 4, row = blockIdx.x, thread = threadIdx.x;
    float4* h = (float4*)row_values;
    float4* y = h + quads;
    const float4 *weight = (const float4*)in.weight, *post_weight = (const float4*)in.post_weight;
    let_next_start();
    fetch_ahead(in.weight, cols);
    if (post_weight) fetch_ahead(in.post_weight, cols);
    wait_for_previous();
    const int source = in.indices ? (int)in.indices[row] : row;
    float4* hidden = (float4*)(in.hidden + (size_t)source * cols);
    const float4* addend = (const float4*)(in.addend + (size_t)source * cols);
#pragma unroll 4
    for (int i = thread; i < quads; i += NORM_THREADS) {
        h[i] = hidden[i];
        if (in.addend) y[i] = addend[i];
    }
    __syncthreads();
    if (in.addend) {
        float r = 1.0f;
        if (post_weight) r = inverse_rms_of_sum(sum_by_halves(lane_of_squares((const float*)y, cols), lanes), cols, in.post_eps());
#pragma unroll 2
        for (int i = thread; i < quads; i += NORM_THREADS) {
            float4 term = y[i], value = h[i];
            if (post_weight) {
                const float4 w = post_weight[i];
                term = make_float4(__fmul_rn(__fmul_rn(term.x, r), w.x), __fmul_rn(__fmul_rn(term.y, r), w.y),
                                   __fmul_rn(__fmul_rn(term.z, r), w.z), __fmul_rn(__fmul_rn(term.w, r), w.w));
            }
            value = make_float4(__fadd_rn(value.x, term.x), __fadd_rn(value.y, term.y), __fadd_rn(value.z, term.z),
                                __fadd_rn(value.w, term.w));
            h[i] = value;
            hidden[i] = value;
        }
        __syncthreads();
    }
    const float r = inverse_rms_of_sum(sum_by_halves(lane_of_squares((const float*)h, cols), lanes), cols, in.eps());
    bool bad = false;
#pragma unroll 2
    for (int i = thread; i < quads; i += NORM_THREADS) {
        const float4 value = h[i], w = weight[i];
        const float4 normed = make_float4(__fmul_rn(__fmul_rn(value.x, r), w.x), __fmul_rn(__fmul_rn(value.y, r), w.y),
                                          __fmul_rn(__fmul_rn(value.z, r), w.z), __fmul_rn(__fmul_rn(value.w, r), w.w));
        bad |= !is_finite(normed.x) || !is_finite(normed.y) || !is_finite(normed.z) || !is_finite(normed.w);
        h[i] = normed;
    }
    bad = __syncthreads_or(bad);
    if (bad && thread == 0) atomicMin(&in.status[source], (uint32_t)in.place);
    const int lane = thread % 32, blocks = (cols + 255) / 256;
#pragma unroll 1
    for (int block = thread / 32; block < blocks; block += NORM_THREADS / 32) {
        float x[8];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int quad = block * 64 + lane * 2 + half;
            const float4 four = !bad && quad < quads ? h[quad] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            x[4 * half] = four.x, x[4 * half + 1] = four.y, x[4 * half + 2] = four.z, x[4 * half + 3] = four.w;
        }
        store_group(out, x, Largest(x), row, block, blocks, cols, lane);
    }
}

// Threads that hold a row in registers, two neighbouring columns of every 256 each: two of the 256 lanes of rule 5.
constexpr int HELD_THREADS = 128;

// Rule 5, step 2: the sum of the 256 lanes, of which each thread has two; the same on every thread. `lanes` is shared memory
// that nobody else uses.
__device__ __forceinline__ float sum_of_pairs(float2 mine, float* lanes) {
    ((float2*)lanes)[threadIdx.x] = mine;
    __syncthreads();
    return sum_of_lanes(lanes);
}

// Rule 5, step 1: this thread's two lanes of the sum of squares, ascending.
template <int BLOCKS>
__device__ __forceinline__ float2 squares_of_pairs(const float2 (&x)[BLOCKS]) {
    float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
        sum.x = __fmaf_rn(x[b].x, x[b].x, sum.x);
        sum.y = __fmaf_rn(x[b].y, x[b].y, sum.y);
    }
    return sum;
}

// Rule 5, step 3, of two columns.
__device__ __forceinline__ float2 scaled_pair(float2 x, float r, float2 weight) {
    return make_float2(__fmul_rn(__fmul_rn(x.x, r), weight.x), __fmul_rn(__fmul_rn(x.y, r), weight.y));
}

// The same for many rows of exactly 256 * BLOCKS values, in tiles: the row stays in registers, and both operands are on their
// way before the first of them is needed. 128 threads a row and four or more rows a processor keep 200 KB in flight.
template <int BLOCKS>
__device__ __forceinline__ void quantise_norm_held(const ActivationForms& out, const NormOperands& in) {
    __shared__ __align__(16) float lanes[2][NORM_LANES];
    __shared__ uint32_t largest[HELD_THREADS / 32][32];
    static_assert(BLOCKS <= 32, "a lane for each block");
    const int row = blockIdx.x, thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    let_next_start();
    wait_for_previous();
    const int source = in.indices ? (int)in.indices[row] : row;
    // Block b is at [128 b].
    float2* hidden = (float2*)in.hidden + (size_t)source * (128 * BLOCKS) + thread;
    const float2* weight = (const float2*)in.weight + thread;
    float2 x[BLOCKS];
    if (in.addend) {
        const float2* addend = (const float2*)in.addend + (size_t)source * (128 * BLOCKS) + thread;
        float2 old[BLOCKS];
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) x[b] = __ldcs(addend + 128 * b);
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) old[b] = hidden[128 * b];
        if (in.post_weight) {
            const float2* post_weight = (const float2*)in.post_weight + thread;
            const float r = inverse_rms_of_sum(sum_of_pairs(squares_of_pairs(x), lanes[0]), 256 * BLOCKS, in.post_eps());
#pragma unroll
            for (int b = 0; b < BLOCKS; b++) x[b] = scaled_pair(x[b], r, __ldg(post_weight + 128 * b));
        }
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) {
            x[b] = make_float2(__fadd_rn(old[b].x, x[b].x), __fadd_rn(old[b].y, x[b].y));
            hidden[128 * b] = x[b];
        }
    } else {
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) x[b] = hidden[128 * b];
    }
    const float r = inverse_rms_of_sum(sum_of_pairs(squares_of_pairs(x), lanes[1]), 256 * BLOCKS, in.eps());
    // Lane b gets the largest magnitude of block b.
    uint32_t mine = 0;
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
        x[b] = scaled_pair(x[b], r, __ldg(weight + 128 * b));
        const uint32_t of_warp = __reduce_max_sync(ALL_LANES, max(magnitude(x[b].x), magnitude(x[b].y)));
        if (lane == b) mine = of_warp;
    }
    largest[warp][lane] = mine;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < HELD_THREADS / 32; i++) mine = max(mine, largest[i][lane]);
    const bool bad = __any_sync(ALL_LANES, mine >= INFINITE);
    if (bad) {
        mine = 0;
        if (thread == 0) atomicMin(&in.status[source], (uint32_t)in.place);
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) x[b] = make_float2(0.0f, 0.0f);
    }
    const float inverse = inverse_of(__uint_as_float(mine));
    const size_t tile_group = (size_t)(row / TILE_ROWS) * BLOCKS;
    const int r_of_tile = row % TILE_ROWS;
    if (warp == 0 && lane < BLOCKS) {
        out.tile_scales[(tile_group + lane) * TILE_ROWS + r_of_tile] = scale_of(__uint_as_float(mine));
    }
    // 64 columns of f16 are a line of a chunk, and so are 128 columns of bytes.
    uint8_t* half_line = out.half_tiles + (tile_group * 4 + warp) * 16384 + r_of_tile * 128 +
                         (lane / 4 ^ (r_of_tile & 7)) * 16 + lane % 4 * 4;
    uint8_t* byte_line = out.byte_tiles + (tile_group * 2 + warp / 2) * 16384 + r_of_tile * 128 +
                         (thread % 64 / 8 ^ (r_of_tile & 7)) * 16 + thread % 8 * 2;
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
        const float of_block = __shfl_sync(ALL_LANES, inverse, b);
        const float first = __fadd_rn(__fmul_rn(x[b].x, of_block), ROUND_TO_INTEGER);
        const float second = __fadd_rn(__fmul_rn(x[b].y, of_block), ROUND_TO_INTEGER);
        if (out.half_tiles) *(uint32_t*)(half_line + b * 65536) = EightCodes::pair_of_halves(first, second);
        if (out.byte_tiles) {
            *(uint16_t*)(byte_line + b * 32768) =
                (uint16_t)__byte_perm(__float_as_uint(first), __float_as_uint(second), 0x0040);
        }
    }
}

extern "C" __global__ void __launch_bounds__(HELD_THREADS, 4)
    quantise_norm_2048(const __grid_constant__ ActivationForms out, const __grid_constant__ NormOperands in) {
    quantise_norm_held<8>(out, in);
}
extern "C" __global__ void __launch_bounds__(HELD_THREADS, 4)
    quantise_norm_3072(const __grid_constant__ ActivationForms out, const __grid_constant__ NormOperands in) {
    quantise_norm_held<12>(out, in);
}
extern "C" __global__ void __launch_bounds__(HELD_THREADS, 4)
    quantise_norm_4096(const __grid_constant__ ActivationForms out, const __grid_constant__ NormOperands in) {
    quantise_norm_held<16>(out, in);
}
extern "C" __global__ void __launch_bounds__(HELD_THREADS, 4)
    quantise_norm_5120(const __grid_constant__ ActivationForms out, const __grid_constant__ NormOperands in) {
    quantise_norm_held<20>(out, in);
}
extern "C" __global__ void __launch_bounds__(HELD_THREADS, 4)
    quantise_norm_6656(const __grid_constant__ ActivationForms out, const __grid_constant__ NormOperands in) {
    quantise_norm_held<26>(out, in);
}

// The same for rows that do not fit shared memory or are no multiple of 4 long, read again where they are needed.
extern "C" __global__ void __launch_bounds__(QUANTISE_THREADS)
    quantise_norm_any(const __grid_constant__ ActivationForms out, const __grid_constant__ NormOperands in) {
    __shared__ float lanes[QUANTISE_THREADS];
    let_next_start();
    wait_for_previous();
    const int cols = (int)in.cols, row = blockIdx.x, source = in.indices ? (int)in.indices[row] : row;
    float* h = in.hidden + (size_t)source * cols;
    if (in.addend) {
        const float* y = in.addend + (size_t)source * cols;
        float r = 1.0f, sum = 0.0f;
        if (in.post_weight) {
            for (int k = threadIdx.x; k < cols; k += QUANTISE_THREADS) sum = __fmaf_rn(y[k], y[k], sum);
            r = inverse_rms_of_sum(sum_by_halves(sum, lanes), cols, in.post_eps());
        }
        for (int k = threadIdx.x; k < cols; k += QUANTISE_THREADS) {
            const float term = in.post_weight ? __fmul_rn(__fmul_rn(y[k], r), in.post_weight[k]) : y[k];
            h[k] = __fadd_rn(h[k], term);
        }
    }
    // Every thread reads back only what it wrote itself.
    float sum = 0.0f;
    for (int k = threadIdx.x; k < cols; k += QUANTISE_THREADS) sum = __fmaf_rn(h[k], h[k], sum);
    const float r = inverse_rms_of_sum(sum_by_halves(sum, lanes), cols, in.eps());
    auto normed = [&](int k) { return __fmul_rn(__fmul_rn(h[k], r), in.weight[k]); };
    bool bad = false;
    for (int k = threadIdx.x; k < cols; k += QUANTISE_THREADS) bad |= !is_finite(normed(k));
    bad = __syncthreads_or(bad);
    if (bad && threadIdx.x == 0) atomicMin(&in.status[source], (uint32_t)in.place);
    const int lane = threadIdx.x % 32, blocks = (cols + 255) / 256;
    for (int block = threadIdx.x / 32; block < blocks; block += QUANTISE_THREADS / 32) {
        float x[8];
        eight_values(x, block, cols, lane, [&](int k) { return bad ? 0.0f : normed(k); });
        store_group(out, x, Largest(x), row, block, blocks, cols, lane);
    }
}

// Row and group of a warp, for kernels with a warp per group.
struct WarpGroup {
    int row, block, blocks, lane;
    bool exists;
    __device__ __forceinline__ WarpGroup(int rows, int cols) {
        blocks = (cols + 255) / 256;
        lane = threadIdx.x % 32;
        const int64_t number = (int64_t)blockIdx.x * (QUANTISE_THREADS / 32) + threadIdx.x / 32;
        row = (int)(number / blocks);
        block = (int)(number % blocks);
        exists = row < rows;
    }
};

// Eight consecutive floats of a row, as two loads where they are aligned.
__device__ __forceinline__ void load_eight(float (&x)[8], const float* row, int block, int cols, int lane) {
    const int first = block * 256 + lane * 8;
    if (cols % 4 == 0 && first + 8 <= cols) {
        const float4 a = __ldcs((const float4*)(row + first)), b = __ldcs((const float4*)(row + first + 4));
        x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
    } else {
        eight_values(x, block, cols, lane, [&](int k) { return row[k]; });
    }
}

// SiLU(gate) * up (rule 8) and quantisation of one group; both f32 [rows][cols].
extern "C" __global__ void __launch_bounds__(QUANTISE_THREADS)
    quantise_silu(const __grid_constant__ ActivationForms out, const float* gate, const float* up, uint32_t rows,
                  uint32_t cols, uint32_t* status, uint32_t place) {
    let_next_start();
    wait_for_previous();
    const WarpGroup group((int)rows, (int)cols);
    if (!group.exists) return;
    float g[8], u[8];
    load_eight(g, gate + (size_t)group.row * cols, group.block, (int)cols, group.lane);
    load_eight(u, up + (size_t)group.row * cols, group.block, (int)cols, group.lane);
#pragma unroll
    for (int i = 0; i < 8; i++) g[i] = silu_mul(g[i], u[i]);
    store_own_group(out, g, group.row, group.block, group.blocks, (int)cols, group.lane, status, place);
}

// Transforms the blocks of 32 * PARTS elements of a group back (rule 8b). Lane l holds values l, l + 32, ... of the group.
template <int PARTS>
__device__ __forceinline__ void hadamard_group(float (&x)[8], int lane) {
#pragma unroll
    for (int first = 0; first < 8; first += PARTS) {
        float part[PARTS];
#pragma unroll
        for (int j = 0; j < PARTS; j++) part[j] = x[first + j];
        hadamard_block(part, 1.0f, lane);
#pragma unroll
        for (int j = 0; j < PARTS; j++) x[first + j] = part[j];
    }
}

// Attention's output, one group: transformed back (rule 8b) where `hadamard_block_len` is 32, 64, 128 or 256 and not 0,
// times sigmoid(gate) (rule 8) where `gate` is given, then quantised. mixed, gate f32 [rows][cols].
extern "C" __global__ void __launch_bounds__(QUANTISE_THREADS)
    quantise_gate(const __grid_constant__ ActivationForms out, const float* mixed, const float* gate, uint32_t rows,
                  uint32_t cols, uint32_t hadamard_block_len, uint32_t* status, uint32_t place) {
    __shared__ __align__(16) float values[QUANTISE_THREADS / 32][256];
    let_next_start();
    wait_for_previous();
    const WarpGroup group((int)rows, (int)cols);
    if (!group.exists) return;
    const int lane = group.lane;
    const size_t first = (size_t)group.row * cols + group.block * 256;
    // All loads at once: what waits for the gates until the transform is done waits twice.
    float x[8], gates[8];
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const int k = lane + 32 * j;
        const bool exists = group.block * 256 + k < (int)cols;
        x[j] = exists ? mixed[first + k] : 0.0f;
        gates[j] = gate && exists ? gate[first + k] : 0.0f;
    }
    // Blocks do not straddle groups, and a short last group ends with a whole block.
    switch (hadamard_block_len) {
        case 32: hadamard_group<1>(x, lane); break;
        case 64: hadamard_group<2>(x, lane); break;
        case 128: hadamard_group<4>(x, lane); break;
        case 256: hadamard_group<8>(x, lane); break;
    }
    float* own = values[threadIdx.x / 32];
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const int k = lane + 32 * j;
        const bool exists = group.block * 256 + k < (int)cols;
        own[k] = gate && exists ? __fmul_rn(x[j], sigmoid(gates[j])) : x[j];
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = own[lane * 8 + i];
    store_own_group(out, x, group.row, group.block, group.blocks, (int)cols, lane, status, place);
}

// Quantisation alone of rows f32 [rows][cols], one group.
extern "C" __global__ void __launch_bounds__(QUANTISE_THREADS)
    quantise_plain(const __grid_constant__ ActivationForms out, const float* values, uint32_t rows, uint32_t cols,
                   uint32_t* status, uint32_t place) {
    let_next_start();
    wait_for_previous();
    const WarpGroup group((int)rows, (int)cols);
    if (!group.exists) return;
    float x[8];
    load_eight(x, values + (size_t)group.row * cols, group.block, (int)cols, group.lane);
    store_own_group(out, x, group.row, group.block, group.blocks, (int)cols, group.lane, status, place);
}
