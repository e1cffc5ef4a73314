// Operations on rows that do not end in a quantisation: embedding (rule 6a), residual sums (rule 6) and logits (rule 10).
//
// All are bound by memory: an element is read and written once (twice where a norm needs the whole row first).
#include "softmax.cuh"
#include "weight_element.cuh"

namespace {

constexpr int ROW_THREADS = 256;  // the 256 lanes of rule 5

// Step 2 of rule 5: the tree over the 256 lanes of a block of 256 threads, then r. Every thread gets r.
__device__ float inverse_rms_of_lanes(float lane_sum, uint32_t n, float eps) {
    __shared__ float lanes[ROW_THREADS];
    uint32_t lane = threadIdx.x;
    lanes[lane] = lane_sum;
    __syncthreads();
    for (uint32_t step = 128; step >= 32; step /= 2) {
        if (lane < step) lanes[lane] += lanes[lane + step];
        __syncthreads();
    }
    if (lane < 32) {
        float sum = lanes[lane];
        // a_i + a_(i+s) and a_(i+s) + a_i are the same bits, so a butterfly is the tree.
#pragma unroll
        for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, step);
        if (lane == 0) lanes[0] = sum;
    }
    __syncthreads();
    return inverse_rms_of_sum(lanes[0], n, eps);
}

}  // namespace

// Rule 6a: out[row] = row tokens[row] of an embedding table as stored in the file, then, if `normalise`, rule 5 without a
// weight. Grid: rows. `table`: [vocab][row_bytes], any alignment. out: [rows, width]. The caller has checked the tokens.
extern "C" __global__ void __launch_bounds__(ROW_THREADS)
embed_rows(const uint32_t* __restrict__ tokens, const uint8_t* __restrict__ table, uint32_t type, uint64_t row_bytes,
           float* __restrict__ out, uint32_t width, uint32_t normalise, float eps) {
    begin_dependent();
    const uint8_t* stored = table + tokens[blockIdx.x] * row_bytes;
    float* row = out + uint64_t(blockIdx.x) * width;
    float sum = 0.0f;
    for (uint32_t k = threadIdx.x; k < width; k += ROW_THREADS) {
        float x = weight_element(type, stored, k);
        sum = __fmaf_rn(x, x, sum);
        row[k] = x;
    }
    if (!normalise) return;
    float r = inverse_rms_of_lanes(sum, width, eps);
    for (uint32_t k = threadIdx.x; k < width; k += ROW_THREADS) row[k] = row[k] * r;
}

// Rule 6: hidden = RN(hidden + y); with `weight`, y is normalised first (rule 5). All [rows, width]. Grid: rows.
extern "C" __global__ void __launch_bounds__(ROW_THREADS)
add_residual(float* __restrict__ hidden, const float* __restrict__ y, uint32_t width, const float* __restrict__ weight,
             float eps) {
    begin_dependent();
    uint64_t start = uint64_t(blockIdx.x) * width;
    if (weight == nullptr) {
        for (uint32_t k = threadIdx.x; k < width; k += ROW_THREADS) hidden[start + k] += y[start + k];
        return;
    }
    float sum = 0.0f;
    for (uint32_t k = threadIdx.x; k < width; k += ROW_THREADS) sum = __fmaf_rn(y[start + k], y[start + k], sum);
    float r = inverse_rms_of_lanes(sum, width, eps);
    for (uint32_t k = threadIdx.x; k < width; k += ROW_THREADS) hidden[start + k] += y[start + k] * r * weight[k];
}

// Rule 10: z = RN(z * scale) if `has_scale`, then RN(cap * tanh(RN(z / cap))) if `has_cap`; then every logit must be finite.
// logits: [rows, vocab], in place. Row r belongs to row step_rows[r] of the step (row r itself if null), whose status gets
// `place` where a logit is not finite. Grid: (pieces of a row, rows).
extern "C" __global__ void __launch_bounds__(ROW_THREADS)
finish_logits(float* __restrict__ logits, uint32_t vocab, uint32_t has_scale, float scale, uint32_t has_cap, float cap,
              const uint32_t* __restrict__ step_rows, uint32_t* __restrict__ status, uint32_t place) {
    begin_dependent();
    float* row = logits + uint64_t(blockIdx.y) * vocab;
    bool finite = true;
    for (uint32_t k = blockIdx.x * ROW_THREADS + threadIdx.x; k < vocab; k += gridDim.x * ROW_THREADS) {
        float z = row[k];
        if (has_scale) z = z * scale;
        if (has_cap) z = cap * tanh_of(z / cap);
        finite &= is_finite(z);
        row[k] = z;
    }
    if (__syncthreads_or(!finite) && threadIdx.x == 0) {
        report(status, step_rows != nullptr ? step_rows[blockIdx.y] : blockIdx.y, place);
    }
}
