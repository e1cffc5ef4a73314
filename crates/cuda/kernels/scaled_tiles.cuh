// Layouts of the operands of matmul_scaled_tiles.cu: chunks of 128 columns, each one contiguous bulk copy. Twin of the
// constants in crates/cuda/src/matrix.rs and crates/cuda/src/activations.rs.
//
// Weights, [tile of 128 outputs][chunk]: codes i8 [128 outputs][128 columns], 16-byte units swizzled by the output; then, for
// each of the chunk's four groups of 32 columns, the scales dw of outputs r and r + 8 side by side, and behind them their mins
// where the type has them (a float2 or a float4 for each pair of outputs).
// Activations, [tile of 128 tokens][chunk]: codes alike; then dy as f32 [4 groups][128 tokens]; then the sums of the codes
// as f32 [4 groups][128 tokens]. Tokens are in the order in which the threads of a warpgroup hold them.
#pragma once
#include <stdint.h>

constexpr int SCALED_OUTPUTS = 128;
constexpr int SCALED_TOKENS = 128;
constexpr int SCALED_COLUMNS = 128; // of a chunk
constexpr int SCALED_GROUPS = 4;    // of a chunk
constexpr int SCALED_CODES_BYTES = 128 * SCALED_COLUMNS;
// One float for each output or token and group.
constexpr int SCALED_FLOATS_BYTES = 128 * SCALED_GROUPS * 4;
constexpr int SCALED_X_BYTES = SCALED_CODES_BYTES + 2 * SCALED_FLOATS_BYTES;

__host__ __device__ constexpr int scaled_weights_bytes(bool has_mins) {
    return SCALED_CODES_BYTES + (has_mins ? 2 : 1) * SCALED_FLOATS_BYTES;
}

// Byte of column `column` in row r of the codes of a chunk.
__device__ __forceinline__ int scaled_code_at(int r, int column) {
    return r * 128 + (column / 16 ^ (r & 7)) * 16 + column % 16;
}
// Pair of outputs r and r + 8 that holds output r.
__device__ __forceinline__ int scaled_pair_of(int r) { return r / 16 * 8 + r % 8; }
// Place of token r: a thread's tokens 8 i + 2 t and 8 i + 2 t + 1, for i and i + 1 with i even, are four neighbours.
__device__ __forceinline__ int scaled_token_at(int r) { return r / 16 * 16 + r % 8 / 2 * 4 + r / 8 % 2 * 2 + r % 2; }
