// Operations that end in a quantisation: norm, SiLU, and the gate of attention (rules 5, 6, 8, 8b, then 2).
//
// One thread block of 256 threads per row. Memory-bound: a row is read and its codes are written once (norm of 6,656
// values: 26.6 KB in, 13.3 KB of f16 codes out; with a residual sum 53.2 KB in and 39.9 KB out); the values of the row wait
// in shared memory between the passes where they fit, and are computed again where they do not.
#include "hadamard.cuh"
#include "quantise.cuh"

extern __shared__ __align__(16) float row_values[];

// Rule 5, step 2: the sum of 256 lanes by halves, the same on every thread. `lanes` is shared memory.
__device__ __forceinline__ float sum_by_halves(float mine, float* lanes) {
    const int lane = threadIdx.x % 32;
    lanes[threadIdx.x] = mine;
    __syncthreads();
    float a[8];
#pragma unroll
    for (int j = 0; j < 8; j++) a[j] = lanes[lane + 32 * j];
    // Distances 128, 64 and 32, then 16 to 1 between the lanes of a warp.
    float sum = __fadd_rn(__fadd_rn(__fadd_rn(a[0], a[4]), __fadd_rn(a[2], a[6])),
                          __fadd_rn(__fadd_rn(a[1], a[5]), __fadd_rn(a[3], a[7])));
#pragma unroll
    for (int step = 16; step; step >>= 1) sum = __fadd_rn(sum, __shfl_xor_sync(ALL_LANES, sum, step));
    __syncthreads();
    return sum;
}

// Residual sum (rule 6), norm (rule 5) and quantisation (rule 2) of one row.
//
// hidden f32 [_][cols]; row r of the result is row indices[r] of it, or r where `indices` is null. Where `addend`
// f32 [rows][cols] is given, the row first becomes hidden + addend, or hidden + norm(addend) * post_weight, and is written
// back. weight f32 [cols]. `staged` is 1 where dynamic shared memory holds a row of floats.
extern "C" __global__ void __launch_bounds__(QUANTISE_THREADS)
    quantise_norm(const __grid_constant__ ActivationForms out, float* hidden, const uint32_t* indices, const float* addend,
                  const float* post_weight, float post_eps, const float* weight, float eps, uint32_t cols_,
                  uint32_t* status, uint32_t place, uint32_t staged) {
    __shared__ float lanes[QUANTISE_THREADS];
    const int cols = (int)cols_, row = blockIdx.x, source = indices ? (int)indices[row] : row;
    float* h = hidden + (size_t)source * cols;
    if (addend) {
        const float* y = addend + (size_t)source * cols;
        float r = 1.0f, sum = 0.0f;
        if (post_weight) {
            for (int k = threadIdx.x; k < cols; k += QUANTISE_THREADS) sum = __fmaf_rn(y[k], y[k], sum);
            r = inverse_rms_of_sum(sum_by_halves(sum, lanes), cols, post_eps);
        }
        for (int k = threadIdx.x; k < cols; k += QUANTISE_THREADS) {
            const float term = post_weight ? __fmul_rn(__fmul_rn(y[k], r), post_weight[k]) : y[k];
            h[k] = __fadd_rn(h[k], term);
        }
    }
    // Every thread reads back only what it wrote itself.
    float sum = 0.0f;
    for (int k = threadIdx.x; k < cols; k += QUANTISE_THREADS) sum = __fmaf_rn(h[k], h[k], sum);
    const float r = inverse_rms_of_sum(sum_by_halves(sum, lanes), cols, eps);
    auto normed = [&](int k) { return __fmul_rn(__fmul_rn(h[k], r), weight[k]); };
    if (staged) {
        for (int k = threadIdx.x; k < cols; k += QUANTISE_THREADS) row_values[k] = normed(k);
        __syncthreads();
        quantise_row(out, [&](int k) { return row_values[k]; }, row, cols, status, source, place);
    } else {
        __syncthreads();
        quantise_row(out, normed, row, cols, status, source, place);
    }
}

// SiLU(gate) * up (rule 8) and quantisation of one row; both f32 [rows][cols].
extern "C" __global__ void __launch_bounds__(QUANTISE_THREADS)
    quantise_silu(const __grid_constant__ ActivationForms out, const float* gate, const float* up, uint32_t cols_,
                  uint32_t* status, uint32_t place, uint32_t staged) {
    const int cols = (int)cols_, row = blockIdx.x;
    const float *g = gate + (size_t)row * cols, *u = up + (size_t)row * cols;
    auto product = [&](int k) { return silu_mul(g[k], u[k]); };
    if (staged) {
        for (int k = threadIdx.x; k < cols; k += QUANTISE_THREADS) row_values[k] = product(k);
        __syncthreads();
        quantise_row(out, [&](int k) { return row_values[k]; }, row, cols, status, row, place);
    } else {
        quantise_row(out, product, row, cols, status, row, place);
    }
}

// Transforms the blocks of 32 * PARTS elements of the row in shared memory, a warp per block.
template <int PARTS>
__device__ __forceinline__ void hadamard_row(float* x, int cols) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int first = warp * 32 * PARTS; first < cols; first += QUANTISE_THREADS * PARTS) {
        float part[PARTS];
#pragma unroll
        for (int j = 0; j < PARTS; j++) part[j] = x[first + lane + 32 * j];
        hadamard_block(part, 1.0f, lane);
#pragma unroll
        for (int j = 0; j < PARTS; j++) x[first + lane + 32 * j] = part[j];
    }
}

// Attention's output of one row: transformed back (rule 8b) where `hadamard_block_len` is 32, 64, 128 or 256 and not 0,
// times sigmoid(gate) (rule 8) where `gate` is given, then quantised. mixed, gate f32 [rows][cols]; dynamic shared memory
// holds a row of floats.
extern "C" __global__ void __launch_bounds__(QUANTISE_THREADS)
    quantise_gate(const __grid_constant__ ActivationForms out, const float* mixed, const float* gate, uint32_t cols_,
                  uint32_t hadamard_block_len, uint32_t* status, uint32_t place) {
    const int cols = (int)cols_, row = blockIdx.x;
    const float *o = mixed + (size_t)row * cols, *g = gate + (size_t)row * cols;
    for (int k = threadIdx.x; k < cols; k += QUANTISE_THREADS) row_values[k] = o[k];
    __syncthreads();
    switch (hadamard_block_len) {
        case 32: hadamard_row<1>(row_values, cols); break;
        case 64: hadamard_row<2>(row_values, cols); break;
        case 128: hadamard_row<4>(row_values, cols); break;
        case 256: hadamard_row<8>(row_values, cols); break;
    }
    __syncthreads();
    if (gate) {
        for (int k = threadIdx.x; k < cols; k += QUANTISE_THREADS) {
            row_values[k] = __fmul_rn(row_values[k], sigmoid(g[k]));
        }
        __syncthreads();
    }
    quantise_row(out, [&](int k) { return row_values[k]; }, row, cols, status, row, place);
}

// Quantisation alone of rows f32 [rows][cols].
extern "C" __global__ void __launch_bounds__(QUANTISE_THREADS)
    quantise_plain(const __grid_constant__ ActivationForms out, const float* x, uint32_t cols_, uint32_t* status,
                   uint32_t place) {
    const int cols = (int)cols_, row = blockIdx.x;
    quantise_row(out, [&](int k) { return x[(size_t)row * cols + k]; }, row, cols, status, row, place);
}
